"""Readings of all ranks on one clock: the highest of each rank in each bucket of time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hfmem_widget.ranks.aggregate import Floats

MOST_OPEN = 4096
"""Buckets that wait for other ranks; beyond that the oldest do not wait any longer."""

MOST_FOLDED = 600
"""Buckets that one fold may cover."""


@dataclass(slots=True)
class Bucket:
    """The highest allocated of each place, and of some places all that was read with it."""

    high: Floats
    rows: dict[int, Floats] = field(default_factory=dict)


class Buckets:
    """Those of `width` seconds each that were not passed on yet, by their numbers since the epoch.

    Parameters
    ----------
    width : float
        Seconds.
    """

    def __init__(self, width: float) -> None:
        self.width = width
        self._open: dict[int, Bucket] = {}
        self._passed = -(1 << 62)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, place: int, time: Floats, allocated: Floats, rows: Floats | None) -> None:
        """Take in readings of a rank.

        Parameters
        ----------
        place : int
            The rank's.
        time, allocated : array, shape (readings,)
        rows : array, shape (readings, columns), or None
            All that was read with them, if that is wanted.
        """
        numbers = (time / self.width).astype(np.int64).tolist()
        for at, (number, value) in enumerate(zip(numbers, allocated.tolist(), strict=True)):
            self._put(number, place, value, None if rows is None else rows[at])

    def add_over(
        self, place: int, edges: tuple[float, float], value: float, row: Floats | None
    ) -> None:
        """Take in the highest reading of a rank over some time."""
        start, stop = edges
        last = int(stop / self.width)
        for number in range(max(int(start / self.width), last - MOST_FOLDED), last + 1):
            self._put(number, place, value, row)

    def passed_on(self, until: float) -> Iterator[tuple[float, Bucket]]:
        """Yield the buckets that end by some time, oldest first, each with its end; they are gone then."""
        most = math.floor(max(-1e15, min(until, 1e15)) / self.width)
        ready = sorted(number for number in self._open if number < most)
        if len(self._open) - len(ready) > MOST_OPEN:
            ready = sorted(self._open)[:-MOST_OPEN]
        for number in ready:
            self._passed = number
            yield (number + 1) * self.width, self._open.pop(number)

    def _put(self, number: int, place: int, value: float, row: Floats | None) -> None:
        if number <= self._passed or (math.isnan(value) and row is None):
            return
        bucket = self._open.get(number)
        if bucket is None:
            bucket = self._open[number] = Bucket(np.full(place + 1, np.nan))
        elif place >= len(bucket.high):
            more = np.full(max(place + 1 - len(bucket.high), len(bucket.high)), np.nan)
            bucket.high = np.concatenate([bucket.high, more])
        if not value <= bucket.high[place]:
            bucket.high[place] = value
            if row is not None:
                bucket.rows[place] = row
        elif row is not None and place not in bucket.rows:
            bucket.rows[place] = row
