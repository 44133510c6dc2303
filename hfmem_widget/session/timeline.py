"""The shape of a run of any length in a fixed amount of memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CAPACITY = 4096
CELLS = 150_000
"""Readings kept at most, over all series: the more there are, the fewer rows."""

GAPS_KEPT = 256

Floats = NDArray[np.float64]


class Timeline:
    """Rows of readings that fold when they are full.

    A row holds the lowest and the highest value of each series over `bucket` consecutive samples.
    When `capacity` rows are full (fewer where there are very many series), neighbours merge and
    `bucket` doubles: the whole run always fits,
    and no sampled extreme is ever lost.

    Parameters
    ----------
    width : int
        Number of series.
    capacity : int
        Most rows kept; even.
    """

    def __init__(self, width: int, capacity: int = CAPACITY) -> None:
        if capacity < 2 or capacity % 2:
            message = f"a timeline's capacity is an even number of rows from 2 up, not {capacity}"
            raise ValueError(message)
        self.capacity = capacity
        self.bucket = 1
        self.samples = 0
        self.gaps: list[tuple[float, float]] = []
        """Stretches without samples as (start, stop) in seconds, in order; the longest `GAPS_KEPT`."""
        self._filled = 0
        self._rows = 0
        self._time: Floats = np.empty(0)
        self._low: Floats = np.empty((0, width))
        self._high: Floats = np.empty((0, width))

    def __len__(self) -> int:
        return self._rows

    @property
    def width(self) -> int:
        """Number of series."""
        return int(self._low.shape[1])

    @property
    def time(self) -> Floats:
        """Time of each row's first sample in seconds, shape ``(rows,)``; a view."""
        return self._time[: self._rows]

    @property
    def low(self) -> Floats:
        """Lowest value of each row and series, shape ``(rows, width)``; a view."""
        return self._low[: self._rows]

    @property
    def high(self) -> Floats:
        """Highest value of each row and series, shape ``(rows, width)``; a view."""
        return self._high[: self._rows]

    def append(self, time: float, values: Sequence[float]) -> None:
        """Add one sample: seconds, and one value for each series."""
        self.samples += 1
        if self._rows and self._filled < self.bucket:
            row = self._rows - 1
            new = np.array(values)
            np.fmin(self._low[row], new, out=self._low[row])
            np.fmax(self._high[row], new, out=self._high[row])
            self._filled += 1
            return
        if self._rows >= self.capacity or self._rows * self.width > CELLS:
            self._fold()
        if self._rows == len(self._time):
            self._allocate(min(self.capacity, max(64, 2 * self._rows)), self.width)
        self._time[self._rows] = time
        self._low[self._rows] = values
        self._high[self._rows] = self._low[self._rows]
        self._rows += 1
        self._filled = 1

    def add_gap(self, start: float, stop: float) -> None:
        """Remember that nothing was sampled between two instants."""
        self.gaps.append((start, stop))
        if len(self.gaps) > GAPS_KEPT:
            shortest = min(range(len(self.gaps)), key=lambda i: self.gaps[i][1] - self.gaps[i][0])
            del self.gaps[shortest]

    def widen(self, width: int) -> None:
        """Make room for series that appeared later; their past is "not available"."""
        if width > self.width:
            self._allocate(len(self._time), width)

    def between(self, start: float, stop: float, columns: Sequence[int] | None = None) -> Timeline:
        """Return the rows that touch the seconds from `start` to `stop`, of some series, as a copy."""
        first = max(0, int(self.time.searchsorted(start, side="right")) - 1)
        last = int(self.time.searchsorted(stop, side="right"))
        part = Timeline(self.width if columns is None else len(columns), self.capacity)
        part.bucket = part._filled = self.bucket
        part.samples = (last - first) * self.bucket
        part._rows = last - first
        part._time = self.time[first:last].copy()
        taken = slice(None) if columns is None else list(columns)
        part._low = self.low[first:last, taken].copy()
        part._high = self.high[first:last, taken].copy()
        part.gaps = [gap for gap in self.gaps if gap[1] >= start and gap[0] <= stop]
        return part

    def _fold(self) -> None:
        time, low, high = self.time, self.low, self.high
        pairs = self._rows // 2
        self._time[:pairs] = time[: 2 * pairs : 2]
        self._low[:pairs] = np.fmin(low[: 2 * pairs : 2], low[1 : 2 * pairs : 2])
        self._high[:pairs] = np.fmax(high[: 2 * pairs : 2], high[1 : 2 * pairs : 2])
        # An odd last row has nothing to merge with and stays as it is.
        for last in range(2 * pairs, self._rows):
            for column in (self._time, self._low, self._high):
                column[pairs] = column[last]
        self._rows -= pairs
        self.bucket *= 2

    def _allocate(self, rows: int, width: int) -> None:
        kept, columns = self._rows, self.width
        time = np.empty(rows)
        time[:kept] = self._time[:kept]
        low = np.full((rows, width), np.nan)
        low[:kept, :columns] = self._low[:kept]
        high = np.full((rows, width), np.nan)
        high[:kept, :columns] = self._high[:kept]
        self._time, self._low, self._high = time, low, high
