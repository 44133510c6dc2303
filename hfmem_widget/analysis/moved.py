"""Devices that filled while a span ran though PyTorch used none here: by its children, or by others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hfmem_widget.analysis.facts import end_of, uses_a_gpu
from hfmem_widget.analysis.readings import known_values
from hfmem_widget.session import Device, Session, Span
from hfmem_widget.text import MIB, format_bytes

METRIC = "device_used"

LEAST = 256 * MIB
LEAST_SHARE = 0.01
"""Bytes, and share of a device, from which on its rise is worth a sentence: a page in a browser is not."""

_ALIKE = 0.02
"""Share of the largest rise by which others may differ and still count as the same."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A device whose memory in use, by all processes, rose; bytes."""

    device: Device
    before: float
    highest: float
    after: float
    own: float  # the rise of this process' share; NaN where the driver does not report it

    @property
    def rise(self) -> float:
        """How far it rose above what was in use before."""
        return self.highest - self.before


def moved_devices(session: Session, span: Span | None = None) -> tuple[Moved, ...]:
    """Return the devices that filled in a span, or in the session, while PyTorch used none of them here."""
    if uses_a_gpu(session, span):
        return ()
    return tuple(
        moved
        for device in session.devices
        if ":" in device.key and (moved := _moved(session, span, device)) is not None
    )


def sentence(moved: tuple[Moved, ...]) -> str:
    """Return how many devices rose, by how much, how high, and by whom, without a full stop."""
    most_used = max(moved, key=lambda device: device.highest)
    key, highest = most_used.device.key, format_bytes(most_used.highest)
    rises = sorted(device.rise for device in moved)
    least, most = format_bytes(rises[0]), format_bytes(rises[-1])
    if len(moved) == 1:
        return f"{key} rose by {most} to {highest}, {_by_whom(moved)}"
    alike = rises[0] >= (1 - _ALIKE) * rises[-1]
    by = f"{most} each" if alike else f"{least} to {most}"
    return f"{len(moved)} devices rose by {by}, highest {highest} on {key}, {_by_whom(moved)}"


def _by_whom(moved: tuple[Moved, ...]) -> str:
    own = [device.own for device in moved]
    if any(rise >= LEAST for rise in own):
        return "by this process, but outside PyTorch"
    if any(map(math.isnan, own)):
        return "but not by PyTorch in this process"
    return "by other processes; this one used no GPU"


def _moved(session: Session, span: Span | None, device: Device) -> Moved | None:
    before, highest, after = _course(session, span, f"{device.key}/{METRIC}")
    least = max(LEAST, LEAST_SHARE * device.total if device.total > 0 else 0.0)
    if not highest - before >= least:
        return None
    own_before, own_highest, _ = _course(session, span, f"{device.key}/process")
    return Moved(device, before, highest, after, own_highest - own_before)


def _course(session: Session, span: Span | None, key: str) -> tuple[float, float, float]:
    """Return a series at the beginning, at its highest and at the end; NaN where it is not known."""
    start = 0.0 if span is None else span.start
    stop = session.last_sample.time if span is None else end_of(session, span)
    known = known_values(session, key, start, stop)
    if span is not None:
        samples = [sample for sample in (span.before, span.after) if sample is not None]
        edges = [value for sample in samples if math.isfinite(value := session.value(sample, key))]
        known = [*edges[:1], *known, *edges[1:]]
    return (known[0], max(known), known[-1]) if known else (math.nan,) * 3
