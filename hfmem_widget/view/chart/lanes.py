"""What happened as bars in lanes: which are drawn, and which fold into groups."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hfmem_widget.analysis.facts import allocated_peak
from hfmem_widget.session import FINE_KINDS, Session, Span
from hfmem_widget.text import format_duration
from hfmem_widget.view.chart.axis import round_up
from hfmem_widget.view.chart.bar import TO, Bar
from hfmem_widget.view.chart.step_lane import LaneOf, lay_steps
from hfmem_widget.view.line import peak_text

MOST_BARS = 200
MOST_LANES = 4

_ROUND = (1, 2, 5, 10)
_NUMBERED = re.compile(r"(.*?)([0-9]+)")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bar goes."""

    lane: int
    start: float
    stop: float


def lay_lanes(session: Session, device: str, start: float, stop: float) -> list[Bar]:
    """Return the bars of what happened between two instants, for the peaks of one device."""
    ends = {
        span.id: session.last_sample.time if span.stop is None else span.stop
        for span in session.spans
    }
    in_view = [
        span
        for span in session.spans
        if span.kind not in FINE_KINDS and start <= span.start <= stop
    ]
    lanes, lane_of = _assign(in_view, ends)
    most = MOST_BARS // (len(lanes) + 1)
    steps, worst = lay_steps(session, device, (start, stop), lane_of, most)
    bars = [
        _bar(session, device, group, _Place(index, start, stop), ends)
        for index, lane in enumerate(lanes)
        for group in fold(lane, most)
    ]
    # An evaluation among steps lies on top of them, and the worst on top of all.
    return [bar for bar in (*steps, *bars, *worst) if bar.lane < MOST_LANES]


def range_label(first: str, last: str) -> str:
    """Return "steps 1 to 250", with a dash, for "step 1" and "step 250"; other pairs are written out."""
    one, two = _NUMBERED.fullmatch(first), _NUMBERED.fullmatch(last)
    if one is None or two is None or one[1] != two[1]:
        return f"{first} {TO} {last}"
    name = one[1].strip()
    return f"{name}s {one[2]}{TO}{two[2]}" if name else f"{one[2]}{TO}{two[2]}"


def _assign(spans: Sequence[Span], ends: dict[int, float]) -> tuple[list[list[Span]], LaneOf]:
    """Put every span a lane below its parent, and further down where siblings overlap.

    Also returned is the lane of what was made in a span: deepest where that is not known any more.
    """
    epoch_parents = {span.parent for span in spans if span.kind == "epoch"}
    lane_of: dict[int | None, int] = {}
    busy_until = [-math.inf] * MOST_LANES
    lanes: list[list[Span]] = [[] for _ in range(MOST_LANES)]
    for span in sorted(spans, key=lambda span: (span.start, span.id)):
        lane = lane_of.get(span.parent, -1) + 1
        if span.kind == "train" and span.parent is not None and span.id in epoch_parents:
            # Around epochs it says nothing that the cell's bar and theirs do not.
            lane_of[span.id] = lane - 1
            continue
        while lane < MOST_LANES and busy_until[lane] > span.start + 1e-6:
            lane += 1
        lane_of[span.id] = lane
        if lane < MOST_LANES:
            busy_until[lane] = ends[span.id]
            lanes[lane].append(span)
    used = [lane for lane in lanes if lane]

    def below(parent: int) -> int:
        return lane_of[parent] + 1 if parent in lane_of else min(len(used), MOST_LANES - 1)

    return used, below


def fold(lane: Sequence[Span], most: int) -> Iterable[list[Span]]:
    """Group neighbours that are alike, by a round number, until at most about `most` groups are left.

    What has not ended stays apart.
    """
    size = round(round_up(max(len(lane) / most, 1), _ROUND))
    for _, alike in groupby(lane, key=lambda span: (span.kind, span.parent, span.stop is None)):
        run = list(alike)
        yield from (run[at : at + size] for at in range(0, len(run), size))


def _bar(
    session: Session, device: str, group: Sequence[Span], place: _Place, ends: dict[int, float]
) -> Bar:
    first, last = group[0], group[-1]
    stop = ends[last.id]
    label = first.label or first.kind
    highest = max(group, key=lambda span: _or_lowest(allocated_peak(session, span, device).value))
    peak = f"peak {peak_text(allocated_peak(session, highest, device))}"
    if len(group) > 1:
        label = range_label(label, last.label or last.kind)
        peak = f"{peak} in {highest.label or highest.kind}"
    failed = [span.outcome for span in group if span.outcome not in {"", "done"}]
    told = (f"{label} · {format_duration(stop - first.start)}", peak, *failed[:1])
    return Bar(
        place.lane,
        first.kind,
        label,
        start=first.start - place.start,
        stop=min(stop, place.stop) - place.start,
        worst=False,
        told=told,
    )


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value
