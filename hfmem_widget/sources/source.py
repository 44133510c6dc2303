"""What every source has, and what sources share."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Final

from hfmem_widget.errors import is_limit
from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Instant

SLOWLY: Final = 1.0
"""Seconds between readings of what is slow to read, or changes slowly."""


class Source:
    """One way of reading memory; by itself it opens nothing.

    `read` is called on every tick, on the poller's thread; where it does not block also on the user's thread,
    at a span's edges. It never raises: what cannot be read is NaN, and the reason, in one plain sentence with
    its remedy, is put into `notes` once.
    """

    name: str
    """Short, for messages."""
    blocks: bool = False
    """Whether a reading may hang (a driver call): it is then never made on the user's thread."""
    secondary: bool = False
    """Whether to read it more rarely while another source that does not block has devices."""
    is_beside: bool = False
    """Whether there is such another source, beside which nobody needs the newest of this one's figures."""
    due: float = -math.inf
    """Monotonic seconds before which there is nothing new to read; `inf` where there never will be."""
    devices: tuple[Device, ...] = ()
    """The devices it reads, as far as known. A field that one source leaves empty ("" or NaN) is taken from
    another that knows the same key."""
    series: tuple[Series, ...] = ()
    """What it reads; only ever grows, at the end."""
    notes: list[str]
    """Sentences for the user, each added once and never removed."""

    def __init__(self) -> None:
        self.notes = []

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes; `now` is monotonic seconds, for what is read seldom."""
        raise NotImplementedError

    def at(self, instant: Instant) -> Sequence[float] | None:
        """Return the values of `series` as read at an instant already; None where that is not enough."""
        return None

    def refresh(self) -> None:
        """Have the next `read` read again whatever is usually a few seconds old."""

    def close(self) -> None:
        """Give back what was opened; called once, after the last `read`."""

    def _note(self, sentence: str) -> None:
        # At a limit the next reading may be right, and there is nothing to update or to report.
        if sentence not in self.notes and not is_limit(sys.exception()):
            self.notes.append(sentence)

    def _padded(self, values: Sequence[float]) -> Sequence[float]:
        """Return values with NaN for the series that were not read."""
        return [*values, *[NOT_AVAILABLE] * (len(self.series) - len(values))]


class Looks:
    """When what takes long to read is read again, such as a device's list of processes.

    That is once its use has changed by more than `least` bytes, as CUDA loads its libraries piece by piece,
    or after `unchanged` seconds. A look takes 10 µs on an H200 and milliseconds on some drivers
    (MangoHud#2104), so looks may take a share of the time only where the use changes from tick to tick.
    """

    SHARE: Final = 0.01

    def __init__(self, unchanged: float = 5.0, least: float = 0.0) -> None:
        self._unchanged, self._least = unchanged, least
        self._due = self._change_due = -math.inf
        self._used = 0.0

    def is_due(self, now: float, used: float) -> bool:
        """Return whether to look at some second, where so many bytes are in use."""
        return now >= self._due or (
            abs(used - self._used) > self._least and now >= self._change_due
        )

    def expire(self) -> None:
        """Make the next look due, whatever the last one took."""
        self._due = -math.inf

    def took(self, now: float, used: float, seconds: float, idle_share: float = SHARE) -> None:
        """Record how many seconds a look took, and the share of the time for looks where nothing changes."""
        self._change_due = now + seconds / self.SHARE
        self._due = now + max(self._unchanged, seconds / idle_share)
        self._used = used
