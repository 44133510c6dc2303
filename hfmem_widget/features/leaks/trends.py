"""Trend tests: growth of allocated memory between comparable points that has not stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from hfmem_widget.features.leaks.comparable_points import (
    A_SECOND,
    A_STEP,
    LEAST_SPANS,
    ComparablePoints,
    comparable_points,
)
from hfmem_widget.features.leaks.slope import (
    LEAST_RISE_AT_END,
    LEAST_WHERE_SLOWER,
    FittedLine,
    Floats,
    goes_on,
    theil_sen,
    thinned,
    without_size,
)
from hfmem_widget.session import Session, Span
from hfmem_widget.text import MIB

LEAST_STEPS = 12  # the least number of steps, or of readings of a loop without steps, for a trend
WARM_UP = 5  # steps that are left out, at most a sixth of all: states and workspaces are made there

MOST_WITHIN = 0.7  # the share of the growth from which it counts as the evaluations' own
BEYOND_TEETH = 1.5  # times the highest tooth before: what memory that fell must rise to be a leak
CLEARLY = (
    2.0  # times the spread over the time: that over the number of spans, where time explains growth
)
UNEVEN = 0.01  # the share of the growth that the spread over the number of spans must be
_DOUBT = 3.0  # spreads that a point may lie beside the line and still belong to it


class _Caution(NamedTuple):
    """The least growth of a leak, in bytes and in spreads about the line; z of an interval above zero."""

    bytes: float
    spreads: float
    z: float


_ON_A_DEVICE = _Caution(bytes=2 * MIB, spreads=3.0, z=1.96)
_ON_THE_HOST = _Caution(bytes=24 * MIB, spreads=6.0, z=2.58)
"""Private memory holds everything that Python and its libraries make, not only tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend(FittedLine):
    """Growth of allocated memory on a device between comparable points, in bytes; the slope is per `what`."""

    device: str  # its key
    what: str  # what lies between two points: "a step", "an evaluation", "a second"
    root: int  # the id of the outermost span around them
    first: float  # the number of the first point; seconds where `what` is "a second"
    last: float
    start: float  # the time of the first point, in seconds since the session began
    stop: float
    grown: float  # from `first` to `last`, along the line
    points: int  # how many there are


def trends_of(session: Session, within: Span | None = None) -> tuple[Trend, ...]:
    """Return where allocated memory grows and goes on growing, one trend per device and outermost span.

    The session may be running or finished; `within` is the only outermost span that is looked at.
    """
    best: dict[tuple[str, int], Trend] = {}
    of: dict[tuple[str, int], dict[str, ComparablePoints]] = {}
    for points in comparable_points(session, within):
        key = points.device, points.root
        of.setdefault(key, {})[points.what] = points
        trend = trend_in(points)
        if trend is None:
            continue
        if key not in best or _explains_better(trend, best[key], of[key], points):
            best[key] = trend
    return tuple(best.values())


def trend_in(points: ComparablePoints) -> Trend | None:
    """Return the growth in a series of comparable points, if there is some that goes on."""
    least = LEAST_STEPS if points.what in {A_STEP, A_SECOND} else LEAST_SPANS
    caution = _ON_A_DEVICE if ":" in points.device else _ON_THE_HOST
    if len(points) < least:
        return None
    warm_up = min(WARM_UP, len(points) // 6)
    points, least = points.of(slice(warm_up, None)), least - warm_up
    # A healthy series is dismissed early: its newest quarter has not risen.
    newest = points.allocated[-max(1, len(points) // 4) :]
    if newest.min() - points.allocated.min() < caution.bytes / 2:
        return None
    corrected = without_size(points.allocated, points.size)
    if corrected is None:
        return None
    x, y = thinned(points.number, corrected)
    # Something else may have gone on before the growth.
    for begin in sorted({0, len(y) // 4, len(y) // 2, _after_drop(y)}):
        if len(x) - begin < least or not _goes_beyond(y, begin):
            continue
        at_end = LEAST_WHERE_SLOWER if _slows_down(x, y, begin) else LEAST_RISE_AT_END
        if _grows(x[begin:], y[begin:], caution, at_end):
            since = max(_beginning(x, y, (begin + len(x)) // 2), _after_drop(y[: begin + 1]))
            return _trend(points, x[since:], y[since:])
    return None


def _after_drop(y: Floats) -> int:
    """Return the index after the biggest drop; 0 if no drop is half of the range."""
    if len(y) < 2 or -np.diff(y).min() < np.ptp(y) / 2:
        return 0
    return int(np.diff(y).argmin()) + 1


def _goes_beyond(y: Floats, begin: int) -> bool:
    """Return whether it is higher than ever, or has risen since an index further than it ever did before."""
    before = y[:begin]
    if not len(before) or y[-1] >= before.max():
        return True
    highest_tooth = float((before - np.minimum.accumulate(before)).max())
    return bool(y[-1] - y[begin] > BEYOND_TEETH * highest_tooth)


def _slows_down(x: Floats, y: Floats, begin: int) -> bool:
    """Return whether it rose faster before an index than since."""
    if x[begin] == x[0]:  # several readings may be of one instant
        return False
    before = (y[begin] - y[0]) / (x[begin] - x[0])
    return bool(before > (y[-1] - y[begin]) / (x[-1] - x[begin]))


def _grows(x: Floats, y: Floats, caution: _Caution, at_end: float) -> bool:
    if not goes_on(y, at_end):
        return False
    line = theil_sen(x, y, caution.z)
    grown = line.slope * (x[-1] - x[0])
    return line.low > 0 and grown >= max(caution.bytes, caution.spreads * line.spread)


def _beginning(x: Floats, y: Floats, sure: int) -> int:
    """Return the index where the growth began that is sure from an index on."""
    line = theil_sen(x[sure:], y[sure:])
    may_be_off = max(_DOUBT * line.spread, line.slope * (x[1] - x[0]))
    off = np.abs(y - line.intercept - line.slope * x)[: sure + 1] > may_be_off
    return int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0


def _trend(points: ComparablePoints, x: Floats, y: Floats) -> Trend:
    line = theil_sen(x, y)
    # A value of x may stand for several points, and lies in their middle.
    grown = points.of(points.number >= x[0] - (x[1] - x[0]) / 2)
    first, last = float(grown.number[0]), float(grown.number[-1])
    return Trend(
        device=points.device,
        what=points.what,
        root=points.root,
        first=first,
        last=last,
        start=float(grown.time[0]),
        stop=float(grown.time[-1]),
        grown=line.slope * (last - first),
        points=len(grown),
        **asdict(line),
    )


def _explains_better(
    trend: Trend, other: Trend, of: Mapping[str, ComparablePoints], points: ComparablePoints
) -> bool:
    """Return whether growth is made by such points rather than by those that are known, of all there are."""
    if trend.what == A_STEP:
        return trend.grown > other.grown
    if trend.what != A_SECOND:
        return _made(points, other.start) >= MOST_WITHIN * other.grown
    # Over the stretch that both have: one leaves out more at the beginning than the other.
    start, stop = max(trend.start, other.start), min(trend.stop, other.stop)
    made = sum(_made(each, start, stop) for each in of.values() if each.is_outermost)
    least = MOST_WITHIN * trend.slope * (stop - start)
    return made < least or _goes_by_time(of[other.what], start)


def _made(points: ComparablePoints, start: float, stop: float = math.inf) -> float:
    """Return how many bytes were added within spans that ended in a stretch of time."""
    return float(np.nansum(points.within[(points.time >= start) & (points.time <= stop)]))


def _goes_by_time(points: ComparablePoints, start: float) -> bool:
    """Return whether growth since a moment is even over the time, and uneven over the spans."""
    points = points.of(slice(int(np.searchsorted(points.time, start)), None))
    if len(points) < LEAST_SPANS:
        return False
    lines = [theil_sen(*thinned(x, points.allocated)) for x in (points.number, points.time)]
    by_number, by_time = (line.spread for line in lines)
    return by_number > max(CLEARLY * by_time, UNEVEN * np.ptp(points.allocated))
