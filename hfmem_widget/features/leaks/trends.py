"""Growth of allocated memory from one like moment to the next, that has not stopped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hfmem_widget.features.leaks.moments import A_SECOND, A_STEP, Moments, moments_of
from hfmem_widget.features.leaks.slope import (
    LEAST_RISE_AT_END,
    LEAST_WHERE_SLOWER,
    Floats,
    goes_on,
    theil_sen,
    thinned,
    without_size,
)
from hfmem_widget.session import Session, Span
from hfmem_widget.text import MIB

LEAST_STEPS = 12
"""Steps, and readings of a loop that has none, that a trend is told from."""

LEAST_SPANS = 6
"""The same of evaluations and other longer spans."""

WARM_UP = 5
"""Steps left out at the beginning, or as many as a sixth of them: states and workspaces are made there."""

MOST_WITHIN = 0.7
"""Of growth: from what share on it is told as the evaluations', and not as that of the steps between them."""

BEYOND_TEETH = 1.5
"""Times the height of the highest tooth before: by how much what has fallen must rise, to be a leak."""

_DOUBT = 3.0
"""How many spreads a moment may lie beside the line and still belong to it."""


@dataclass(frozen=True, slots=True)
class _Caution:
    """What it takes to speak of a leak.

    Attributes
    ----------
    bytes : float
        The least growth.
    spreads : float
        The least growth, in standard deviations of what lies about the line.
    z : float
        Of the interval that must lie above nothing.
    """

    bytes: float
    spreads: float
    z: float


_ON_A_DEVICE = _Caution(bytes=2 * MIB, spreads=3.0, z=1.96)
_ON_THE_HOST = _Caution(bytes=24 * MIB, spreads=6.0, z=2.58)
"""The heap holds everything that Python and its libraries make, not tensors alone."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Growth of what is allocated on a device, from one like moment to the next.

    Attributes
    ----------
    device : str
        The device's key.
    what : str
        What lies between two moments: "a step", "an evaluation", "a second".
    root : int
        The id of the outermost span that it lies in.
    first, last : float
        Numbers of the first and the last moment of it; seconds where `what` is "a second".
    start, stop : float
        The same in seconds since the session began.
    slope, low, high : float
        Bytes per `what`, and the bounds of 95 %.
    intercept : float
        Bytes of the line at number 0.
    grown : float
        Bytes from `first` to `last`, along the line.
    spread : float
        Standard deviation of the moments about the line, in bytes.
    moments : int
        How many there are.
    """

    device: str
    what: str
    root: int
    first: float
    last: float
    start: float
    stop: float
    slope: float
    low: float
    high: float
    intercept: float
    grown: float
    spread: float
    moments: int


def trends_of(session: Session, within: Span | None = None) -> tuple[Trend, ...]:
    """Return where allocated memory grows and goes on growing, one trend for each device and outermost span.

    Parameters
    ----------
    session : Session
        Running or finished.
    within : Span, optional
        Only in this outermost span.
    """
    told: dict[tuple[str, int], tuple[Trend, Moments]] = {}
    for moments in moments_of(session, within):
        trend = trend_in(moments)
        if trend is None:
            continue
        key = trend.device, trend.root
        if key not in told or _tells_better(trend, moments, told[key][0]):
            told[key] = trend, moments
    return tuple(trend for trend, _ in told.values())


def trend_in(moments: Moments) -> Trend | None:
    """Return the growth in a row of like moments; None if there is none that goes on."""
    is_step = moments.what in {A_STEP, A_SECOND}
    least = LEAST_STEPS if is_step else LEAST_SPANS
    caution = _ON_A_DEVICE if ":" in moments.device else _ON_THE_HOST
    if len(moments) < least:
        return None
    warm_up = min(WARM_UP, len(moments) // 6)
    moments, least = moments.of(slice(warm_up, None)), least - warm_up
    if _raised(moments.allocated) < caution.bytes / 2:
        return None
    corrected = without_size(moments.allocated, moments.size)
    if corrected is None:
        return None
    x, y = thinned(moments.number, corrected)
    for begin in _beginnings(y):
        if len(x) - begin < least or not _goes_beyond(y, begin):
            continue
        at_end = LEAST_WHERE_SLOWER if _slows_down(x, y, begin) else LEAST_RISE_AT_END
        if _grows(x[begin:], y[begin:], caution, at_end):
            since = max(_beginning(x, y, (begin + len(x)) // 2), _after_drop(y[: begin + 1]))
            return _trend(moments, x[since:], y[since:])
    return None


def _raised(allocated: Floats) -> float:
    """Return how far the lowest of the newest quarter lies above all: quickly told, for the healthy."""
    return float(allocated[-max(1, len(allocated) // 4) :].min() - allocated.min())


def _beginnings(y: Floats) -> tuple[int, ...]:
    """Return from which moments on growth is looked for: something else may have gone on before."""
    return tuple(sorted({0, len(y) // 4, len(y) // 2, _after_drop(y)}))


def _after_drop(y: Floats) -> int:
    """Return the moment after the biggest drop; 0 if it never falls by much, seen from how far it ranges."""
    if len(y) < 2 or -np.diff(y).min() < np.ptp(y) / 2:
        return 0
    return int(np.diff(y).argmin()) + 1


def _goes_beyond(y: Floats, begin: int) -> bool:
    """Return whether it is higher than ever, or rose from some moment on further than it ever did before."""
    before = y[:begin]
    if not len(before) or y[-1] >= before.max():
        return True
    highest_tooth = float((before - np.minimum.accumulate(before)).max())
    return bool(y[-1] - y[begin] > BEYOND_TEETH * highest_tooth)


def _slows_down(x: Floats, y: Floats, begin: int) -> bool:
    """Return whether it rose faster before some moment than since."""
    if x[begin] == x[0]:  # of readings, several may be of one instant
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
    """Return from which moment on the growth holds that goes on from some moment, of which it is sure."""
    line = theil_sen(x[sure:], y[sure:])
    may_be_off = max(_DOUBT * line.spread, line.slope * (x[1] - x[0]))
    off = np.abs(y - line.intercept - line.slope * x)[: sure + 1] > may_be_off
    return int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0


def _trend(moments: Moments, x: Floats, y: Floats) -> Trend:
    line = theil_sen(x, y)
    # A point may stand for several moments, and lies in their middle.
    belongs = moments.number >= x[0] - (x[1] - x[0]) / 2
    number, time = moments.number[belongs], moments.time[belongs]
    first, last = float(number[0]), float(number[-1])
    return Trend(
        device=moments.device,
        what=moments.what,
        root=moments.root,
        first=first,
        last=last,
        start=float(time[0]),
        stop=float(time[-1]),
        slope=line.slope,
        low=line.low,
        high=line.high,
        intercept=line.intercept,
        grown=line.slope * (last - first),
        spread=line.spread,
        moments=int(belongs.sum()),
    )


def _tells_better(trend: Trend, moments: Moments, known: Trend) -> bool:
    """Return whether growth is made within such spans, rather than by the steps that lie between them."""
    if trend.what in {A_STEP, A_SECOND}:
        return trend.grown > known.grown
    within = moments.within[moments.time >= known.start]
    return float(np.nansum(within)) >= MOST_WITHIN * known.grown
