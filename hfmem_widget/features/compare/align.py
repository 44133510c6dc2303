"""Runs laid over each other, by step or by time: the middle, the lowest and the highest of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hfmem_widget.analysis.record import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One or several runs of a cell as one line.

    Attributes
    ----------
    at : array of shape (n,)
        Step numbers, or seconds since the cell began.
    middle, low, high : array of shape (n,)
        The median, lowest and highest of the runs in bytes; NaN breaks the line.
    """

    at: Floats
    middle: Floats
    low: Floats
    high: Floats


def steps_a_point(tables: Sequence[Floats], most: int) -> int:
    """Return how many steps one point must stand for, so that every table has a row in each.

    Parameters
    ----------
    tables : sequence of array
        As `DeviceRecord.steps`, none of them empty.
    most : int
        Points of a line at most.
    """
    longest = max(float(table[-1, 1] - table[0, 0] + 1) for table in tables)
    rows = max(float((table[:, 1] - table[:, 0]).max() + 1) for table in tables)
    return max(1, math.ceil(longest / most), int(rows))


def by_step(tables: Sequence[Floats], width: int) -> Line:
    """Lay runs over each other by the number of the step; a point is the highest peak of `width` steps.

    A row of several steps that lies in two points is as high as its worst step in the one where that step
    is, and in the other only as high as its lowest: no peak moves to a step where it was not.
    """
    last = max(int(table[-1, 1]) for table in tables)
    first = min(int(table[0, 0]) for table in tables)
    begin = (first - 1) // width
    points = (last - 1) // width - begin + 1
    runs = np.array([_points(table, width, begin, points) for table in tables])
    numbers = (np.arange(points) + begin) * width + (width + 1) / 2
    known = ~np.isnan(runs).all(axis=0)
    return _over(numbers[known], runs[:, known])


def by_time(curves: Sequence[Floats], columns: int) -> Line:
    """Lay runs over each other by seconds since each began.

    One run keeps its points. Of several, each of so many `columns` has the highest of every run.
    """
    if len(curves) == 1:
        at, values = curves[0]
        return Line(at, values, values, values)
    longest = max((float(curve[0, -1]) for curve in curves if curve.shape[1]), default=0.0)
    width = longest / columns or 1.0
    runs = np.array([_columns(curve, width, columns) for curve in curves])
    at = (np.arange(columns) + 0.5) * width
    known = ~np.isnan(runs).all(axis=0)
    return _over(at[known], runs[:, known])


def _points(table: Floats, width: int, begin: int, points: int) -> Floats:
    highest = np.full(points, np.nan)
    of_step = [((column - 1) // width - begin).astype(int) for column in (table[:, 0], table[:, 1])]
    worst = ((table[:, 4] - 1) // width - begin).astype(int)
    for at in of_step:
        np.fmax.at(highest, at, table[:, 2])
    np.fmax.at(highest, worst, table[:, 3])
    return highest


def _columns(curve: Floats, width: float, columns: int) -> Floats:
    at, values = curve.astype(np.float64)
    known = ~np.isnan(values)
    at, values = at[known], values[known]
    if not len(at):
        return np.full(columns, np.nan)
    centres = (np.arange(columns) + 0.5) * width
    highest = np.interp(centres, at, values, right=np.nan)
    place = np.minimum((at / width).astype(int), columns - 1)
    top = np.full(columns, np.nan)
    np.fmax.at(top, place, values)
    # Where a column has readings, they count; where it has none, the line between its neighbours' does.
    return np.where(np.isnan(top), highest, top)


def _over(at: Floats, runs: Floats) -> Line:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of runs that are shorter than others
        return Line(
            at, np.nanmedian(runs, axis=0), np.nanmin(runs, axis=0), np.nanmax(runs, axis=0)
        )
