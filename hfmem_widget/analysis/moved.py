"""Devices that filled while a span ran though PyTorch used none here: by its children, or by others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hfmem_widget.analysis.facts import end_of, uses_a_gpu
from hfmem_widget.session import Device, Session, Span
from hfmem_widget.text import MIB, format_bytes

METRIC = "device_used"

LEAST = 256 * MIB
LEAST_SHARE = 0.01
"""Bytes, and share of a device, from which on its rise is worth telling: a page in a browser is none."""

_ALIKE = 0.02
"""Share of the largest rise by which others may differ and still be told as the same."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A device whose memory in use rose; bytes.

    Attributes
    ----------
    device : Device
    before, highest, after : float
        In use on the whole device.
    own : float
        How far what this process uses of it rose; NaN where the driver does not tell.
    """

    device: Device
    before: float
    highest: float
    after: float
    own: float

    @property
    def rise(self) -> float:
        """How far it rose above what was in use before."""
        return self.highest - self.before


def moved_devices(session: Session, span: Span | None = None) -> tuple[Moved, ...]:
    """Return the devices that filled in a span, or in the session, while PyTorch used none of them here."""
    if uses_a_gpu(session, span):
        return ()
    found = (_moved(session, span, one) for one in session.devices if ":" in one.key)
    return tuple(one for one in found if one is not None)


def sentence(moved: tuple[Moved, ...]) -> str:
    """Return how many devices rose, by how much, how high, and by whom, without a stop."""
    highest = max(moved, key=lambda one: one.highest)
    rises = sorted(one.rise for one in moved)
    least, most = format_bytes(rises[0]), format_bytes(rises[-1])
    if len(moved) == 1:
        how = f"{highest.device.key} rose by {most} to {format_bytes(highest.highest)}"
    else:
        alike = rises[0] >= (1 - _ALIKE) * rises[-1]
        by = f"{most} each" if alike else f"{least} to {most}"
        how = (
            f"{len(moved)} devices rose by {by}, highest {format_bytes(highest.highest)} on "
            f"{highest.device.key}"
        )
    return f"{how}, {_by_whom(moved)}"


def _by_whom(moved: tuple[Moved, ...]) -> str:
    own = [one.own for one in moved]
    if any(one >= LEAST for one in own):
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
    index = session.index(key)
    if index is None:
        return (math.nan,) * 3
    start = 0.0 if span is None else span.start
    stop = session.last_sample.time if span is None else end_of(session, span)
    column = session.between(start, stop).high[:, index]
    known = [float(one) for one in column[np.isfinite(column)]]
    if span is not None:
        edges = [session.value(one, key) for one in (span.before, span.after) if one is not None]
        first, *last = [one for one in edges if math.isfinite(one)] or [math.nan]
        known = [first, *known, *last] if math.isfinite(first) else known
    return (known[0], max(known), known[-1]) if known else (math.nan,) * 3
