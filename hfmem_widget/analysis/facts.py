"""What a card says of one device in one span, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hfmem_widget.session import Device, Peak, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import MIB, plain

PATIENCE = 0.3
"""Seconds before anything live appears: a cell that is over by then never flickers."""

QUICK = 1.0
"""Seconds up to which one line may tell of a cell."""

NEXT_TO_NOTHING = MIB
"""Bytes below which a change is that of any cell, such as a sampled heap makes by itself."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The figures of one device over one span; bytes, NaN where not known.

    Attributes
    ----------
    device : Device
    allocated_label, reserved_label, used_label : str
        What the roles are called on this device.
    before, after : float
        Allocated at the span's edges.
    peak : Peak
        Highest allocated within it.
    reserved, reserved_peak : float
        At its end, and highest within it.
    used, process, others : float
        In use on the whole device at its end, by this process, by other processes.
    headroom : float
        What could still have been reserved at the peak.
    """

    device: Device
    allocated_label: str
    reserved_label: str
    used_label: str
    before: float
    after: float
    peak: Peak
    reserved: float
    reserved_peak: float
    used: float
    process: float
    others: float
    headroom: float

    @property
    def left_behind(self) -> float:
        """Allocated at the end less allocated at the start."""
        return self.after - self.before

    @property
    def above_start(self) -> float:
        """How far the peak stood above what was allocated at the start."""
        return self.peak.value - self.before


def active_devices(session: Session, span: Span | None = None) -> tuple[Device, ...]:
    """Return the devices worth showing for a span, or for the whole session.

    Those on which anything was allocated, but the host only where no other is; it comes last.
    """
    # The host need not be there: a watch may be of two GPUs alone.
    return _used(session, span) or session.devices[-1:]


def uses_a_gpu(session: Session, span: Span | None = None) -> bool:
    """Return whether anything was allocated on a device besides the host, in a span or in the session."""
    return bool(_used(session, span))


def facts_of(session: Session, span: Span) -> tuple[Facts, ...]:
    """Return the facts of every active device, in the session's order."""
    return tuple(_facts(session, span, device) for device in active_devices(session, span))


def did_nothing(session: Session, span: Span) -> bool:
    """Return whether a span was over at once, as it should be, and changed no memory worth a figure."""
    return (
        span.outcome == "done"
        and span.duration < QUICK
        and changed_less(session, span, NEXT_TO_NOTHING)
    )


def changed_less(session: Session, span: Span, least: float) -> bool:
    """Return whether a span left and took less than some bytes, on every device."""
    return all(
        # Both are false of what is not known.
        abs(one.left_behind) < least and one.above_start < least
        for one in facts_of(session, span)
    )


def label_of(session: Session, device: Device, metric: str) -> str:
    """Return what a metric is called on a device, as plain text."""
    index = session.index(f"{device.key}/{metric}")
    return plain(session.series[index].label if index is not None else "") or metric


def samples_in(session: Session, span: Span) -> int:
    """Return how many samples a chart of the span would have."""
    return session.between(span.start, end_of(session, span)).samples


def allocated_peak(session: Session, span: Span, device: str) -> Peak:
    """Return the highest allocated of a span; of one that is open, the highest sample so far."""
    return peak_of(session, span, f"{device}/allocated")


def peak_of(session: Session, span: Span, key: str) -> Peak:
    """Return the highest a series came in a span: exact where a ledger kept it, else of the samples."""
    if key in span.peaks:
        return span.peaks[key]
    highest = session.highest_in(span.id, key)
    return Peak(highest, "sampled")


def end_of(session: Session, span: Span) -> float:
    """Return when a span ended, or the newest sample's time while it is open."""
    return span.stop if span.stop is not None else session.last_sample.time


def _used(session: Session, span: Span | None) -> tuple[Device, ...]:
    # The host is the one device without an index.
    others = (device for device in session.devices if ":" in device.key)
    return tuple(device for device in others if _holds(session, span, device))


def _holds(session: Session, span: Span | None, device: Device) -> bool:
    key = f"{device.key}/allocated"
    if span is None:
        return session.peak(key) > 0
    if peak_of(session, span, key).value > 0:
        return True
    index = session.index(key)
    if index is None:
        return False
    part = session.between(span.start, end_of(session, span))
    return bool((part.high[:, index] > 0).any())


def _facts(session: Session, span: Span, device: Device) -> Facts:
    def at_end(metric: str) -> float:
        return _last_known(session, span, f"{device.key}/{metric}")

    reserved, used, driver = at_end("reserved"), at_end("device_used"), at_end("driver_reserved")
    reserved_peak = peak_of(session, span, f"{device.key}/reserved").value
    if math.isnan(reserved_peak):
        reserved_peak = reserved
    beside_us = max(0.0, used - reserved) if math.isfinite(used - reserved) else 0.0
    driver = driver if math.isfinite(driver) else 0.0
    room = device.total - driver - beside_us - reserved_peak
    return Facts(
        device,
        label_of(session, device, "allocated"),
        label_of(session, device, "reserved"),
        label_of(session, device, "device_used"),
        before=_at_start(session, span, f"{device.key}/allocated"),
        after=at_end("allocated"),
        peak=peak_of(session, span, f"{device.key}/allocated"),
        reserved=reserved,
        reserved_peak=reserved_peak,
        used=used,
        process=at_end("process"),
        others=at_end("others"),
        headroom=room if math.isnan(room) else max(0.0, room),
    )


def _at_start(session: Session, span: Span, key: str) -> float:
    index = session.index(key)
    if index is not None and index >= len(span.before.values):
        # The series came to be within the span, together with its allocator: before, nothing was held.
        return 0.0
    return session.value(span.before, key)


def _last_known(session: Session, span: Span, key: str) -> float:
    """Return a series' value at the end of a span, or the last one before that that is known."""
    at_end = session.value(_end(session, span), key)
    index = session.index(key)
    if index is None or math.isfinite(at_end):
        return at_end
    column = session.between(span.start, end_of(session, span)).high[:, index]
    known = column[np.isfinite(column)]
    return float(known[-1]) if len(known) else NOT_AVAILABLE


def _end(session: Session, span: Span) -> Sample:
    return span.after if span.after is not None else session.last_sample
