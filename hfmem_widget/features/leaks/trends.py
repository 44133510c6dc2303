"""Trend tests: growth of allocated memory between comparable points that has not stopped."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.analysis.facts import end_of
from hfmem_widget.session import Session, Span
from hfmem_widget.session.model import SpanKind
from hfmem_widget.session.steps import MOST_GROUPS
from hfmem_widget.text import MIB, plain

Floats = NDArray[np.float64]

MOST_POINTS = 120  # points that a line is fitted to: all pairs of them are compared, which is 7,140

Z_95 = 1.96
_SPREAD = 1.4826  # the standard deviation of normal noise, in median absolute deviations

# The least rise of a quarter of the readings, as a share of even growth:
LEAST_RISE = 0.2
# Of the last quarter, which is lower on a plateau and in a cache that fills up
LEAST_RISE_AT_END = 0.7
LEAST_LASTING = 0.1  # of the level below which memory never falls again

LEAST_UNEVEN = 0.1  # share of all changes of size that must differ from their median
# Share of lasting growth in the two biggest rises, such as a model and a workspace
MOST_IN_TWO = 0.55

RECURRING: Mapping[SpanKind, str] = {
    "train": "a training",
    "epoch": "an epoch",
    "evaluate": "an evaluation",
    "predict": "a prediction",
    "save": "a save",
    "forward": "a forward pass",
    "block": "a block",
}
"""Kinds of recurring spans besides steps, with their names; what is loaded is meant to stay."""

A_STEP = "a step"
A_SECOND = "a second"

LEAST_SPANS = 6  # the least number of evaluations and other longer spans for a trend
MOST_RUNS = 8  # the newest series of points that are tested
MOST_SPANS = 400  # spans of a series that are tested

_ARRAYS = ("number", "time", "allocated", "size", "within")

LEAST_STEPS = 12  # the least number of steps, or of readings of a loop without steps, for a trend
WARM_UP = 5  # steps that are left out, at most a sixth of all: states and workspaces are made there

MOST_WITHIN = 0.7  # share of the growth within evaluations from which on they explain it
# Times the highest earlier tooth by which memory that fell must rise to be a leak
BEYOND_TEETH = 1.5
# Time explains growth if the spread over the number of spans is this many times that over the time,
CLEARLY = 2.0
UNEVEN = 0.01  # and this share of the growth.
_DOUBT = 3.0  # spreads by which a point of the line may lie beside it


@dataclass(frozen=True, slots=True)
class FittedLine:
    """A line through readings."""

    slope: float
    low: float  # bounds of its 95 % interval
    high: float
    intercept: float  # its value at x = 0
    spread: float  # robust standard deviation of the readings about it


def theil_sen(x: Floats, y: Floats, z: float = Z_95) -> FittedLine:
    """Return the line with the median slope of all pairs of at least 3 readings, with Sen's interval.

    It is `z` standard deviations wide at each side, by the variance of Kendall's S, enlarged by the
    autocorrelation of the residuals (Hamed and Rao, 1998): neighbouring steps are not independent.
    """
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    slopes = (y[second] - y[first])[run > 0] / run[run > 0]
    slope = float(np.median(slopes))
    intercept = float(np.median(y - slope * x))
    residuals = y - slope * x - intercept
    n, pairs = len(x), len(slopes)
    variance = n * (n - 1) * (2 * n + 5) / 18 * _for_autocorrelation(residuals)
    reach = z * math.sqrt(variance)
    low, high = max(0, int((pairs - reach) / 2)), min(pairs - 1, math.ceil((pairs + reach) / 2))
    ordered = np.partition(slopes, (low, high))
    spread = _SPREAD * float(np.median(np.abs(residuals)))
    return FittedLine(slope, float(ordered[low]), float(ordered[high]), intercept, spread)


def goes_on(x: Floats, y: Floats) -> bool:
    """Return whether 4 readings or more rise steadily: not in a few steps, to a plateau, or in teeth."""
    even = np.linspace(x[0], x[-1], len(x))
    levels = np.array([np.median(quarter) for quarter in np.array_split(np.interp(even, x, y), 4)])
    rises = np.diff(levels)
    share = rises.sum() / 3
    if share <= 0 or rises.min() < LEAST_RISE * share or rises[-1] < LEAST_RISE_AT_END * share:
        return False
    # The level below which later readings never fall; a rise between two readings is one step.
    lasting = np.minimum.accumulate(y[::-1])[::-1]
    grown = lasting[-1] - lasting[0]
    steps = np.diff(lasting)
    quarters = np.linspace(x[0], x[-1], 5) + 1e-9 * (x[-1] - x[0])
    ends = lasting[np.searchsorted(x, quarters, side="right") - 1]
    if grown <= 0 or np.diff(ends).min() < LEAST_LASTING * grown / 4:
        return False
    return bool(np.sort(steps)[-2:].sum() <= MOST_IN_TWO * grown)


def thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return at most `MOST_POINTS` points: medians of groups of neighbours of equal size."""
    size = -(-len(x) // MOST_POINTS)
    if size <= 1:
        return x, y
    # The oldest points are dropped if they do not fill a group.
    kept = slice(len(x) % size, None)
    thin_x, thin_y = (np.median(values[kept].reshape(-1, size), axis=1) for values in (x, y))
    return thin_x, thin_y


def without_size(y: Floats, size: Floats) -> Floats | None:
    """Return readings without the effect of a size, such as a batch's tokens; None if it rises too evenly."""
    if np.isnan(size).any() or np.ptp(size) == 0:
        return y
    by, changes = np.diff(size), np.diff(y)
    uneven = by - np.median(by)
    weights = np.abs(uneven)
    if weights.sum() < LEAST_UNEVEN * np.abs(by).sum():
        return None
    changed = weights > 0
    ratios = (changes - np.median(changes))[changed] / uneven[changed]
    order = np.argsort(ratios)
    share = weights[changed][order].cumsum()
    per_unit = max(float(ratios[order][np.searchsorted(share, share[-1] / 2)]), 0.0)
    corrected: Floats = y - per_unit * (size - np.median(size))
    return corrected


def _for_autocorrelation(residuals: Floats) -> float:
    """Return the factor by which autocorrelation enlarges the variance of Kendall's S; at least 1."""
    n = len(residuals)
    ranks = np.argsort(np.argsort(residuals)).astype(float)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if power == 0 or np.ptp(residuals) == 0:
        return 1.0
    most = max(1, n // 4)
    lags = np.arange(1, most + 1)
    alike = np.correlate(ranks, ranks, "full")[n : n + most] / power
    alike[np.abs(alike) < Z_95 / math.sqrt(n)] = 0.0
    weights = (n - lags) * (n - lags - 1) * (n - lags - 2)
    return max(1.0, 1 + 2 / (n * (n - 1) * (n - 2)) * float(weights @ alike))


@dataclass(frozen=True, slots=True)
class ComparablePoints:
    """Readings of allocated memory on a device at the same edge of similar spans, in order of time."""

    device: str  # its key
    what: str  # what lies between two points: "a step", "an evaluation", "a second"
    number: Floats  # of the step or evaluation; `time` where the points have no number
    time: Floats  # seconds since the session began
    allocated: Floats  # bytes
    size: Floats  # tokens in use; NaN if unknown
    within: Floats  # bytes added between the beginning and the end of each span; NaN if unknown
    is_outermost: bool = True  # False if the spans are within other recurring spans

    def __len__(self) -> int:
        return len(self.number)

    def of(self, which: slice | Floats) -> ComparablePoints:
        """Return the points of a slice or a mask."""
        return replace(self, **{name: getattr(self, name)[which] for name in _ARRAYS})


def comparable_points(session: Session, root: Span) -> Iterator[ComparablePoints]:
    """Yield every series of comparable points with a reading, of an outermost span."""
    stop = math.inf if root.stop is None else root.stop
    of_steps = [*_steps(session, root.start, stop)]
    others = () if of_steps else _optimizer_steps(session, root)
    # The steps already show the growth of an epoch.
    kinds = RECURRING.keys() - {"epoch"} if of_steps else RECURRING.keys()
    for points in (*of_steps, *_spans(session, root.start, stop, kinds), *others):
        yield points.of(~np.isnan(points.allocated))


def _steps(session: Session, start: float, stop: float) -> Iterator[ComparablePoints]:
    """Yield the steps of a stretch of time; a new series begins where their numbers do not increase."""
    table = session.folded_steps(MOST_GROUPS, start)
    columns = session.steps.columns
    # A device that appeared meanwhile has no columns in the table that was just copied.
    column = {name: at for at, name in enumerate(columns[: table.shape[1]])}
    if not len(table):
        return
    table = table[table[:, column["stop"]] <= stop]
    first, last = table[:, column["first"]], table[:, column["last"]]
    begins = np.flatnonzero(first[1:] <= last[:-1]) + 1
    for rows in np.split(table, begins)[-MOST_RUNS:]:
        for device in session.devices if len(rows) else ():
            after = column.get(f"{device.key}/after")
            if after is None:
                continue
            count = rows[:, column["last"]] - rows[:, column["first"]] + 1
            yield ComparablePoints(
                device=device.key,
                what=A_STEP,
                number=rows[:, column["last"]],
                time=rows[:, column["stop"]],
                allocated=rows[:, after],
                size=rows[:, column["tokens"]] / count,
                within=np.full(len(rows), np.nan),
            )


def _spans(
    session: Session, start: float, stop: float, kinds: Collection[SpanKind]
) -> Iterator[ComparablePoints]:
    """Yield the ends of recurring spans of one kind and name; of forward passes, the beginnings."""
    spans = {span.id: span for span in session.spans}
    groups: dict[tuple[SpanKind, str], list[Span]] = {}
    for span in spans.values():
        if span.kind not in kinds or span.parent is None or span.after is None:
            continue
        if span.start < start or (span.stop or 0.0) > stop:
            continue
        if span.kind == "forward" and (
            # Predictions are often collected on purpose.
            span.name or any(outer.kind == "step" for outer in _around(span, spans))
        ):
            continue
        groups.setdefault((span.kind, span.name), []).append(span)
    recurring = {alike for alike, group in groups.items() if len(group) >= LEAST_SPANS}
    for (kind, label), group in list(groups.items())[-MOST_RUNS:]:
        every = -(-len(group) // MOST_SPANS)  # of a long run every n-th, the newest included
        chosen = group[::-every][::-1]
        outer = _around(group[-1], spans)
        is_nested = any((span.kind, span.name) in recurring for span in outer)
        for device in session.devices:
            key = f"{device.key}/allocated"
            before = np.array([session.value(span.before, key) for span in chosen])
            after = np.array([session.value(span.after or span.before, key) for span in chosen])
            yield ComparablePoints(
                device=device.key,
                what=f"per \u201c{plain(label, 40)}\u201d" if label else RECURRING[kind],
                number=np.arange(len(group), 0.0, -every)[::-1],
                time=np.array([span.stop for span in chosen], dtype=float),
                # While it runs, a forward pass makes what the backward pass needs.
                allocated=before if kind == "forward" else after,
                size=np.array([span.counts.get("tokens", math.nan) for span in chosen]),
                within=(after - before) * every,  # assumes that skipped spans left as much
                is_outermost=not is_nested,
            )


def _optimizer_steps(session: Session, root: Span) -> Iterator[ComparablePoints]:
    """Yield allocated memory without gradients after an optimizer's steps, for loops without step spans.

    Unattributed memory is measured after each step of an optimizer, and the reading stands until the next.
    """
    for device in session.devices:
        counted = ("weights", "buffers", "optimizer", "python", "arrow")
        metrics = ("unattributed", "before", "libraries", *counted)
        first, *others = (session.index(f"{device.key}/{metric}") for metric in metrics)
        if first is None:
            continue
        columns = [first, *(column for column in others if column is not None)]
        rows = session.between(root.start, end_of(session, root), columns)
        allocated = rows.low[:, 0] + np.nan_to_num(rows.low[:, 1:]).sum(axis=1)
        unknown = np.full(len(allocated), np.nan)
        yield ComparablePoints(
            device.key, A_SECOND, rows.time, rows.time, allocated, unknown, unknown
        )


def _around(span: Span, spans: Mapping[int, Span]) -> Iterator[Span]:
    """Yield the kept spans around a span, the innermost first."""
    outer = spans.get(span.parent or 0)
    while outer is not None:
        yield outer
        outer = spans.get(outer.parent or 0)


class _Caution(NamedTuple):
    bytes: float  # the least growth of a leak
    spreads: float  # the same in spreads about the line
    z: float  # half-width in standard deviations of the slope's interval, which must lie above zero


_ON_A_DEVICE = _Caution(bytes=2 * MIB, spreads=3.0, z=1.96)
# Private memory includes everything that Python and its libraries allocate, not only tensors.
_ON_THE_HOST = _Caution(bytes=24 * MIB, spreads=6.0, z=2.58)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend(FittedLine):
    """Growth of allocated memory on a device between comparable points, in bytes; the slope is per `what`."""

    device: str  # its key
    what: str  # what lies between two points: "a step", "an evaluation", "a second"
    first: float  # the number of the first point; seconds where `what` is "a second"
    last: float
    start: float  # the time of the first point, in seconds since the session began
    stop: float
    grown: float  # from `first` to `last`, along the line
    points: int  # how many there are


def trends_of(session: Session, root: Span) -> tuple[Trend, ...]:
    """Return the trends of allocated memory that keeps growing within an outermost span, one per device."""
    best: dict[str, Trend] = {}
    series: dict[str, dict[str, ComparablePoints]] = {}
    for points in comparable_points(session, root):
        key = points.device
        series.setdefault(key, {})[points.what] = points
        trend = trend_in(points)
        if trend and (key not in best or _explains_better(trend, best[key], series[key])):
            best[key] = trend
    return tuple(best.values())


def trend_in(points: ComparablePoints) -> Trend | None:
    """Return the trend of a series of comparable points, or None if it does not keep growing."""
    least = LEAST_STEPS if points.what in {A_STEP, A_SECOND} else LEAST_SPANS
    caution = _ON_A_DEVICE if ":" in points.device else _ON_THE_HOST
    if len(points) < least:
        return None
    warm_up = min(WARM_UP, len(points) // 6)
    points, least = points.of(slice(warm_up, None)), least - warm_up
    # Most healthy series end here: their newest quarter has not risen.
    newest = points.allocated[-max(1, len(points) // 4) :]
    if newest.min() - points.allocated.min() < caution.bytes / 2:
        return None
    corrected = without_size(points.allocated, points.size)
    if corrected is None:
        return None
    x, y = thinned(points.number, corrected)
    # The growth may have begun later than the series.
    for begin in sorted({0, len(y) // 4, len(y) // 2, _after_drop(y)}):
        if len(x) - begin < least or not _goes_beyond(y, begin):
            continue
        if _grows(x[begin:], y[begin:], caution):
            since = _beginning(x, y, (begin + len(x)) // 2)
            return _trend(points, x[since:], y[since:])
    return None


def _after_drop(y: Floats) -> int:
    """Return the index after the biggest drop; 0 if no drop is half of the range."""
    if len(y) < 2 or -np.diff(y).min() < np.ptp(y) / 2:
        return 0
    return int(np.diff(y).argmin()) + 1


def _goes_beyond(y: Floats, begin: int) -> bool:
    """Return whether the last value is the highest, or rose since `begin` further than ever before it."""
    before = y[:begin]
    if not len(before) or y[-1] >= before.max():
        return True
    highest_tooth = float((before - np.minimum.accumulate(before)).max())
    return bool(y[-1] - y[begin] > BEYOND_TEETH * highest_tooth)


def _grows(x: Floats, y: Floats, caution: _Caution) -> bool:
    if not goes_on(x, y):
        return False
    line = theil_sen(x, y, caution.z)
    grown = line.slope * (x[-1] - x[0])
    return line.low > 0 and grown >= max(caution.bytes, caution.spreads * line.spread)


def _beginning(x: Floats, y: Floats, sure: int) -> int:
    """Return the index where the growth began that is certain from index `sure` on."""
    line = theil_sen(x[sure:], y[sure:])
    may_be_off = max(_DOUBT * line.spread, line.slope * (x[1] - x[0]))
    off = np.abs(y - line.intercept - line.slope * x)[: sure + 1] > may_be_off
    return int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0


def _trend(points: ComparablePoints, x: Floats, y: Floats) -> Trend:
    line = theil_sen(x, y)
    # A value of x may be the median of several points.
    grown = points.of(points.number >= x[0] - (x[1] - x[0]) / 2)
    first, last = float(grown.number[0]), float(grown.number[-1])
    return Trend(
        device=points.device,
        what=points.what,
        first=first,
        last=last,
        start=float(grown.time[0]),
        stop=float(grown.time[-1]),
        grown=line.slope * (last - first),
        points=len(grown),
        **asdict(line),
    )


def _explains_better(trend: Trend, other: Trend, series: Mapping[str, ComparablePoints]) -> bool:
    """Return whether a trend explains a device's growth better than the `other`; `series` are by `what`."""
    if trend.what == A_STEP:
        return trend.grown > other.grown
    if trend.what != A_SECOND:
        return _made(series[trend.what], other.start) >= MOST_WITHIN * other.grown
    # Over the stretch that both cover: they may begin at different times.
    start, stop = max(trend.start, other.start), min(trend.stop, other.stop)
    made = sum(_made(each, start, stop) for each in series.values() if each.is_outermost)
    least = MOST_WITHIN * trend.slope * (stop - start)
    return made < least or _goes_by_time(series[other.what], start)


def _made(points: ComparablePoints, start: float, stop: float = math.inf) -> float:
    """Return the bytes added within the spans that ended between `start` and `stop`."""
    return float(np.nansum(points.within[(points.time >= start) & (points.time <= stop)]))


def _goes_by_time(points: ComparablePoints, start: float) -> bool:
    """Return whether growth since `start` is even over the time, and uneven over the spans."""
    points = points.of(slice(int(np.searchsorted(points.time, start)), None))
    if len(points) < LEAST_SPANS:
        return False
    lines = [theil_sen(*thinned(x, points.allocated)) for x in (points.number, points.time)]
    by_number, by_time = (line.spread for line in lines)
    return by_number > max(CLEARLY * by_time, UNEVEN * np.ptp(points.allocated))
