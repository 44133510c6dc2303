"""What is known of an instant between two readings, or above one."""

from __future__ import annotations

import math

from hfmem_widget.analysis.parts import Read
from hfmem_widget.session import HELD, Device, Peak, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import format_bytes

MAY_BE_NOTES = {
    "gradients": "Up to {} of the activations are gradients that were being computed.",
    "optimizer": "Up to {} of the temporaries are optimizer states that were being created.",
}
"""What is made while a peak is reached is counted as held only once it was there throughout."""

OF_THE_POOL = frozenset({"page_cache", "swap", "machine_swap"})
"""Metrics of the host that are those of a GPU, too, which shares the machine's memory."""


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


def held_throughout(low: Read, high: Read, made: str = "") -> tuple[dict[str, float], list[str]]:
    """Return what is held at both of two readings, and notes on what is held at only one.

    The readings are those at the edges of a stretch, or the extremes of a row. Where the metric that the
    stretch has `made` was not known at the beginning, it was not there; any other was not looked for yet.
    """
    held, notes = {}, []
    for metric in HELD:
        before, after = low(metric), high(metric)
        if math.isnan(before) and metric == made:
            before = 0.0
        held[metric] = min(known_of(before, after), known_of(after, before))
        if metric in MAY_BE_NOTES and after - held[metric] > 0:
            notes.append(MAY_BE_NOTES[metric].format(format_bytes(after - held[metric])))
    return held, notes


def at_its_peak(read: Read, device: Device, peak: Peak, span: Span | None) -> dict[str, float]:
    """Return the sums at a peak, as overrides of a reading that was taken some time before or below it."""
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
    """Return the first of two figures, the second where the first is not known."""
    return second if math.isnan(first) else first


def overridden(read: Read, figures: dict[str, float]) -> Read:
    """Return a reading in which some figures are others."""
    return lambda metric: figures[metric] if metric in figures else read(metric)
