"""Spans and steps as bars in lanes; many similar neighbours are grouped into one bar."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from hfmem_widget.analysis.facts import end_of, peak_of
from hfmem_widget.analysis.parts import known_of
from hfmem_widget.session import FINE_KINDS, DeviceSteps, Peak, Session, Span, StepGroup
from hfmem_widget.session.steps import FIGURES, Table, fitted, group_of, merged
from hfmem_widget.text import format_bytes, format_count, format_duration
from hfmem_widget.view.chart.shapes import Bar, round_up
from hfmem_widget.view.line import peak_text

MOST_BARS = 200
MOST_LANES = 4
LEAST_RIVALS = 3  # among this many steps or more, the worst is worth marking
# Shares of its peak by which the worst step must exceed most steps, if others have as many tokens: the second
# where samples alone are known, since they miss peaks by a few percent.
STANDS_OUT, BY_CHANCE = 0.02, 0.1

TO, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
LaneOf = Callable[[int], int]
PLURALS = {"step": "steps", "epoch": "epochs", "batch": "batches"}  # no other word is changed
_START, _STOP = map(FIGURES.index, ("start", "stop"))
_NUMBERED = re.compile(r"(.*?)([0-9]+)")


def lay_lanes(session: Session, device: str, start: float, stop: float) -> list[Bar]:
    """Return the bars of spans and steps between two instants, with the peaks of one device."""
    coarse = (span for span in session.spans if span.kind not in FINE_KINDS)
    in_view = [span for span in coarse if start <= span.start <= stop]
    lanes, lane_of = _assign(session, in_view)
    most = MOST_BARS // (len(lanes) + 1)
    steps, worst = lay_steps(session, device, (start, stop), lane_of, most)
    bars = [
        _bar(session, device, group, index, (start, stop))
        for index, lane in enumerate(lanes)
        for group in fold(lane, most)
    ]
    # An evaluation among steps is drawn over them, and the worst step over everything.
    return [bar for bar in (*steps, *bars, *worst) if bar.lane < MOST_LANES]


def range_label(first: str, last: str) -> str:
    """Return one label for a range, such as "steps 1 to 250", with a dash, of "step 1" and "step 250"."""
    if first == last:
        return first
    start, stop = _NUMBERED.fullmatch(first), _NUMBERED.fullmatch(last)
    if start is None or stop is None or start[1] != stop[1]:
        return f"{first} {TO} {last}"
    plural = PLURALS.get(start[1].strip())
    return f"{start[1] if plural is None else f'{plural} '}{start[2]}{TO}{stop[2]}".strip()


def _assign(session: Session, spans: Sequence[Span]) -> tuple[list[list[Span]], LaneOf]:
    """Return the spans of each lane, and a function from a span's id to the lane of its steps."""
    epoch_parents = {span.parent for span in spans if span.kind == "epoch"}
    lane_of: dict[int | None, int] = {}
    busy_until = [-math.inf] * MOST_LANES
    lanes: list[list[Span]] = [[] for _ in range(MOST_LANES)]
    for span in sorted(spans, key=lambda span: (span.start, span.id)):
        lane = lane_of.get(span.parent, -1) + 1
        if span.kind == "train" and span.parent is not None and span.id in epoch_parents:
            # A bar around epochs would add nothing to those of the cell and the epochs.
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
    """Yield groups of similar neighbours, of a round number each, about `most` of them; open spans apart."""
    size = round(round_up(max(len(lane) / most, 1), (1, 2, 5, 10)))
    for _, alike in groupby(lane, key=lambda span: (span.kind, span.parent, span.stop is None)):
        run = list(alike)
        yield from (run[at : at + size] for at in range(0, len(run), size))


def _bar(
    session: Session, device: str, group: Sequence[Span], lane: int, view: tuple[float, float]
) -> Bar:
    first, last = group[0], group[-1]
    stop = end_of(session, last)
    # Without the pauses between cells that are drawn end to end.
    lasted = sum(end_of(session, span) - span.start for span in group)
    label = first.label or first.kind
    peaks = [peak_of(session, span, f"{device}/allocated") for span in group]
    highest = max(range(len(group)), key=lambda at: known_of(peaks[at].value, -math.inf))
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
        lines=(f"{label} · {format_duration(lasted)}", peak, *failed[:1]),
    )


def lay_steps(
    session: Session, device: str, view: tuple[float, float], lane_of: LaneOf, most: int
) -> tuple[list[Bar], list[Bar]]:
    """Return about `most` bars of the steps in view, and that of the worst; `lane_of` takes a span's id."""
    start, stop = view
    devices = session.steps.devices
    table = session.steps.table
    table = table[(table[:, _START] <= stop) & (table[:, _STOP] > start)]
    groups = [group_of(row, devices) for row in _grouped(table, most).tolist()]
    bars = [_step_bar(group, device, view, lane_of) for group in groups]
    worst = worst_step([group_of(row, devices) for row in table.tolist()], device)
    if worst is None:
        return bars, []
    bar = _step_bar(worst, device, view, lane_of)
    lines = (f"{bar.lines[0]} · the worst", *bar.lines[1:])
    return bars, [replace(bar, worst=True, lines=lines)]


def worst_step(steps: Iterable[StepGroup], device: str) -> StepGroup | None:
    """Return the step with the highest peak, alone; None where none stands out."""
    rivals = [group for group in steps if device in group.devices]
    if sum(map(_count, rivals)) < LEAST_RIVALS:
        return None
    worst = max(rivals, key=lambda group: group.devices[device].peak)
    memory, count = worst.devices[device], _count(worst)
    # The middle of a group counts as the peak of its steps.
    middles = ((it.lowest + it.peak) / 2 for it in (group.devices[device] for group in rivals))
    above = memory.peak - sorted(middles)[(len(rivals) - 1) // 2]
    others = [group.devices[device].worst_tokens for group in rivals if group is not worst]
    shorter = sum(memory.worst_tokens > tokens for tokens in others)
    may_be_chance = memory.certainty == "sampled" and 2 * shorter < len(others)
    least = (BY_CHANCE if may_be_chance else STANDS_OUT) * memory.peak
    if above <= 0 or (above < least and not 0 < shorter == len(others)):
        return None
    if count == 1 or not memory.worst:
        return worst
    # Its place, as if all steps of the group took equally long.
    step_seconds = (worst.stop - worst.start) / count
    start = worst.start + min(max(memory.worst - worst.first, 0), count - 1) * step_seconds
    return replace(
        worst,
        first=memory.worst,
        last=memory.worst,
        start=start,
        stop=start + step_seconds,
        samples=math.nan,
        longest=math.nan,
        tokens=memory.worst_tokens,
        content_tokens=math.nan,
    )


def _count(group: StepGroup) -> int:
    return group.last - group.first + 1


def _grouped(table: Table, most: int) -> Table:
    groups, _ = fitted(table, most)
    while len(groups) > 2 * most:
        # Steps of very many spans, such as a block around each.
        groups = merged(groups, np.arange(0, len(groups), 2))
    return groups


def _step_bar(group: StepGroup, device: str, view: tuple[float, float], lane_of: LaneOf) -> Bar:
    start, stop = view
    label = range_label(f"step {group.first}", f"step {group.last}")
    head = f"{label} · {format_duration(group.stop - group.start)}"
    return Bar(
        lane_of(group.parent),
        "step",
        label,
        start=max(group.start, start) - start,
        stop=min(group.stop, stop) - start,
        lines=(head, *_step_lines(group, group.devices.get(device))),
    )


def _step_lines(group: StepGroup, memory: DeviceSteps | None) -> list[str]:
    peak = "" if memory is None else f"peak {peak_text(Peak(memory.peak, memory.certainty))}"
    if group.first != group.last:
        if memory is None:
            return []
        if not memory.worst:
            return [f"{peak}, of all of them together"]
        tokens = f", {format_count(memory.worst_tokens)} tokens" if memory.worst_tokens > 0 else ""
        return [f"worst: step {memory.worst}{tokens}, {peak}"]
    lines = []
    if group.tokens > 0:
        shape = ""
        if group.samples > 0 and group.longest > 0:
            shape = f" ({format_count(group.samples)} {TIMES} {format_count(group.longest)})"
        lines.append(f"{format_count(group.tokens)} tokens{shape}")
    if memory is not None:
        lines.append(peak)
        lines += [f"in {phase} {format_bytes(bytes_)}" for phase, bytes_ in memory.phases.items()]
    return lines
