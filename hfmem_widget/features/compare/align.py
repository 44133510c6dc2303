"""Runs laid over each other, by step or by time: their median, lowest and highest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hfmem_widget.analysis.record import Floats
from hfmem_widget.features.compare.model import AlignedLine


def steps_a_point(tables: Sequence[Floats], most: int) -> int:
    """Return how many steps a point must cover, so that every table has a row in each of at most `most`.

    The tables are those of `DeviceRecord.steps`, and none is empty.
    """
    longest = max(float(table[-1, 1] - table[0, 0] + 1) for table in tables)
    rows = max(float((table[:, 1] - table[:, 0]).max() + 1) for table in tables)
    return max(1, math.ceil(longest / most), int(rows))


def by_step(tables: Sequence[Floats], width: int) -> AlignedLine:
    """Lay runs over each other by step number; a point is the highest peak of `width` steps.

    A row of several steps may lie in two points. It counts as high as its worst step in the point of that
    step, and as high as its lowest in the other: no peak moves to a step where it was not.
    """
    last = max(int(table[-1, 1]) for table in tables)
    first = min(int(table[0, 0]) for table in tables)
    begin = (first - 1) // width
    points = (last - 1) // width - begin + 1
    runs = np.array([_points(table, width, begin, points) for table in tables])
    return _over((np.arange(points) + begin) * width + (width + 1) / 2, runs)


def by_time(curves: Sequence[Floats], columns: int) -> AlignedLine:
    """Lay runs over each other by seconds since each began.

    One run keeps its points. For several, each of `columns` has the highest value of every run.
    """
    if len(curves) == 1:
        at, values = curves[0]
        return AlignedLine(at, values, values, values)
    longest = max((float(curve[0, -1]) for curve in curves if curve.shape[1]), default=0.0)
    width = longest / columns or 1.0
    runs = np.array([_columns(curve, width, columns) for curve in curves])
    return _over((np.arange(columns) + 0.5) * width, runs)


def _points(table: Floats, width: int, begin: int, points: int) -> Floats:
    highest = np.full(points, np.nan)
    numbers = table[:, (0, 1, 4)].T
    # Where several steps share a peak, the last stands for them.
    numbers[2] = np.where(numbers[2] > 0, numbers[2], numbers[1])
    first, last, worst = ((numbers - 1) // width - begin).astype(int)
    for at, heights in ((first, table[:, 2]), (last, table[:, 2]), (worst, table[:, 3])):
        np.fmax.at(highest, at, heights)
    return highest


def _columns(curve: Floats, width: float, columns: int) -> Floats:
    at, values = curve.astype(np.float64)
    is_read = ~np.isnan(values)
    at, values = at[is_read], values[is_read]
    if not len(at):
        return np.full(columns, np.nan)
    centres = (np.arange(columns) + 0.5) * width
    highest = np.interp(centres, at, values, right=np.nan)
    place = np.minimum((at / width).astype(int), columns - 1)
    top = np.full(columns, np.nan)
    np.fmax.at(top, place, values)
    # A column without readings has the value of the line between its neighbours.
    return np.where(np.isnan(top), highest, top)


def _over(at: Floats, runs: Floats) -> AlignedLine:
    is_read = ~np.isnan(runs).all(axis=0)
    at, runs = at[is_read], runs[:, is_read]
    # Those that are known of one run at least: shorter runs are NaN there.
    return AlignedLine(
        at, np.nanmedian(runs, axis=0), np.nanmin(runs, axis=0), np.nanmax(runs, axis=0)
    )
