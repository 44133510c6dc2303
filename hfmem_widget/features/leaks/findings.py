"""What to say of memory that grows from one like moment to the next, and does not stop growing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from hfmem_widget.features.leaks.moments import A_SECOND, A_STEP
from hfmem_widget.features.leaks.trends import Trend, trends_of
from hfmem_widget.session import Finding, Guide, Session, Span
from hfmem_widget.session.steps import MOST_GROUPS
from hfmem_widget.text import KIB, MIB, format_bytes, format_count, format_duration, unit_for
from hfmem_widget.text import number as in_units

LAST_STEPS = 32
"""Steps of which the most that one needs is taken for what the next ones need."""

_LEAST_IN_MIB = 0.1 * MIB

_FAR_OFF = 100
"""Times as many moments as there were: what is full only later is not told."""


def growth(session: Session, span: Span) -> Iterator[Finding | Guide]:
    """Yield what to say of growth that goes on within an outermost span, and the line of it."""
    trends = trends_of(session, span) if span.parent is None else ()
    draw(session, span, ())
    for trend in trends:
        yield finding_of(session, span, trend)
        yield guide_of(trend)


def draw(session: Session, span: Span, trends: Iterable[Trend]) -> None:
    """Put the lines of an outermost span's trends in the place of those it had before."""
    lines = [guide_of(trend) for trend in trends]
    stop = math.inf if span.stop is None else span.stop
    before = [
        one for one in session.guides if one.kind == "trend" and span.start <= one.start <= stop
    ]
    if lines == before:
        return
    # One by one: another thread may put in its own meanwhile.
    session.guides.extend(lines)
    for one in before:
        session.guides.remove(one)


def finding_of(session: Session, span: Span, trend: Trend) -> Finding:
    """Return what to say of a trend."""
    allocated = _label(session, trend.device)
    since = f"{format_duration(trend.start)}" if trend.what == A_SECOND else _since(trend)
    left = _left(session, trend.device) / trend.slope
    title = (
        f"{allocated} grows by {_per_moment(trend.slope)} {trend.what}{_range(trend)} since {since}: "
        f"{format_bytes(trend.grown)} so far"
    )
    unit = "seconds" if trend.what == A_SECOND else "steps" if trend.what == A_STEP else "more"
    is_soon = left < _FAR_OFF * (trend.last - trend.first)
    title += f", full in about {format_count(_two_digits(left))} {unit}." if is_soon else "."
    return Finding(
        kind="leak",
        severity="critical" if left < trend.last - trend.first else "warn",
        title=title,
        evidence={
            "device": trend.device,
            "what": trend.what,
            "first": trend.first,
            "last": trend.last,
            "slope": round(trend.slope),
            "low": round(trend.low),
            "high": round(trend.high),
            "grown": round(trend.grown),
            "moments": trend.moments,
            "left": left,
        },
        advice=("%memholders lists what holds it.",),
        span_id=span.id,
    )


def guide_of(trend: Trend) -> Guide:
    """Return a trend as a line over the chart, with the band of its 95 %."""
    reach = (trend.high - trend.low) / 2 * (trend.last - trend.first) / 2
    return Guide(
        device=trend.device,
        kind="trend",
        label=f"+{_per_moment(trend.slope)} {trend.what}",
        start=trend.start,
        stop=trend.stop,
        first=trend.intercept + trend.slope * trend.first,
        last=trend.intercept + trend.slope * trend.last,
        band=(reach, reach),
    )


def _label(session: Session, device: str) -> str:
    labels = (one.label for one in session.series if one.key == f"{device}/allocated")
    text = next(labels, "") or "allocated"
    return f"{text[0].upper()}{text[1:]}"


def _since(trend: Trend) -> str:
    first = f"{trend.first:.0f}"
    return f"step {first}" if trend.what == A_STEP else f"the {_ordinal(first)}"


def _ordinal(count: str) -> str:
    ending = {"1": "st", "2": "nd", "3": "rd"}.get(count[-1], "th")
    return count + ("th" if count[-2:-1] == "1" else ending)


def _range(trend: Trend) -> str:
    """Return the bounds where they read differently."""
    divisor, name = _unit_for(trend.high)
    low, high = in_units(trend.low, divisor), in_units(trend.high, divisor)
    return "" if low == high else f" (95 %: {low} to {high} {name})"


def _per_moment(slope: float) -> str:
    divisor, name = _unit_for(slope)
    return f"{in_units(slope, divisor)} {name}"


def _unit_for(size: float) -> tuple[float, str]:
    """Return the unit that suits what a moment adds, which may be little where there are many."""
    return unit_for(size) if size >= _LEAST_IN_MIB else (KIB, "KiB")


def _left(session: Session, device: str) -> float:
    """Return by how much a device may still grow until a step no longer fits; infinite if unknown."""
    total = next((one.total for one in session.devices if one.key == device), math.nan)
    now = {
        name: session.latest(f"{device}/{name}")
        for name in ("allocated", "reserved", "device_used")
    }
    # The allocator's cache is used first; what the heap has freed is not counted as in use.
    kept = max(now["reserved"] - now["allocated"], 0.0) if ":" in device else 0.0
    used = now["allocated"] if math.isnan(now["device_used"]) else now["device_used"] - kept
    left = total - used - _needed_meanwhile(session, device)
    return math.inf if math.isnan(left) else max(left, 0.0)


def _needed_meanwhile(session: Session, device: str) -> float:
    """Return the most that one of the last steps had at its peak, above what was there at its end."""
    columns = session.steps.columns
    if f"{device}/after" not in columns:
        return 0.0
    newest = session.folded_steps(MOST_GROUPS)[-LAST_STEPS:]
    above = newest[:, columns.index(f"{device}/peak")] - newest[:, columns.index(f"{device}/after")]
    return float(np.nan_to_num(above).max(initial=0.0))


def _two_digits(count: float) -> float:
    return float(f"{count:.2g}")
