"""Guides as they are drawn over a scene: cut to its time, budgets only near the data."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hfmem_widget.analysis.curve import Points
from hfmem_widget.session import Finding, Guide, Session
from hfmem_widget.text import plain

MOST = 8  # lines, and marks
NEAR = 0.6  # share of a budget that the data must reach: the axis shall not grow for it alone


@dataclass(frozen=True, slots=True)
class DrawnGuide:
    """A line or a mark over the chart, in seconds of the scene and bytes."""

    kind: Literal["budget", "trend", "oom"]
    label: str
    line: Points  # both ends; those of a mark are the same
    band: tuple[float, float] = (0.0, 0.0)  # the uncertainty at each end, up and down
    is_crossed: bool = False  # the data rise above a budget
    crossed_at: float | None = None  # the first time, where it is known and in view

    @property
    def time(self) -> float:
        """Seconds at its end."""
        return self.line[-1][0]

    @property
    def level(self) -> float:
        """Bytes at its end."""
        return self.line[-1][1]

    def outline(self) -> Points:
        """Return the corners of the band; empty for an exact line."""
        if not any(self.band):
            return []
        (start, first), (stop, last) = self.line
        low, high = self.band
        lower = [(stop, max(0.0, last - high)), (start, max(0.0, first - low))]
        return [(start, first + low), (stop, last + high), *lower]


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
        DrawnGuide("oom", plain(guide.label), [(guide.start - view[0], guide.last)] * 2)
        for guides in (own, named)
        for guide in [each for each in guides if _is_mark(each, view)][-MOST:]
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
        guide.kind,
        plain(guide.label),
        [(time - view[0], max(0.0, at(time, heights))) for time in (start, stop)],
        (at(start, guide.band), at(stop, guide.band)),
        is_crossed=is_budget and highest > guide.last,
        crossed_at=crossed - view[0] if start <= crossed <= stop else None,
    )
