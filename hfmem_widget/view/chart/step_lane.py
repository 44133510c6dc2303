"""The lane of steps: bars of one or of many, and the worst of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from hfmem_widget.session import DeviceSteps, Peak, Session, StepGroup
from hfmem_widget.session.steps import joined
from hfmem_widget.text import format_bytes, format_count, format_duration
from hfmem_widget.view.chart.shapes import Bar
from hfmem_widget.view.line import peak_text

TO, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"

LEAST_RIVALS = 3
"""Among this many steps or more, the worst is worth marking."""

LaneOf = Callable[[int], int]


def lay_steps(
    session: Session, device: str, view: tuple[float, float], lane_of: LaneOf, most: int
) -> tuple[list[Bar], list[Bar]]:
    """Return about `most` bars of the steps within a view, and that of the worst, if one stands out.

    `lane_of` takes the id of the span in which steps were made.
    """
    start, stop = view
    steps = [group for group in session.steps if group.start <= stop and group.stop > start]
    bars = [_bar(group, device, view, lane_of) for group in _grouped(steps, most)]
    worst = worst_step(steps, device)
    if worst is None:
        return bars, []
    bar = _bar(worst, device, view, lane_of)
    lines = (f"{bar.lines[0]} · the worst", *bar.lines[1:])
    return bars, [replace(bar, worst=True, lines=lines)]


def worst_step(steps: Iterable[StepGroup], device: str) -> StepGroup | None:
    """Return the step with the highest peak, out of its group; None where none stands out."""
    rivals = [group for group in steps if device in group.devices]
    if sum(map(_count, rivals)) < LEAST_RIVALS:
        return None
    worst = max(rivals, key=lambda group: group.devices[device].peak)
    memory, count = worst.devices[device], _count(worst)
    if min(group.devices[device].lowest for group in rivals) == memory.peak:
        return None
    if count == 1:
        return worst
    # Where it would be if all steps of the group took as long.
    each = (worst.stop - worst.start) / count
    start = worst.start + min(max(memory.worst - worst.first, 0), count - 1) * each
    return replace(
        worst,
        first=memory.worst,
        last=memory.worst,
        start=start,
        stop=start + each,
        samples=math.nan,
        longest=math.nan,
        tokens=memory.worst_tokens,
        content_tokens=math.nan,
    )


def _count(group: StepGroup) -> int:
    return group.last - group.first + 1


def _grouped(steps: list[StepGroup], most: int) -> list[StepGroup]:
    """Join neighbours until at most about `most` groups are left."""
    size = 1
    while sum(map(_count, steps)) > size * most:
        size *= 2
    runs = groupby(steps, key=lambda group: (group.parent, (group.first - 1) // size))
    groups = [joined(list(run)) for _, run in runs]
    while len(groups) > 2 * most:
        # Steps of very many parents, such as of a block around each.
        groups = [joined(groups[at : at + 2]) for at in range(0, len(groups), 2)]
    return groups


def _bar(group: StepGroup, device: str, view: tuple[float, float], lane_of: LaneOf) -> Bar:
    start, stop = view
    label = f"step {group.first}"
    if group.first != group.last:
        label = f"steps {group.first}{TO}{group.last}"
    head = f"{label} · {format_duration(group.stop - group.start)}"
    return Bar(
        lane_of(group.parent),
        "step",
        label,
        start=max(group.start, start) - start,
        stop=min(group.stop, stop) - start,
        lines=(head, *_lines(group, group.devices.get(device))),
    )


def _lines(group: StepGroup, memory: DeviceSteps | None) -> list[str]:
    peak = "" if memory is None else f"peak {peak_text(Peak(memory.peak, memory.certainty))}"
    if group.first != group.last:
        if memory is None:
            return []
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
