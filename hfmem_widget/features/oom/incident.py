"""Putting together what is known of an out-of-memory error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hfmem_widget.analysis.parts import Read, parts_of
from hfmem_widget.analysis.readings import known_of
from hfmem_widget.features.oom.model import Incident
from hfmem_widget.features.oom.shortage import Shortage
from hfmem_widget.features.oom.texts import ON_THE_HOST, OutOfMemoryText
from hfmem_widget.session import HELD, Anatomy, Device, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import GIB

RAN_OUT = "when it ran out"

CONTEXT_UP_TO = 2 * GIB
"""What the driver may count of a process beyond what PyTorch has reserved: its context and libraries."""

LIMITED_BELOW = 0.995
"""From which share of the device on a ceiling is no limit, but rounding."""

SAME_WITHIN = 0.01
"""A text has two decimals: requests that differ by less are taken for the same."""


def belongs_to(told: OutOfMemoryText, shortage: Shortage) -> bool:
    """Return whether a shortage that was noted may be the one that an error tells of."""
    if told.origin not in {"cuda", "no batch size"}:
        return False
    if told.device and told.device != shortage.device:
        return False
    return math.isnan(told.asked) or math.isclose(told.asked, shortage.asked, rel_tol=SAME_WITHIN)


def device_of(session: Session, told: OutOfMemoryText, shortage: Shortage | None) -> Device:
    """Return the device that an error is about; where it does not say, the GPU most is allocated on.

    Without a key where no GPU is known: what there is of the machine's own memory explains nothing then.
    """
    known = {one.key: one for one in session.devices}
    key = told.device if shortage is None else shortage.device
    if key:
        return known.get(key, Device(key, ""))
    gpus = [one for one in session.devices if ":" in one.key]
    if told.origin == "no batch size" and not gpus:  # which is tried on the CPU as well
        gpus = list(session.devices)
    return max(
        gpus,
        key=lambda one: known_of(session.peak(f"{one.key}/allocated"), 0.0),
        default=Device("", ""),
    )


def incident_of(
    session: Session,
    told: OutOfMemoryText,
    shortage: Shortage | None,
    sample: Sample,
    *,
    path: Sequence[Span] = (),
    calls: Sequence[str] = (),
    later: Sample | None = None,
) -> Incident:
    """Put together what is known of an error.

    Parameters
    ----------
    session : Session
    told : OutOfMemoryText
        What its text says.
    shortage : Shortage or None
        What the allocator had at that instant, where it was seen.
    sample : Sample
        The session's reading next to it.
    path : sequence of Span
        What was open then, outermost first.
    calls : sequence of str
        What ran, where the shortage does not say.
    later : Sample, optional
        A reading after the code has failed. An error makes nothing: the weights, gradients and states that
        are found then were there when it ran out, even if nobody had counted them yet.
    """
    device = device_of(session, told, shortage)
    readings = _readings(told, shortage)

    def read(metric: str) -> float:
        key = f"{device.key}/{metric}"
        value = session.value(sample, key)
        if metric in HELD and later is not None:
            found = session.value(later, key)
            value = max(known_of(value, found), known_of(found, value))
        return known_of(readings.get(metric, NOT_AVAILABLE), value)

    total, allowed = _capacity(told, shortage, device, read("driver_reserved"))
    free = known_of(shortage.free if shortage else NOT_AVAILABLE, told.free)
    free = known_of(free, total - read("device_used"))
    if told.origin not in ON_THE_HOST and free >= 0:
        readings["device_used"] = total - free
    anatomy = _anatomy(device, sample.time, read, total, exact=shortage is not None)
    allocated, reserved = read("allocated"), read("reserved")
    return Incident(
        device=device,
        origin=told.origin,
        asked=known_of(shortage.asked if shortage else NOT_AVAILABLE, told.asked),
        total=total,
        free=free,
        allowed=allowed,
        allocated=allocated,
        reserved=reserved,
        others=_others(told, total - free, reserved, read("others")),
        processes=_foreign(told, reserved),
        preemptive=told.preemptive,
        blocks=shortage.blocks if shortage else None,
        anatomy=anatomy,
        path=tuple(path),
        calls=tuple(shortage.calls if shortage and shortage.calls else calls),
        contents=session.contents,
        capability=shortage.capability if shortage else (),
        autocast=shortage.autocast if shortage else None,
        lengths=_lengths(session),
    )


def _readings(told: OutOfMemoryText, shortage: Shortage | None) -> dict[str, float]:
    """Return what is known of the allocator at that instant, which a sample is only near to."""
    if shortage is not None:
        return dict(shortage.readings)
    if math.isnan(told.allocated):
        return {}
    reserved = told.allocated + known_of(told.unallocated, 0.0)
    return {
        "allocated": told.allocated,
        "reserved": reserved,
        "active": told.allocated,
        "requested": told.allocated,
    }


def _capacity(
    told: OutOfMemoryText, shortage: Shortage | None, device: Device, driver: float
) -> tuple[float, float]:
    """Return what the device has for programs, and what this process may use of it if that is less."""
    if told.origin == "mps":  # whose limit is Apple's own recommendation
        return told.allowed, NOT_AVAILABLE
    total = known_of(shortage.total if shortage else NOT_AVAILABLE, told.total)
    total = known_of(total, device.total - known_of(driver, 0.0))
    allowed = known_of(told.allowed, shortage.ceiling if shortage else NOT_AVAILABLE)
    return total, allowed if allowed < LIMITED_BELOW * total else NOT_AVAILABLE


def _foreign(told: OutOfMemoryText, reserved: float) -> tuple[tuple[int, float], ...]:
    """Return the processes that are not this one.

    In a container the driver knows this one by another id, and PyTorch then tells it as somebody else's.
    """
    if not math.isnan(told.in_use) or math.isnan(reserved):
        return told.processes
    ours = [one for one in told.processes if reserved <= one[1] <= reserved + CONTEXT_UP_TO]
    return tuple(one for one in told.processes if one not in ours[:1])


def _others(told: OutOfMemoryText, used: float, reserved: float, sampled: float) -> float:
    foreign = _foreign(told, reserved)
    if foreign:
        return sum(size for _, size in foreign)
    if not math.isnan(sampled):
        return sampled
    if not math.isnan(told.in_use):
        return max(0.0, used - told.in_use)
    if told.processes:
        return 0.0
    beyond = used - reserved
    # Up to there it may all be this process' own context.
    return beyond if beyond > CONTEXT_UP_TO else NOT_AVAILABLE


def _anatomy(
    device: Device, time: float, read: Read, total: float, *, exact: bool
) -> Anatomy | None:
    is_host = ":" not in device.key
    parts = parts_of(read, known_of(device.total, total), is_host=is_host)
    if not parts:
        return None
    reserved = read("reserved")
    return Anatomy(
        device=device,
        moment=RAN_OUT,
        time=time,
        allocated=read("allocated"),
        reserved=reserved,
        process=reserved if is_host else reserved + read("context"),
        parts=parts,
        certainty="exact" if exact else "sampled",
    )


def _lengths(session: Session) -> tuple[float, ...]:
    longest = [one.longest for one in session.steps if one.longest > 0]
    return (min(longest), max(longest)) if longest else ()
