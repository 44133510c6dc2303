"""The lane of steps: bars of one or of many, and the worst of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from hfmem_widget.session import DeviceSteps, Peak, Session, StepGroup
from hfmem_widget.session.steps import joined
from hfmem_widget.text import format_bytes, format_count, format_duration
from hfmem_widget.view.chart.bar import TO, Bar
from hfmem_widget.view.line import peak_text

LEAST_RIVALS = 3
"""Among this many steps or more, the worst is worth marking."""

LaneOf = Callable[[int], int]


def lay_steps(
    session: Session, device: str, view: tuple[float, float], lane_of: LaneOf, most: int
) -> tuple[list[Bar], list[Bar]]:
    """Return the bars of the steps within a view, and that of the worst of them, if one stands out.

    Parameters
    ----------
    device : str
        Whose peaks count.
    view : (float, float)
        Seconds.
    lane_of : callable
        Takes the id of the span that steps were made in.
    most : int
        About so many bars.
    """
    start, stop = view
    steps = [one for one in session.steps if one.start <= stop and one.stop > start]
    groups = [_bar(group, device, view, lane_of) for group in _grouped(steps, most)]
    worst = worst_step(steps, device)
    if worst is None:
        return groups, []
    bar = _bar(worst, device, view, lane_of)
    return groups, [replace(bar, worst=True, told=(f"{bar.told[0]} · the worst", *bar.told[1:]))]


def worst_step(steps: Iterable[StepGroup], device: str) -> StepGroup | None:
    """Return the step that rose highest, out of its group; None where none stands out."""
    rivals = [one for one in steps if device in one.devices]
    if sum(_count(one) for one in rivals) < LEAST_RIVALS:
        return None
    worst = max(rivals, key=lambda one: one.devices[device].peak)
    if min(one.devices[device].lowest for one in rivals) == worst.devices[device].peak:
        return None
    return _alone(worst, worst.devices[device])


def _count(group: StepGroup) -> int:
    return group.last - group.first + 1


def _alone(group: StepGroup, memory: DeviceSteps) -> StepGroup:
    """Take the worst step out of its group, to where it would be if all took as long."""
    count = _count(group)
    if count == 1:
        return group
    each = (group.stop - group.start) / count
    start = group.start + min(max(memory.worst - group.first, 0), count - 1) * each
    return replace(
        group,
        first=memory.worst,
        last=memory.worst,
        start=start,
        stop=start + each,
        samples=math.nan,
        longest=math.nan,
        tokens=memory.worst_tokens,
        content_tokens=math.nan,
    )


def _grouped(steps: list[StepGroup], most: int) -> list[StepGroup]:
    """Join neighbours until at most about `most` groups are left."""
    size = 1
    while sum(map(_count, steps)) > size * most:
        size *= 2
    runs = groupby(steps, key=lambda one: (one.parent, (one.first - 1) // size))
    groups = [joined(list(run)) for _, run in runs]
    while len(groups) > 2 * most:
        # Steps of very many parents, as of a block around each.
        groups = [joined(groups[at : at + 2]) for at in range(0, len(groups), 2)]
    return groups


def _bar(group: StepGroup, device: str, view: tuple[float, float], lane_of: LaneOf) -> Bar:
    start, stop = view
    label = f"step {group.first}"
    if group.first != group.last:
        label = f"steps {group.first}{TO}{group.last}"
    memory = group.devices.get(device)
    told = (f"{label} · {format_duration(group.stop - group.start)}", *_told(group, memory))
    return Bar(
        lane_of(group.parent),
        "step",
        label,
        start=max(group.start, start) - start,
        stop=min(group.stop, stop) - start,
        worst=False,
        told=told,
    )


def _told(group: StepGroup, memory: DeviceSteps | None) -> list[str]:
    if group.first != group.last:
        return [] if memory is None else [f"worst: step {memory.worst}{_tokens(memory)}"]
    told = []
    if group.tokens > 0:
        shape = ""
        if group.samples > 0 and group.longest > 0:
            shape = f" ({format_count(group.samples)} \u00d7 {format_count(group.longest)})"
        told.append(f"{format_count(group.tokens)} tokens{shape}")
    if memory is not None:
        told.append(f"peak {peak_text(Peak(memory.peak, memory.certainty))}")
        told += [f"in {phase} {format_bytes(peak)}" for phase, peak in memory.phases.items()]
    return told


def _tokens(memory: DeviceSteps) -> str:
    tokens = f", {format_count(memory.worst_tokens)} tokens" if memory.worst_tokens > 0 else ""
    return f"{tokens}, peak {peak_text(Peak(memory.peak, memory.certainty))}"
