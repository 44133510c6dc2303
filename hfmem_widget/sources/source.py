"""The base class of sources, and how often slow readings are repeated."""

import math
import sys
from collections.abc import Sequence
from typing import Final

from hfmem_widget.errors import is_limit
from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Instant

SLOWLY: Final = 1.0
"""Seconds between readings of values that are slow to read, or change slowly."""


class Source:
    """One way of reading memory; creating it opens nothing.

    `read` is called on every tick, on the poller's thread; if it does not block also on the user's thread,
    at a span's edges. It never raises: a value that cannot be read is NaN, and `notes` gives the reason once,
    in one plain sentence with its remedy.
    """

    name: str
    """Short, for messages."""
    blocks: bool = False
    """Whether a reading may hang (a driver call): it is then never made on the user's thread."""
    secondary: bool = False
    """Whether to read it more rarely while another source that does not block has devices."""
    is_beside: bool = False
    """Whether another source that does not block has devices, so that older values of this one suffice."""
    due: float = -math.inf
    """Monotonic seconds before which there is nothing new to read; `inf` if there never will be."""
    devices: tuple[Device, ...] = ()
    """The known devices. A field that is empty ("" or NaN) is taken from another source with the same key."""
    series: tuple[Series, ...] = ()
    """The series of the values of `read`; new ones are only added at the end."""
    notes: list[str]
    """Sentences for the user, each added once and never removed."""

    def __init__(self) -> None:
        self.notes = []

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes; `now` is monotonic seconds, for values read seldom."""
        raise NotImplementedError

    def at(self, instant: Instant) -> Sequence[float] | None:
        """Return the values of `series` from the readings of an instant; None if they are not among these."""
        return None

    def refresh(self) -> None:
        """Have the next `read` read again whatever is usually a few seconds old."""

    def close(self) -> None:
        """Close what `read` has opened; called once, after the last `read`."""

    def _note(self, sentence: str) -> None:
        # At a limit the next reading may be right, and there is nothing to update or to report.
        if sentence not in self.notes and not is_limit(sys.exception()):
            self.notes.append(sentence)

    def _padded(self, values: Sequence[float]) -> Sequence[float]:
        """Return values, and NaN for the further `series`."""
        return [*values, *[NOT_AVAILABLE] * (len(self.series) - len(values))]


class Looks:
    """Schedules readings that take long, such as of a device's list of processes.

    A reading is due once the bytes in use have changed by more than `least`, as CUDA loads its libraries
    piece by piece, or after `unchanged` seconds. It takes 10 µs on an H200 and milliseconds on some drivers
    (MangoHud#2104), so readings may take only a `SHARE` of the time while the use changes at every tick.
    """

    SHARE: Final = 0.01

    def __init__(self, unchanged: float = 5.0, least: float = 0.0) -> None:
        self._unchanged, self._least = unchanged, least
        self._due = self._change_due = -math.inf
        self._used = 0.0

    def is_due(self, now: float, used: float) -> bool:
        """Return whether to read again at monotonic second `now`, with `used` bytes in use."""
        has_changed = abs(used - self._used) > self._least
        return now >= (min(self._due, self._change_due) if has_changed else self._due)

    def expire(self) -> None:
        """Make the next look due as if the use had changed: looks still take `SHARE` of the time at most."""
        self._due = self._change_due

    def took(self, now: float, used: float, seconds: float, idle_share: float = SHARE) -> None:
        """Record a reading's duration; `idle_share` is the share of the time while nothing changes."""
        self._change_due = now + seconds / self.SHARE
        self._due = now + max(self._unchanged, seconds / idle_share)
        self._used = used
