"""Guides as they are drawn over a scene: cut to its time, left out where they say nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hfmem_widget.analysis.curve import Points
from hfmem_widget.session import Finding, Guide, Session
from hfmem_widget.text import plain

MOST = 8
"""Lines, and marks."""

NEAR = 0.6
"""A level is drawn from this share of it up; below, the axis would be drawn for the level alone."""


@dataclass(frozen=True, slots=True)
class DrawnGuide:
    """A line or a mark over the chart, in seconds of the scene and bytes.

    Attributes
    ----------
    kind : {"budget", "trend", "oom"}
    label : str
        Plain text.
    line : list of (float, float)
        Both ends; of a mark they are the same.
    band : tuple of float
        How far it may be off at each end, either way.
    is_crossed : bool
        Whether the data rise above it; only ever of a budget.
    crossed_at : float or None
        When they first did, where that was told and lies in the picture.
    """

    kind: Literal["budget", "trend", "oom"]
    label: str
    line: Points
    band: tuple[float, float] = (0.0, 0.0)
    is_crossed: bool = False
    crossed_at: float | None = None

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
    session: Session, device: str, view: tuple[float, float], highest: float
) -> tuple[DrawnGuide, ...]:
    """Return the lines and the newest marks over the chart of one device between two instants.

    Parameters
    ----------
    device : str
        Its key.
    view : tuple of float
        From when to when, in seconds of the session.
    highest : float
        The most that was allocated there, in bytes.
    """
    guides = [one for one in session.guides if one.device == device]
    lines = [one for one in guides if one.kind != "oom"][:MOST]
    drawn = (_drawn(one, view, highest, session.findings) for one in lines)
    marks = _marks((one for one in guides if one.kind == "oom"), view)
    return (*(one for one in drawn if one is not None), *marks)


def marks_in(
    session: Session, devices: Iterable[str], view: tuple[float, float]
) -> tuple[DrawnGuide, ...]:
    """Return where each of some devices ran out of memory between two instants; which one is said."""
    named = (
        replace(one, label=f"{one.device} {one.label}")
        for device in devices
        for one in session.guides
        if (one.device, one.kind) == (device, "oom")
    )
    return tuple(_marks(named, view))


def crossing_of(guide: Guide, findings: Sequence[Finding]) -> float | None:
    """Return when a budget was first crossed, in seconds of the session, where a finding tells it."""
    times = [
        float(time)
        for one in findings
        if one.kind == guide.kind == "budget"
        and one.evidence.get("device", guide.device) == guide.device
        and isinstance(time := one.evidence.get("time"), int | float)
        and math.isfinite(time)
    ]
    return min(times, default=None)


def _marks(guides: Iterable[Guide], view: tuple[float, float]) -> list[DrawnGuide]:
    seen = [
        DrawnGuide("oom", plain(one.label), [(one.start - view[0], one.last)] * 2)
        for one in guides
        if view[0] <= one.start <= view[1] and math.isfinite(one.last)
    ]
    return seen[-MOST:]


def _drawn(
    guide: Guide, view: tuple[float, float], highest: float, findings: Sequence[Finding]
) -> DrawnGuide | None:
    start, stop = max(guide.start, view[0]), min(guide.stop, view[1])
    ends = (guide.first, guide.last, *guide.band)
    if not start < stop or not all(map(math.isfinite, ends)):
        return None
    label = plain(guide.label)
    if guide.kind == "budget":
        if highest < NEAR * guide.last:
            return None
        line = [(start - view[0], guide.last), (stop - view[0], guide.last)]
        crossed = crossing_of(guide, findings)
        seen = crossed is not None and start <= crossed <= stop
        return DrawnGuide(
            "budget",
            label,
            line,
            is_crossed=highest > guide.last,
            crossed_at=crossed - view[0] if crossed is not None and seen else None,
        )

    def at(time: float, ends: tuple[float, float]) -> float:
        length = guide.stop - guide.start
        share = 0.0 if math.isinf(length) else (time - guide.start) / length
        return ends[0] + share * (ends[1] - ends[0])

    line = [
        (time - view[0], max(0.0, at(time, (guide.first, guide.last)))) for time in (start, stop)
    ]
    return DrawnGuide("trend", label, line, band=(at(start, guide.band), at(stop, guide.band)))
