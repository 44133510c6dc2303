"""Whether fragmentation made a span need more memory, by what the allocator counts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hfmem_widget.analysis.readings import known_of
from hfmem_widget.session import Device, Finding, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import MIB, format_bytes, format_count, format_share

LEAST_HOLES = 512 * MIB
LEAST_SHARE = 0.15
"""Of what is reserved: bert-large's shape trained with a peak of 1 to 11 % more reserved than allocated."""

EXPANDABLE = (
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF in older versions of torch) "
    "before CUDA is initialised (in a notebook: restart the kernel). Segments then grow instead of being cut "
    "into pieces, which could save up to {} of reserved memory."
)
ROOM = "Lower the peak, for example with a smaller batch, or free memory on the device."
LOOK = "%memmap shows where the holes are and how large; %%memwatch --map shows them while a cell runs."


def holes(session: Session, span: Span) -> Iterator[Finding]:
    """Yield a finding for each device whose allocator had to take more because of holes.

    At the fullest moment of the span, holes between tensors are what nobody could use. They only matter
    where the allocator asked the driver for more within the span: else what is reserved is from before.
    """
    for device in session.devices:
        unusable, reserved = _at_the_fullest(session, span, device)
        retries = _risen(session, span, device, "alloc_retries")
        # A request that failed in the end was also tried again.
        retries = max(0.0, retries - _risen(session, span, device, "ooms"))
        large = unusable > LEAST_HOLES and unusable > LEAST_SHARE * reserved
        if not (large or retries):
            continue
        title, advice = [], []
        if large:
            title.append(
                f"{format_bytes(unusable)} ({format_share(unusable / reserved)}) of reserved memory on "
                f"{device.key} lay in holes between tensors when most was reserved"
            )
            advice.append(EXPANDABLE.format(format_bytes(unusable)))
        if retries:
            title.append(_retried(retries) if title else f"On {device.key} {_retried(retries)}")
            if not large:
                advice.append(ROOM)
        yield Finding(
            "fragmentation",
            "warn",
            ", and ".join(title) + ".",
            {
                "device": device.key,
                "holes": int(unusable),
                "reserved": int(reserved),
                "retries": int(retries),
            },
            (*advice, LOOK),
            span.id,
        )


def _retried(retries: float) -> str:
    times = "once" if retries == 1 else f"{format_count(retries)} times"
    return f"the allocator ran out of memory {times} and had to empty its cache, which waits for the GPU"


def _at_the_fullest(session: Session, span: Span, device: Device) -> tuple[float, float]:
    """Return what lay in holes when most was allocated, and what was reserved; 0 where all is well."""
    metrics = ("allocated", "reserved", "inactive_split")
    columns = [session.index(f"{device.key}/{metric}") for metric in metrics]
    before = known_of(session.value(span.before, f"{device.key}/reserved"), 0.0)
    peaks = [span.peaks.get(f"{device.key}/{metric}") for metric in ("allocated", "reserved")]
    known = [column for column in columns if column is not None]
    allocated, reserved = (NOT_AVAILABLE if one is None else one.value for one in peaks)
    if len(known) < len(metrics) or not reserved > before:
        return 0.0, NOT_AVAILABLE
    stop = math.inf if span.stop is None else span.stop
    part = session.between(span.start, stop, known)
    rows = np.isfinite(part.high[:, 0]) & np.isfinite(part.low[:, 2])
    if not rows.any():
        return 0.0, NOT_AVAILABLE
    fullest = int(np.argmax(np.where(rows, part.high[:, 0], -np.inf)))
    # A sample may have missed the peak: holes were then no more than what the peaks leave.
    unusable = min(float(part.low[fullest, 2]), reserved - allocated)
    return max(0.0, unusable), reserved


def _risen(session: Session, span: Span, device: Device, metric: str) -> float:
    if span.after is None:
        return 0.0
    key = f"{device.key}/{metric}"
    risen = session.value(span.after, key) - session.value(span.before, key)
    return risen if risen > 0 else 0.0
