"""Findings and guides for memory that keeps growing: between comparable points, and of data workers."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from hfmem_widget.analysis.facts import end_of, label_of
from hfmem_widget.analysis.parts import known_of
from hfmem_widget.features.leaks.trends import A_SECOND, A_STEP, Floats, Trend, trends_of
from hfmem_widget.session import Device, Finding, Guide, Session, Span
from hfmem_widget.session.steps import MOST_GROUPS
from hfmem_widget.text import (
    KIB,
    MIB,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    ordinal,
    unit_for,
)
from hfmem_widget.text import number as in_units

LAST_STEPS = 32  # the next steps are assumed to need as much as the highest of these
# A device that is full after more than this many times the points so far is not mentioned
_FAR_OFF = 100


def growth(session: Session, span: Span) -> Iterator[Finding]:
    """Draw the trends within an outermost span, and yield a finding for each, and those of workers."""
    trends = trends_of(session, span) if span.parent is None else ()
    draw(session, span, trends)
    yield from (finding_of(session, span, trend) for trend in trends)
    yield from growing_workers(session, span)


def draw(session: Session, span: Span, trends: Iterable[Trend]) -> None:
    """Replace the guides of an outermost span's trends."""
    guides = [guide_of(trend) for trend in trends]
    stop = math.inf if span.stop is None else span.stop
    before = [
        guide
        for guide in session.guides
        if guide.kind == "trend" and span.start <= guide.start <= stop
    ]
    if guides == before:
        return
    # One by one: another thread may add its own meanwhile.
    session.guides.extend(guides)
    for guide in before:
        session.guides.remove(guide)


def finding_of(session: Session, span: Span, trend: Trend) -> Finding:
    """Return a trend as a finding."""
    number = round(trend.first)
    beginnings = {A_SECOND: format_duration(trend.start), A_STEP: f"step {number}"}
    since = beginnings.get(trend.what, f"the {ordinal(number)}")
    title = (
        f"{_label(session, trend.device)} grows by {_per_point(trend.slope)} {trend.what}{_range(trend)} "
        f"since {since}: {format_bytes(trend.grown)} so far"
    )
    left = _left(session, trend.device) / trend.slope
    # Code that an error has ended adds nothing more; it may have been full already.
    if left < _FAR_OFF * (trend.last - trend.first) and not span.outcome.startswith("raised"):
        unit = {A_SECOND: "seconds", A_STEP: "steps"}.get(trend.what, "more")
        title += f", full in about {format_count(float(f'{left:.2g}'))} {unit}"
    return Finding(
        kind="leak",
        severity="critical" if left < trend.last - trend.first else "warn",
        title=f"{title}.",
        evidence={
            **{name: getattr(trend, name) for name in ("device", "what", "first", "last")},
            **{name: round(getattr(trend, name)) for name in ("slope", "low", "high", "grown")},
            "moments": trend.points,
            "left": left,
        },
        advice=("%memholders lists what holds it.",),
        span_id=span.id,
    )


def guide_of(trend: Trend) -> Guide:
    """Return the chart's line for a trend, with its 95 % band in bytes."""
    reach = (trend.high - trend.low) / 2 * (trend.last - trend.first) / 2
    return Guide(
        device=trend.device,
        kind="trend",
        label=f"+{_per_point(trend.slope)} {trend.what}",
        start=trend.start,
        stop=trend.stop,
        first=trend.intercept + trend.slope * trend.first,
        last=trend.intercept + trend.slope * trend.last,
        band=(reach, reach),
    )


def _label(session: Session, device: str) -> str:
    label = label_of(session, Device(device, ""), "allocated")
    label = "allocated memory" if label == "allocated" else label
    gpus = sum(":" in device.key for device in session.devices)
    where = f" on {device}" if ":" in device and gpus > 1 else ""
    return f"{label[0].upper()}{label[1:]}{where}"


def _range(trend: Trend) -> str:
    divisor, name = _unit_for(trend.high)
    low, high = in_units(trend.low, divisor), in_units(trend.high, divisor)
    return "" if low == high else f" (95 %: {low} to {high} {name})"


def _per_point(slope: float) -> str:
    divisor, name = _unit_for(slope)
    return f"{in_units(slope, divisor)} {name}"


def _unit_for(size: float) -> tuple[float, str]:
    return unit_for(size) if size >= 0.1 * MIB else (KIB, "KiB")


def _left(session: Session, device: str) -> float:
    """Return the bytes by which a device can still grow before a step no longer fits; infinite if unknown."""
    total = next((known.total for known in session.devices if known.key == device), math.nan)
    allocated, reserved, used = (
        session.latest(f"{device}/{metric}") for metric in ("allocated", "reserved", "device_used")
    )
    # The allocator uses its cache first; what malloc has free does not count as in use.
    cache = max(reserved - allocated, 0.0) if ":" in device else 0.0
    used = allocated if math.isnan(used) else used - cache
    left = total - used - _needed_meanwhile(session, device)
    if device == "cpu":
        now = session.last_sample
        mappable, cached = (session.value(now, f"cpu/{name}") for name in ("mappable", "cached"))
        left = min(left, mappable + known_of(cached, 0.0))  # NaN without a limit
    return math.inf if math.isnan(left) else max(left, 0.0)


def _needed_meanwhile(session: Session, device: str) -> float:
    """Return the largest difference in bytes between peak and end of one of the last steps."""
    columns = session.steps.columns
    if f"{device}/after" not in columns:
        return 0.0
    newest = session.folded_steps(MOST_GROUPS)[-LAST_STEPS:]
    above = newest[:, columns.index(f"{device}/peak")] - newest[:, columns.index(f"{device}/after")]
    return float(np.nan_to_num(above).max(initial=0.0))


WORKERS_LEAST = 256 * MIB  # the least growth of workers
WORKERS_SHARE = 0.4  # the same as a share of the bytes after the warm-up
WORKERS_SECONDS = 10.0  # the least duration of a stretch
WORKERS_READINGS = 8  # the least number of readings after the warm-up
WORKERS_FALL = 0.05  # share of the growth by which a quarter may lie below the quarter before it
# Seconds of warm-up, at most a fifth of the stretch: workers import, and fetch batches ahead.
WORKERS_WARM_UP = 10.0

WORKERS_ADVICE = (
    (
        "Keep samples in NumPy arrays, tensors or an Arrow table, not in lists of Python objects: a worker "
        "that reads an object changes its reference count, and so gets a copy of its own."
    ),
    "Use fewer workers (num_workers): each has its own copy.",
    "Leave persistent_workers off: workers then start anew, without copies, at every epoch.",
)


def growing_workers(session: Session, span: Span) -> Iterator[Finding]:
    """Yield a finding if a constant number of workers kept growing within an outermost span."""
    children, data_workers = session.index("cpu/children"), session.index("cpu/data_workers")
    if session.ranks is not None or children is None or data_workers is None:
        return
    rows = session.between(span.start, end_of(session, span), [children, data_workers])
    held, workers = rows.low[:, 0], rows.high[:, 1]
    # An unknown reading, or a row in which the number changed, counts as no workers.
    workers = np.where(np.isfinite(held) & (workers == rows.low[:, 1]), workers, 0.0)
    stretches = np.split(np.arange(len(held)), np.flatnonzero(np.diff(workers)) + 1)
    grown = [
        (last - first, first, last, seconds, int(workers[stretch[0]]))
        for stretch in stretches
        if len(stretch) and workers[stretch[0]] > 0
        for first, last, seconds in _grown_workers(rows.time[stretch], held[stretch])
    ]
    for more, first, last, seconds, count in sorted(grown)[-1:]:
        title = (
            f"{format_counted(count, 'DataLoader worker')} grew from {format_bytes(first)} to "
            f"{format_bytes(last)} within {format_duration(seconds)}"
        )
        evidence = {"device": "cpu", "workers": count, "seconds": seconds, "grown": round(more)}
        evidence |= {"first": round(first), "last": round(last)}
        yield Finding("workers", "warn", title, evidence, WORKERS_ADVICE, span.id)


def _grown_workers(time: Floats, held: Floats) -> Iterator[tuple[float, float, float]]:
    """Yield the bytes after the warm-up and at the end, and the seconds between, if workers grew."""
    seconds = float(time[-1] - time[0])
    warm = time >= time[0] + min(WORKERS_WARM_UP, seconds / 5)
    if seconds < WORKERS_SECONDS or warm.sum() < WORKERS_READINGS:
        return
    first = float(held[warm][0])
    levels = [first, *(float(np.median(quarter)) for quarter in np.array_split(held[warm], 4))]
    grown = levels[-1] - first
    if (
        grown >= max(WORKERS_LEAST, WORKERS_SHARE * first)
        and min(np.diff(levels)) >= -WORKERS_FALL * grown
    ):
        yield first, levels[-1], float(time[-1] - time[warm][0])
