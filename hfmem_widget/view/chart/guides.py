"""Guides as they are drawn over a scene: cut to its time, budgets only near the data."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hfmem_widget.session import Finding, Guide, Session
from hfmem_widget.text import plain

MOST = 8  # lines, and marks
NEAR = 0.6  # share of a budget that the data must reach: the axis shall not grow for it alone


@dataclass(frozen=True, slots=True)
class DrawnGuide(Guide):
    """A guide in seconds of the scene, within its time."""

    is_crossed: bool = False  # the data rise above a budget
    crossed_at: float | None = None  # the first time, where it is known and in view


def guides_in(
    session: Session,
    device: str,
    view: tuple[float, float],
    highest: float,
    others: Iterable[str] = (),
) -> tuple[DrawnGuide, ...]:
    """Return the lines and the newest marks over a device's chart; `highest` bytes were allocated on it."""
    own = [guide for guide in session.guides if guide.device == device]
    lines = [guide for guide in own if guide.kind != "oom"][:MOST]
    drawn = (_drawn(guide, view, highest, session.findings) for guide in lines)
    named = [
        replace(guide, label=f"{other} {guide.label}")
        for other in others
        for guide in session.guides
        if guide.device == other
    ]
    marks = (
        DrawnGuide(device, "oom", plain(guide.label), at, at, guide.last, guide.last)
        for guides in (own, named)
        for guide in [each for each in guides if _is_mark(each, view)][-MOST:]
        for at in [guide.start - view[0]]
    )
    return (*(line for line in drawn if line is not None), *marks)


def _is_mark(guide: Guide, view: tuple[float, float]) -> bool:
    is_in_view = view[0] <= guide.start <= view[1]
    return guide.kind == "oom" and is_in_view and math.isfinite(guide.last)


def _crossing_of(guide: Guide, findings: Sequence[Finding]) -> float:
    """Return when a budget was first crossed, in seconds of the session; NaN where no finding says when."""
    times = [
        float(time)
        for finding in findings
        if finding.kind == "budget"
        and finding.evidence.get("device", guide.device) == guide.device
        and isinstance(time := finding.evidence.get("time"), int | float)
        and math.isfinite(time)
    ]
    return min(times, default=math.nan)


def _drawn(
    guide: Guide, view: tuple[float, float], highest: float, findings: Sequence[Finding]
) -> DrawnGuide | None:
    start, stop = max(guide.start, view[0]), min(guide.stop, view[1])
    ends = (guide.first, guide.last, *guide.band)
    if not start < stop or not all(map(math.isfinite, ends)):
        return None
    is_budget = guide.kind == "budget"
    if is_budget and highest < NEAR * guide.last:
        return None
    crossed = _crossing_of(guide, findings) if is_budget else math.nan
    length = guide.stop - guide.start

    def at(time: float, ends: tuple[float, float]) -> float:
        share = 0.0 if math.isinf(length) else (time - guide.start) / length
        return ends[0] + share * (ends[1] - ends[0])

    heights = (guide.first, guide.last)
    return DrawnGuide(
        guide.device,
        guide.kind,
        plain(guide.label),
        start - view[0],
        stop - view[0],
        max(0.0, at(start, heights)),
        max(0.0, at(stop, heights)),
        (at(start, guide.band), at(stop, guide.band)),
        is_crossed=is_budget and highest > guide.last,
        crossed_at=crossed - view[0] if start <= crossed <= stop else None,
    )
