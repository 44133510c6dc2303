"""The samples of a run of any length in a fixed amount of memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hfmem_widget.session.model import Growing
from hfmem_widget.text import wrong_value

BLOCK = 64
"""The most rows that wait to be entered: numpy takes about as long for one row as for many."""


class GrowingTable(Growing):
    """A table that grows; its readers call `_settle` first. A copy, also by `pickle`, does not grow."""

    def __init__(self) -> None:
        self._new: list[Sequence[float]] = []
        self.replace_lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: copy(value) for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.replace_lock()

    def replace_lock(self) -> None:
        """Make a new lock: in a forked child, the thread that held the old one does not exist."""
        self._lock = threading.RLock()

    def _wait(self, row: Sequence[float]) -> None:
        with self._lock:
            self._new.append(row)
        if len(self._new) >= BLOCK:
            self._settle()

    def _settle(self) -> None:
        with self._lock:
            if self._new:
                # Cleared last: rows for which there is no memory yet keep waiting.
                self._enter(np.array(self._new))
                self._new.clear()

    def _enter(self, block: NDArray[np.float64]) -> None:
        raise NotImplementedError


CAPACITY = 4096
CELLS = 150_000
"""Readings kept at most, over all series: the more series, the fewer rows."""

GAPS_KEPT = 256

Floats = NDArray[np.float64]


def resized(values: NDArray[Any], count: int, missing: float = np.nan) -> NDArray[Any]:
    """Return a number of rows: further ones are cut off, others are added that have the missing value."""
    more = np.full((max(0, count - len(values)), *values.shape[1:]), missing, values.dtype)
    return np.concatenate([values[:count], more])


class Timeline(GrowingTable):
    """Rows of readings that are folded when there are too many.

    A row holds the lowest and the highest value of each series over `bucket` consecutive samples.
    When `capacity` rows are full (fewer if there are very many series), neighbours merge and `bucket`
    doubles: the whole run always fits, and no sampled extreme is ever lost.

    The `width` is the number of series. At most `capacity` rows, an even number, and `cells` readings stay.
    """

    _compared = ("time", "low", "high", "bucket", "samples", "gaps")

    def __init__(self, width: int, capacity: int = CAPACITY, cells: int = CELLS) -> None:
        if capacity < 2 or capacity % 2:
            raise wrong_value(capacity, "capacity", "an even number of rows, 2 or more")
        super().__init__()
        self.capacity = capacity
        self._cells = cells
        self.bucket = 1
        self.samples = 0
        self.gaps: list[tuple[float, float]] = []
        """Intervals without samples as (start, stop) in seconds, in order; the longest `GAPS_KEPT`."""
        self._filled = 0
        self._rows = 0
        self._time: Floats = np.empty(0)
        self._low: Floats = np.empty((0, width))
        self._high: Floats = np.empty((0, width))

    @classmethod
    def from_rows(
        cls,
        time: ArrayLike,
        low: ArrayLike,
        high: ArrayLike,
        *,
        bucket: int = 1,
        samples: int | None = None,
        gaps: Iterable[tuple[float, float]] = (),
        capacity: int = CAPACITY,
    ) -> Self:
        """Return a timeline of a copy of rows; a sample added to it begins a new row.

        `time` is that of each row's first sample; `low` and `high` have the shape ``(rows, width)``. A row
        has `bucket` samples. `samples` is the number in all rows, by default `bucket` for each.
        """
        timeline = cls(0, capacity)
        timeline._time = np.array(time, dtype=np.float64)
        timeline._low = np.array(low, dtype=np.float64)
        timeline._high = np.array(high, dtype=np.float64)
        timeline._rows = len(timeline._time)
        timeline.bucket = timeline._filled = bucket
        timeline.samples = timeline._rows * bucket if samples is None else samples
        timeline.gaps = list(gaps)
        return timeline

    def __len__(self) -> int:
        self._settle()
        return self._rows

    @property
    def width(self) -> int:
        """Number of series."""
        return int(self._low.shape[1])

    @property
    def time(self) -> Floats:
        """Time of each row's first sample in seconds, shape ``(rows,)``; a view."""
        self._settle()
        return self._time[: self._rows]

    @property
    def low(self) -> Floats:
        """Lowest value of each row and series, shape ``(rows, width)``; a view."""
        self._settle()
        return self._low[: self._rows]

    @property
    def high(self) -> Floats:
        """Highest value of each row and series, shape ``(rows, width)``; a view."""
        self._settle()
        return self._high[: self._rows]

    def append(self, time: float, values: Sequence[float]) -> None:
        """Add one sample: seconds, and one value for each series."""
        self.samples += 1
        self._wait((time, *values))

    def extend(self, time: Floats, values: Floats) -> None:
        """Add samples: seconds of shape ``(samples,)``, and values of shape ``(samples, width)``."""
        self._settle()
        self.samples += len(time)
        with self._lock:
            self._put(time, values)

    def add_gap(self, start: float, stop: float) -> None:
        """Add an interval in which nothing was sampled."""
        self.gaps.append((start, stop))
        if len(self.gaps) > GAPS_KEPT:
            shortest = min(range(len(self.gaps)), key=lambda i: self.gaps[i][1] - self.gaps[i][0])
            del self.gaps[shortest]

    def widen(self, width: int) -> None:
        """Add columns for new series; their past is NaN."""
        # Under the lock: a reader who enters rows meanwhile would put back the narrower arrays.
        with self._lock:
            self._settle()
            if width > self.width:
                self._allocate(len(self._time), width)

    def between(self, start: float, stop: float, columns: Sequence[int] | None = None) -> Timeline:
        """Return a copy of the rows from `start` to `stop` seconds, of all series or of some columns."""
        first = max(0, int(self.time.searchsorted(start, side="right")) - 1)
        last = int(self.time.searchsorted(stop, side="right"))
        columns_kept = slice(None) if columns is None else list(columns)
        return Timeline.from_rows(
            self.time[first:last],
            self.low[first:last, columns_kept],
            self.high[first:last, columns_kept],
            bucket=self.bucket,
            gaps=[gap for gap in self.gaps if gap[1] >= start and gap[0] <= stop],
            capacity=self.capacity,
        )

    @property
    def most_rows(self) -> int:
        """The most rows that are kept: fewer with very many series."""
        return max(2, min(self.capacity, self._cells // max(1, self.width) + 1))

    def _enter(self, block: Floats) -> None:
        self._put(block[:, 0], block[:, 1:])

    def _put(self, time: Floats, values: Floats) -> None:
        most = self.most_rows
        while len(time):
            if self._rows and self._filled < self.bucket:
                row, count = self._rows - 1, min(self.bucket - self._filled, len(time))
                self._low[row] = np.fmin(self._low[row], np.fmin.reduce(values[:count]))
                self._high[row] = np.fmax(self._high[row], np.fmax.reduce(values[:count]))
                self._filled += count
            else:
                if self._rows >= most:
                    self._fold()
                count = min(len(time), (most - self._rows) * self.bucket)
                self._add_rows(time[:count], values[:count])
            time, values = time[count:], values[count:]

    def _add_rows(self, time: Floats, values: Floats) -> None:
        starts = np.arange(0, len(time), self.bucket)
        first, last = self._rows, self._rows + len(starts)
        if last > len(self._time):
            self._allocate(min(self.capacity, max(64, 2 * last)), self.width)
        self._time[first:last] = time[starts]
        self._low[first:last] = np.fmin.reduceat(values, starts)
        self._high[first:last] = np.fmax.reduceat(values, starts)
        self._rows = last
        self._filled = len(time) - int(starts[-1])

    def _fold(self) -> None:
        # An odd last row has no partner, and stays as it is.
        rows, starts = slice(self._rows), np.arange(0, self._rows, 2)
        kept = len(starts)
        self._time[:kept] = self._time[starts]
        self._low[:kept] = np.fmin.reduceat(self._low[rows], starts)
        self._high[:kept] = np.fmax.reduceat(self._high[rows], starts)
        self._rows = kept
        self.bucket *= 2

    def _allocate(self, rows: int, width: int) -> None:
        kept, more = slice(self._rows), ((0, rows - self._rows), (0, width - self.width))
        time = np.pad(self._time[kept], more[0])
        low = np.pad(self._low[kept], more, constant_values=np.nan)
        high = np.pad(self._high[kept], more, constant_values=np.nan)
        self._time, self._low, self._high = time, low, high
