"""The figures of a card on one device in one span, and the findings of that span."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hfmem_widget.analysis.parts import known_of, known_values
from hfmem_widget.session import Device, Finding, Peak, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.recorder import BROKEN_OFF
from hfmem_widget.session.series import OVERVIEW
from hfmem_widget.text import MIB, plain

PATIENCE = 0.3
"""Seconds before a live display appears: a cell that ends earlier never flickers."""

QUICK = 1.0
"""A cell of at most this many seconds gets one line."""

NEXT_TO_NOTHING = MIB
"""Bytes below which a change is not worth showing: private memory varies by itself."""

_UNKNOWN = Peak(NOT_AVAILABLE, "exact")

GRAVITY = {"critical": 0, "warn": 1, "info": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCost:
    """The figures of one device over one span; bytes, NaN where not known."""

    allocated_label: str = ""
    reserved_label: str = ""
    before: float = NOT_AVAILABLE
    after: float = NOT_AVAILABLE
    """Allocated at the span's edges."""
    peak: Peak = _UNKNOWN
    reserved_peak: float = NOT_AVAILABLE
    """The highest allocated and reserved bytes within the span."""
    headroom: float = NOT_AVAILABLE
    """Bytes that could still have been reserved at the peak."""

    @property
    def left_behind(self) -> float:
        """Allocated at the end less allocated at the start."""
        return self.after - self.before

    @property
    def above_start(self) -> float:
        """Peak less allocated at the start."""
        return self.peak.value - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(SpanCost):
    """The figures of one device over one span, and the use of the device at its end."""

    device: Device
    used_label: str
    reserved: float
    used: float
    process: float
    others: float
    """On the whole device (`used`), by this process, by other processes."""

    @property
    def capacity(self) -> float:
        """Bytes available to the device's allocator; they may be a part of the machine's memory."""
        return self.device.shared or self.device.total


def active_devices(session: Session, span: Span | None = None) -> tuple[Device, ...]:
    """Return the GPUs with allocated memory, or else the host; for many ranks, the overview's device."""
    overview = [device for device in session.devices if device.key == OVERVIEW]
    if overview:
        return (*overview,)
    # The host need not be there: a watch may be of two GPUs alone.
    return tuple(_used(session, span)) or session.devices[-1:]


def uses_a_gpu(session: Session, span: Span | None = None) -> bool:
    """Return whether anything was allocated on a device besides the host, in a span or in the session."""
    return any(_used(session, span))


def _used(session: Session, span: Span | None) -> Iterator[Device]:
    # The host is the one device without an index.
    others = (device for device in session.devices if ":" in device.key)
    return (each for each in others if _holds(session, span, f"{each.key}/allocated"))


def _holds(session: Session, span: Span | None, key: str) -> bool:
    if span is None:
        return session.peak(key) > 0
    if peak_of(session, span, key).value > 0:
        return True
    if span.stop is None:
        return session.highest_in(span.id, key) > 0
    return max(known_values(session, key, span.start, end_of(session, span)), default=0.0) > 0


def facts_of(session: Session, span: Span) -> tuple[Facts, ...]:
    """Return the facts of every active device, in the session's order."""
    return tuple(_facts(session, span, device) for device in active_devices(session, span))


def did_nothing(session: Session, span: Span) -> bool:
    """Return whether a span was over at once, without error, and changed no memory worth a figure."""
    is_quick = span.outcome == "done" and span.duration < QUICK
    return is_quick and changed_less(session, span, NEXT_TO_NOTHING)


def changed_less(session: Session, span: Span, least: float) -> bool:
    """Return whether a span left behind, and peaked by, less than some bytes on every device."""
    return all(
        # Both are false of what is not known.
        abs(facts.left_behind) < least and facts.above_start < least
        for facts in facts_of(session, span)
    )


def label_of(session: Session, device: Device, metric: str) -> str:
    """Return the label of a device's metric as plain text."""
    index = session.index(f"{device.key}/{metric}")
    return plain(session.series[index].label if index is not None else "") or metric


def peak_of(session: Session, span: Span, key: str) -> Peak:
    """Return the peak of a series in a span: that of the ledger, or else of the samples so far."""
    return span.peaks.get(key) or Peak(session.highest_in(span.id, key), "sampled")


def outcome_of(session: Session, span: Span) -> str:
    """Return how a span ended, or why it has not; an open span of a recording is not running."""
    if span.outcome or session.running:
        return plain(span.outcome) or "running"
    return BROKEN_OFF if session.broken_off else "not ended when it was saved"


def ran_out(finding: Finding) -> bool:
    """Return whether a finding is about an out-of-memory error that ended the code."""
    return (finding.kind, finding.severity) == ("oom", "critical")


def end_of(session: Session, span: Span) -> float:
    """Return when a span ended, or the newest sample's time while it is open."""
    return span.stop if span.stop is not None else session.last_sample.time


def _facts(session: Session, span: Span, device: Device) -> Facts:
    def at_end(metric: str) -> float:
        key = f"{device.key}/{metric}"
        if math.isfinite(value := session.value(span.after or session.last_sample, key)):
            return value
        values = known_values(session, key, span.start, end_of(session, span))
        return values[-1] if values else NOT_AVAILABLE

    key = f"{device.key}/allocated"
    index = session.index(key)
    # A series that appeared within the span came with its allocator: before, nothing was allocated.
    came_later = index is not None and index >= len(span.before.values)
    reserved, used, driver = at_end("reserved"), at_end("device_used"), at_end("driver_reserved")
    reserved_peak = peak_of(session, span, f"{device.key}/reserved").value
    if math.isnan(reserved_peak):
        reserved_peak = reserved
    # The driver and the allocator are read at different instants; context and others at one.
    others = at_end("others")
    beside_us = NOT_AVAILABLE if device.shared else at_end("context") + others
    beside_us = max(0.0, known_of(known_of(beside_us, used - reserved), 0.0))
    driver = driver if math.isfinite(driver) else 0.0
    room = device.total - driver - beside_us - reserved_peak
    room = min(room, (device.shared or math.inf) - reserved_peak)
    peak, after = peak_of(session, span, key), at_end("allocated")
    # What malloc has freed and kept is mapped, and can be used again.
    mappable = at_end("mappable") + known_of(at_end("cached"), 0.0)
    room = min(room, mappable - max(0.0, peak.value - after))  # NaN without a limit
    return Facts(
        device=device,
        allocated_label=label_of(session, device, "allocated"),
        reserved_label=label_of(session, device, "reserved"),
        used_label=label_of(session, device, "device_used"),
        before=0.0 if came_later else session.value(span.before, key),
        after=after,
        peak=peak,
        reserved=reserved,
        reserved_peak=reserved_peak,
        used=used,
        process=at_end("process"),
        others=others,
        headroom=room if math.isnan(room) else max(0.0, room),
    )


def findings_of(session: Session, span: Span) -> tuple[Finding, ...]:
    """Return the findings of a span, and of the whole session, the gravest first."""
    findings = (finding for finding in session.findings if finding.span_id in {None, span.id})
    return tuple(sorted(findings, key=lambda finding: GRAVITY[finding.severity]))


def failed_spans(session: Session, root: Span) -> list[Span]:
    """Return the spans that an error ended, the watched one first."""
    return [span for span in session.spans if span.id >= root.id and span.outcome == root.outcome]
