"""The parts of a device's memory at a reading, between two, or at a peak; the unknown rest is a part too."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from hfmem_widget.session import HELD, Device, Part, Peak, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.series import COUNTED, PARTS

LABELS: Mapping[str, str] = {name: row.label for name, row in PARTS.items()}
"""The parts of a GPU's memory, from the bottom of a stack to its top, and their labels."""

OF_ALLOCATED = tuple(LABELS)[: tuple(LABELS).index("rounding") + 1]
"""The parts of the allocated bytes, from the bottom to the top."""

Read = Callable[[str], float]
"""Takes a metric and returns its value at one instant; NaN if it is not available."""

MAY_BE_NOTES = {
    "gradients": "Up to {} of the activations are gradients that were being computed.",
    "optimizer": "Up to {} of the temporaries are optimizer states that were being created.",
}
"""New gradients and states on the way to a peak count as activations: they were not held throughout."""

MAY_BE_LABELS = {
    frozenset({"gradients"}): "activations and new gradients",
    frozenset({"optimizer"}): "temporaries and new optimizer states",
    frozenset(MAY_BE_NOTES): "activations, new gradients and states",
}
"""Labels of the activations where half of them or more may be new gradients or states."""

OF_THE_POOL = frozenset({"page_cache", "swap", "machine_swap"})
"""Metrics of the host that also count for a GPU that shares the machine's memory."""


def parts_of(
    read: Read, total: float, *, is_host: bool, is_shared: bool = False
) -> tuple[Part, ...]:
    """Return the parts of a device that are known at one instant, in the order of `PARTS`.

    No part is scaled to make a sum fit: where known parts exceed their sum, as readings of different instants
    may, the remainder is 0. All sizes are bytes; `total` is the device's capacity, NaN if unknown. The host's
    memory is the process' private memory. A GPU that shares the machine's memory has all of it in one stack.
    """
    sizes = allocated_parts(read) | _beside_allocated(read, total, is_host=is_host)
    if is_shared:
        sizes |= _beside_on_cpu(read, total)
    return tuple(
        Part(name, row.called(is_host=is_host or (is_shared and name == "others")), sizes[name])
        for name, row in PARTS.items()
        if sizes.get(name, 0) > 0
    )


def allocated_parts(read: Read) -> dict[str, float]:
    """Return the parts of the allocated bytes by name; empty where nothing is allocated."""
    allocated = read("allocated")
    if not allocated > 0:
        return {}
    counted = {name: value for name in COUNTED if (value := read(name)) > 0}
    others = sum(value for name, value in counted.items() if name != "gradients")
    # Gradients may have been freed since they were counted; weights may lie outside the allocator.
    if "gradients" in counted and others <= allocated:
        counted["gradients"] = min(counted["gradients"], allocated - others)
    remainder = max(0.0, allocated - sum(counted.values()))
    rounding = min(remainder, max(0.0, allocated - read("requested")))
    remainder -= rounding
    before = read("before")
    here = min(remainder, before) if before > 0 else 0.0
    remainder -= here
    # What was not attributed when the step began was not made by the step.
    unattributed = read("unattributed")
    held = remainder if math.isnan(unattributed) else min(remainder, unattributed)
    rest = {"unattributed": held, "activations": remainder - held, "rounding": rounding}
    return counted | {"before": here} | rest


def _beside_allocated(read: Read, total: float, *, is_host: bool) -> dict[str, float]:
    allocated, reserved, used = read("allocated"), read("reserved"), read("device_used")
    ours = max(0.0, reserved)  # 0 for NaN, as for all sizes here
    if is_host:
        children, shared = max(0.0, read("children")), max(0.0, read("shared_memory"))
        # Of the machine's shared memory, what the child processes map is counted as theirs.
        shared = max(0.0, shared - read("children_shared")) if shared and children else shared
        outside = max(0.0, reserved - allocated)
        free = sum(value for name in ("cached", "python_free") if (value := read(name)) > 0)
        return {
            "cache": min(free, outside),
            "files": max(0.0, outside - free),
            "children": children,
            "shared_memory": shared,
            "others": max(0.0, used - reserved - children - shared),
            "free": max(0.0, total - used),
        }
    active, driver = read("active"), read("driver_reserved")
    active = known_of(active, allocated)
    parts = {"pending": max(0.0, active - allocated), "driver": known_of(driver, 0.0)}
    if ours:
        parts["cache"] = max(0.0, reserved - active)
    context, others = read("context"), read("others")
    if math.isnan(context + others):
        parts["unexplained"] = outside = max(0.0, used - ours)
    else:
        parts["context"], parts["others"] = context, others
        outside = context + others
    if not math.isnan(used):
        parts["free"] = max(0.0, total - parts["driver"] - outside - ours)
    return parts


def _beside_on_cpu(read: Read, total: float) -> dict[str, float]:
    metrics = ("reserved", "context", "process", "device_used", "page_cache")
    ours, context, process, used, cache = (max(0.0, read(metric)) for metric in metrics)
    outside = max(0.0, used - ours - context)
    on_cpu = min(outside, max(0.0, process - ours - context))
    free = max(0.0, total - used) if used else 0.0
    cache, others = min(free, cache), outside - on_cpu
    sizes = {"context": context, "on_cpu": on_cpu, "others": others, "unexplained": 0.0}
    return sizes | {"page_cache": cache, "free": free - cache}


def key_of(device: Device, metric: str) -> str:
    """Return the key of the series that is a metric of a device."""
    return f"{'cpu' if device.shared and metric in OF_THE_POOL else device.key}/{metric}"


def reader(session: Session, device: Device, sample: Sample) -> Read:
    """Return a function that reads a device's metrics from a sample."""
    return lambda metric: session.value(sample, key_of(device, metric))


def known_values(session: Session, key: str, start: float, stop: float) -> list[float]:
    """Return the highest value of a series in each row of a stretch of the timeline, where it is known."""
    column = session.index(key)
    if column is None:
        return []
    values: list[float] = session.between(start, stop, [column]).high[:, 0].tolist()
    return [value for value in values if math.isfinite(value)]


def highest_row(
    session: Session, device: Device, start: float, stop: float
) -> tuple[Sample, Sample] | None:
    """Return the row of the timeline where most was allocated: its lowest and its highest values."""
    column = session.index(f"{device.key}/allocated")
    part = session.between(start, stop)
    if column is None or not len(part):
        return None
    values = part.high[:, column].tolist()
    row = max(range(len(values)), key=lambda at: (not math.isnan(values[at]), values[at]))
    time = float(part.time[row])
    return Sample(time, tuple(part.low[row].tolist())), Sample(time, tuple(part.high[row].tolist()))


def held_throughout(
    low: Read, high: Read, made: str = ""
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the bytes held at both of two readings, and those made in between.

    The readings are the edges of a stretch, or the extremes of a row. An unknown metric at the beginning is 0
    if the stretch `made` it; any other was not counted yet.
    """
    held, new = {}, {}
    for metric in HELD:
        before, after = low(metric), high(metric)
        if math.isnan(before) and metric == made:
            before = 0.0
        held[metric] = min(known_of(before, after), known_of(after, before))
        if metric in MAY_BE_NOTES and after - held[metric] > 0:
            new[metric] = after - held[metric]
    return held, new


def with_made(parts: tuple[Part, ...], made: Mapping[str, float]) -> tuple[Part, ...]:
    """Return the parts, the activations under a wider name where half of them may have been `made`."""
    if not made:
        return parts
    label, size = MAY_BE_LABELS[frozenset(made)], sum(made.values())
    return tuple(
        replace(part, label=label)
        if part.name == "activations" and part.bytes <= 2 * size
        else part
        for part in parts
    )


def at_its_peak(read: Read, device: Device, peak: Peak, span: Span | None) -> dict[str, float]:
    """Return the sums at a peak, as overrides of an earlier or lower reading."""
    figures = {"allocated": peak.value, "requested": NOT_AVAILABLE, "active": NOT_AVAILABLE}
    peaks = {} if span is None else span.peaks
    for metric in ("requested", "reserved"):
        if f"{device.key}/{metric}" in peaks:
            figures[metric] = peaks[f"{device.key}/{metric}"].value
    grown = figures.get("reserved", NOT_AVAILABLE) - known_of(read("reserved"), 0.0)
    if grown > 0:
        figures |= {metric: read(metric) + grown for metric in ("device_used", "process")}
    return figures


def known_of(first: float, second: float) -> float:
    """Return the first of two figures, or the second if the first is NaN."""
    return second if math.isnan(first) else first


def overridden(read: Read, figures: dict[str, float]) -> Read:
    """Return a reading with some figures replaced."""
    return lambda metric: figures[metric] if metric in figures else read(metric)
