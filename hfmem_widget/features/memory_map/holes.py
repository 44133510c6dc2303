"""Finds whether fragmentation made a span need more memory, by the allocator's counters."""

import math
from collections.abc import Iterator

import numpy as np

from hfmem_widget.analysis.parts import known_of
from hfmem_widget.session import Device, Finding, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import MIB, format_bytes, format_count, format_share

LEAST_HOLES = 512 * MIB
# Share of reserved memory: training models like bert-large had 1 to 11 % more reserved than allocated.
LEAST_SHARE = 0.15

EXPANDABLE = (
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF in older versions of torch) "
    "before CUDA is initialised (in a notebook: restart the kernel). Segments then grow instead of being cut "
    "into pieces, which could save up to {} of reserved memory."
)
ROOM = "Lower the peak, for example with a smaller batch, or free memory on the device."
LOOK = (
    "%memanatomy --layout shows where the holes are and how large; %%memwatch --map shows them while a "
    "cell runs."
)


def holes(session: Session, span: Span) -> Iterator[Finding]:
    """Yield a finding for each device that reserved more because of holes when most was allocated."""
    for device in session.devices:
        unusable, reserved = _at_the_fullest(session, span, device)
        retries = _risen(session, span, device, "alloc_retries")
        # A request that failed was also retried.
        retries = max(0.0, retries - _risen(session, span, device, "ooms"))
        is_large = unusable > LEAST_HOLES and unusable > LEAST_SHARE * reserved
        if not (is_large or retries):
            continue
        title, advice = [], []
        if is_large:
            title.append(
                f"{format_bytes(unusable)} ({format_share(unusable / reserved)}) of reserved memory on "
                f"{device.key} lay in holes between tensors when most was reserved"
            )
            advice.append(EXPANDABLE.format(format_bytes(unusable)))
        if retries:
            times = "once" if retries == 1 else f"{format_count(retries)} times"
            title.append(
                f"{'' if is_large else f'On {device.key} '}the allocator ran out of memory {times} and had "
                "to empty its cache, which waits for the GPU"
            )
            advice += [] if is_large else [ROOM]
        evidence = {"device": device.key, "holes": int(unusable)}
        evidence |= {"reserved": int(reserved), "retries": int(retries)}
        text = ", and ".join(title) + "."
        yield Finding("fragmentation", "warn", text, evidence, (*advice, LOOK), span.id)


def _at_the_fullest(session: Session, span: Span, device: Device) -> tuple[float, float]:
    """Return the bytes in holes when most was allocated, and those reserved; 0 and NaN if not measured."""
    keys = [f"{device.key}/{metric}" for metric in ("allocated", "reserved", "inactive_split")]
    columns = [column for key in keys if (column := session.index(key)) is not None]
    before = known_of(session.value(span.before, keys[1]), 0.0)
    peaks = [span.peaks.get(key) for key in keys[:2]]
    allocated, reserved = (NOT_AVAILABLE if peak is None else peak.value for peak in peaks)
    if len(columns) < len(keys) or not reserved > before:
        return 0.0, NOT_AVAILABLE
    stop = math.inf if span.stop is None else span.stop
    part = session.between(span.start, stop, columns)
    highest, unusable = part.high[:, 0], part.low[:, 2]
    rows = np.isfinite(highest) & np.isfinite(unusable)
    if not rows.any():
        return 0.0, NOT_AVAILABLE
    fullest = int(np.argmax(np.where(rows, highest, -np.inf)))
    # A sample may have missed the peak: holes were then at most what the peaks leave.
    return max(0.0, min(float(unusable[fullest]), reserved - allocated)), reserved


def _risen(session: Session, span: Span, device: Device, metric: str) -> float:
    if span.after is None:
        return 0.0
    key = f"{device.key}/{metric}"
    risen = session.value(span.after, key) - session.value(span.before, key)
    return risen if risen > 0 else 0.0
