"""One series over one stretch of time, in few points that keep every extreme that a screen could show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.session import Timeline

Points = list[tuple[float, float]]
"""Seconds since the stretch began, and bytes. NaN breaks the line."""

Gap = tuple[float, float]

LEAST_SAMPLES = 5
"""Samples below which no line is drawn."""


def curve(part: Timeline, column: int, start: float, stop: float, *, columns: int) -> Points:
    """Return a series as points: the lowest and the highest value of each of so many equal columns stay."""
    seconds = part.time.clip(start, stop) - start
    return joined(
        [
            (float(seconds[row]), float((part.high if is_high else part.low)[row, column]))
            for row, is_high in run
        ]
        for run in chosen_rows(part, column, start, stop, columns=columns)
    )


def joined(runs: Iterable[Points]) -> Points:
    """Return runs as one line with breaks."""
    points: Points = []
    for run in runs:
        if points:
            points.append(((points[-1][0] + run[0][0]) / 2, math.nan))
        points += run
    return points


def chosen_rows(
    part: Timeline, column: int, start: float, stop: float, *, columns: int
) -> list[list[tuple[int, bool]]]:
    """Return which rows a series is drawn by, and whether by their high, for each of its unbroken runs."""
    if column >= part.width:
        return []
    low, high = part.low[:, column], part.high[:, column]
    time = part.time.clip(start, stop)
    pixel = np.minimum((time - start) / max(stop - start, 1e-9) * columns, columns - 1).astype(int)
    return [
        list(_extremes(rows, pixel[rows], low, high))
        for rows in _stretches(part, ~np.isnan(high), visible_gaps(part, start, stop, columns))
    ]


def runs_of(points: Points) -> list[Points]:
    """Return the points between breaks."""
    stretches = groupby(points, key=lambda point: math.isnan(point[1]))
    return [list(run) for is_break, run in stretches if not is_break]


def grounded(run: Points) -> Points:
    """Return a run that begins and ends at zero."""
    return [(run[0][0], 0.0), *run, (run[-1][0], 0.0)]


def visible_gaps(part: Timeline, start: float, stop: float, columns: int) -> list[Gap]:
    """Return the gaps wide enough to be seen, cut to the stretch."""
    least = (stop - start) / columns
    cut = ((max(start, begin), min(stop, end)) for begin, end in part.gaps)
    return [gap for gap in cut if gap[1] - gap[0] > least]


def _stretches(
    timeline: Timeline, is_known: NDArray[np.bool_], gaps: list[Gap]
) -> list[NDArray[np.intp]]:
    """Return the rows of each unbroken run: no gap and no missing value within it."""
    broken = np.zeros(len(is_known) + 1, dtype=int)
    for gap_start, _ in gaps:
        broken[timeline.time.searchsorted(gap_start, side="right")] += 1
    run = np.cumsum(broken[:-1] + ~is_known)
    rows = np.flatnonzero(is_known)
    return [part for part in np.split(rows, np.flatnonzero(np.diff(run[rows])) + 1) if len(part)]


def _extremes(
    rows: NDArray[np.intp],
    pixel: NDArray[np.intp],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> Iterator[tuple[int, bool]]:
    """Yield, in order of time, which rows to draw and whether by their low or their high."""
    for group in np.split(rows, np.flatnonzero(np.diff(pixel)) + 1):
        lowest, highest = int(group[low[group].argmin()]), int(group[high[group].argmax()])
        chosen = {(lowest, False), (highest, True)}
        # A line reaches from its first reading to its last, whatever the extremes in between.
        chosen |= {(int(row), True) for row in group if row in (rows[0], rows[-1])}
        for row, is_high in sorted(chosen):
            if is_high and (row, False) in chosen and low[row] == high[row]:
                continue
            yield row, is_high
