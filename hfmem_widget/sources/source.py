"""The interface of every source, and what most sources share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Instant


class Source(Protocol):
    """One way of reading memory.

    `read` is called on every tick, on the poller's thread; a source that does not block is also read
    on the user's thread at a span's edges. A source never raises from `read`: what it cannot read is
    NaN, and the reason, in one plain sentence with its remedy, is put into `notes` once.

    Attributes
    ----------
    name : str
        Short, for messages.
    blocks : bool
        True where a reading may hang (a driver call): it is then never made on the user's thread.
    secondary : bool
        True where the figures matter less while another source that does not block has devices: they are
        then read more rarely.
    devices : tuple of Device
        What this source knows of each device it reads, best knowledge so far. Where two sources know
        the same key, a field that one of them leaves empty ("" or NaN) is taken from the other.
    series : tuple of Series
        What it reads; only ever grows, at the end.
    notes : list of str
        Sentences for the user, each added once and never removed.
    """

    name: str
    blocks: bool = False
    secondary: bool = False
    devices: tuple[Device, ...] = ()
    series: tuple[Series, ...] = ()
    notes: list[str]

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes; `now` is monotonic seconds, for what is read seldom."""

    @property
    def at(self) -> Callable[[Instant], Sequence[float] | None] | None:
        """A function that returns the values of `series` from what has been read of an instant already.

        It returns None where that is not enough, and `read` must; most sources have no such function.
        """
        return None

    def close(self) -> None:
        """Give back what was opened; called once, after the last `read`."""


class BaseSource(Source):
    """A source that opens nothing, and says each sentence once."""

    def __init__(self) -> None:
        self.notes = []

    def close(self) -> None:
        """Give nothing back."""

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _padded(self, values: Sequence[float]) -> Sequence[float]:
        """Return values with NaN for the series that were not read."""
        return [*values, *[NOT_AVAILABLE] * (len(self.series) - len(values))]
