"""What happened as bars in lanes: which are drawn, and which fold into groups."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from hfmem_widget.analysis.facts import allocated_peak, end_of
from hfmem_widget.session import FINE_KINDS, Session, Span
from hfmem_widget.text import format_duration
from hfmem_widget.view.chart.axis import round_up
from hfmem_widget.view.chart.shapes import Bar
from hfmem_widget.view.chart.step_lane import TO, LaneOf, lay_steps
from hfmem_widget.view.line import peak_text

MOST_BARS = 200
MOST_LANES = 4

_NUMBERED = re.compile(r"(.*?)([0-9]+)")


def lay_lanes(session: Session, device: str, start: float, stop: float) -> list[Bar]:
    """Return the bars of what happened between two instants, for the peaks of one device."""
    in_view = [
        span
        for span in session.spans
        if span.kind not in FINE_KINDS and start <= span.start <= stop
    ]
    lanes, lane_of = _assign(session, in_view)
    most = MOST_BARS // (len(lanes) + 1)
    steps, worst = lay_steps(session, device, (start, stop), lane_of, most)
    bars = [
        _bar(session, device, group, index, (start, stop))
        for index, lane in enumerate(lanes)
        for group in fold(lane, most)
    ]
    # An evaluation among steps lies on top of them, and the worst step on top of all.
    return [bar for bar in (*steps, *bars, *worst) if bar.lane < MOST_LANES]


def range_label(first: str, last: str) -> str:
    """Return "steps 1 to 250", with a dash, for "step 1" and "step 250"; other pairs are written out."""
    start, stop = _NUMBERED.fullmatch(first), _NUMBERED.fullmatch(last)
    if start is None or stop is None or start[1] != stop[1]:
        return f"{first} {TO} {last}"
    name = start[1].strip()
    return f"{name}s {start[2]}{TO}{stop[2]}" if name else f"{start[2]}{TO}{stop[2]}"


def _assign(session: Session, spans: Sequence[Span]) -> tuple[list[list[Span]], LaneOf]:
    """Put every span a lane below its parent, and further down where siblings overlap.

    Also return the lane of the steps in a span: the deepest where that span is not known any more.
    """
    epoch_parents = {span.parent for span in spans if span.kind == "epoch"}
    lane_of: dict[int | None, int] = {}
    busy_until = [-math.inf] * MOST_LANES
    lanes: list[list[Span]] = [[] for _ in range(MOST_LANES)]
    for span in sorted(spans, key=lambda span: (span.start, span.id)):
        lane = lane_of.get(span.parent, -1) + 1
        if span.kind == "train" and span.parent is not None and span.id in epoch_parents:
            # Around epochs it adds nothing to the bars of the cell and the epochs.
            lane_of[span.id] = lane - 1
            continue
        while lane < MOST_LANES and busy_until[lane] > span.start + 1e-6:
            lane += 1
        lane_of[span.id] = lane
        if lane < MOST_LANES:
            busy_until[lane] = end_of(session, span)
            lanes[lane].append(span)
    used = [lane for lane in lanes if lane]
    deepest = min(len(used), MOST_LANES - 1)
    return used, lambda parent: lane_of[parent] + 1 if parent in lane_of else deepest


def fold(lane: Sequence[Span], most: int) -> Iterable[list[Span]]:
    """Group alike neighbours, by a round number, until at most about `most` groups are left.

    Open spans stay apart.
    """
    size = round(round_up(max(len(lane) / most, 1), (1, 2, 5, 10)))
    for _, alike in groupby(lane, key=lambda span: (span.kind, span.parent, span.stop is None)):
        run = list(alike)
        yield from (run[at : at + size] for at in range(0, len(run), size))


def _bar(
    session: Session, device: str, group: Sequence[Span], lane: int, view: tuple[float, float]
) -> Bar:
    first, last = group[0], group[-1]
    stop = end_of(session, last)
    label = first.label or first.kind
    peaks = [allocated_peak(session, span, device) for span in group]
    highest = max(
        range(len(group)),
        key=lambda at: -math.inf if math.isnan(peaks[at].value) else peaks[at].value,
    )
    peak = f"peak {peak_text(peaks[highest])}"
    if len(group) > 1:
        label = range_label(label, last.label or last.kind)
        peak = f"{peak} in {group[highest].label or group[highest].kind}"
    failed = [span.outcome for span in group if span.outcome not in {"", "done"}]
    return Bar(
        lane,
        first.kind,
        label,
        start=first.start - view[0],
        stop=min(stop, view[1]) - view[0],
        lines=(f"{label} · {format_duration(stop - first.start)}", peak, *failed[:1]),
    )
