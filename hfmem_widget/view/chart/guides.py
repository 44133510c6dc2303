"""Guides as they are drawn over a scene: cut to its time, and left out where they say nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hfmem_widget.analysis.curve import Points
from hfmem_widget.session import Finding, Guide, Session
from hfmem_widget.text import plain

MOST = 8  # lines, and marks

NEAR = 0.6
"""A budget is drawn where the data reach this share of it; else the axis would be drawn for it alone."""


@dataclass(frozen=True, slots=True)
class DrawnGuide:
    """A line or a mark over the chart, in seconds of the scene and bytes."""

    kind: Literal["budget", "trend", "oom"]
    label: str
    line: Points  # both ends; those of a mark are the same
    band: tuple[float, float] = (0.0, 0.0)  # the uncertainty at each end, either way
    is_crossed: bool = False  # the data rise above a budget
    crossed_at: float | None = None  # the first time, if it is known and in the picture

    @property
    def time(self) -> float:
        """Seconds at its end."""
        return self.line[-1][0]

    @property
    def level(self) -> float:
        """Bytes at its end."""
        return self.line[-1][1]

    def outline(self) -> Points:
        """Return the corners of its band; empty where it is exact."""
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
    """Return the lines and the newest marks over the chart of one device between two instants.

    `highest` is the most that was allocated on it, in bytes. The marks of `others` have their names.
    """
    lines = [each for each in session.guides if each.device == device and each.kind != "oom"][:MOST]
    drawn = (_drawn(guide, view, highest, session.findings) for guide in lines)
    ooms = [guide for guide in session.guides if guide.kind == "oom"]
    own = [guide for guide in ooms if guide.device == device]
    named = [
        replace(guide, label=f"{other} {guide.label}")
        for other in others
        for guide in ooms
        if guide.device == other
    ]
    marks = (*_marks(own, view), *_marks(named, view))
    return (*(line for line in drawn if line is not None), *marks)


def _marks(guides: Iterable[Guide], view: tuple[float, float]) -> list[DrawnGuide]:
    return [
        DrawnGuide("oom", plain(guide.label), [(guide.start - view[0], guide.last)] * 2)
        for guide in guides
        if view[0] <= guide.start <= view[1] and math.isfinite(guide.last)
    ][-MOST:]


def _crossing_of(guide: Guide, findings: Sequence[Finding]) -> float:
    """Return when a budget was first crossed, in seconds of the session; NaN where no finding has that."""
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
