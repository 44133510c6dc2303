"""The anatomy of a device at a moment of a session: now, at the peak, at a step."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hfmem_widget.analysis.parts import Read, parts_of
from hfmem_widget.errors import OptionError
from hfmem_widget.labels import plain
from hfmem_widget.session import HELD, Anatomy, Device, Peak, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.units import format_bytes

Moment = str | int

NOW, AT_THE_PEAK = "now", "peak"

BACKWARD_NOTE = "Up to {} of the activations are gradients that were being made."
OPTIMIZER_NOTE = "Up to {} of the temporaries are optimizer states that were being made."
SAMPLED_NOTE = (
    "The parts are those of the highest sample, {} below the peak; what is between stands under {}."
)
FOLDED_NOTE = "Steps {} to {} are kept together; this is the worst of them."


def anatomy(session: Session, at: Moment = NOW, device: str = "") -> Anatomy:
    """Return what a device's memory is, or was, made of.

    Parameters
    ----------
    session : Session
    at : "now", "peak" or int, optional
        The newest reading; the highest allocated of the session; or the peak of a step, by its number.
    device : str, optional
        Its key; the one on which most was allocated by default.

    Raises
    ------
    OptionError
        If there is no such moment or no such device; the message says what there is.
    """
    found = _device(session, device)
    if at == NOW:
        return _at_sample(session, found, session.last_sample)
    if at == AT_THE_PEAK:
        span = _highest((*session.spans, *_worst_phases(session, found)), found)
        if span is None:
            return _at_sample(session, found, _highest_sample(session, found), "at the peak")
        return _at_peak(session, found, span, "at the peak")
    if isinstance(at, bool) or not isinstance(at, int):
        message = f"at is {NOW!r}, {AT_THE_PEAK!r} or the number of a step, not {plain(at)!r}"
        raise OptionError(message)
    return _at_step(session, found, at)


def devices_with_parts(session: Session) -> tuple[Device, ...]:
    """Return the devices on which tensors of models or optimizers were found."""
    return tuple(
        device
        for device in session.devices
        if any(session.latest(f"{device.key}/{metric}") > 0 for metric in HELD)
    )


def _device(session: Session, key: str) -> Device:
    if key:
        known = {device.key: device for device in session.devices}
        if key not in known:
            message = (
                f"there is no device {plain(key)!r} in this session; there is {', '.join(known)}"
            )
            raise OptionError(message)
        return known[key]
    if not session.devices:
        message = "this session has read nothing yet"
        raise OptionError(message)
    others = [one for one in session.devices if ":" in one.key]
    used = [one for one in others if session.peak(f"{one.key}/allocated") > 0]
    if not used:
        return session.devices[-1]
    return max(used, key=lambda one: session.peak(f"{one.key}/allocated"))


def _at_sample(session: Session, device: Device, sample: Sample, moment: str = NOW) -> Anatomy:
    return _anatomy(device, moment, sample.time, _reader(session, device, sample))


def _at_peak(session: Session, device: Device, span: Span, moment: str) -> Anatomy:
    """Return the parts at a span's peak: what was there at both of its edges was there in between."""
    peak = span.peaks[f"{device.key}/allocated"]
    if span.after is None or not _is_told_apart(span):
        return _at_highest_sample(session, device, span, peak, moment)
    before = _reader(session, device, span.before)
    after = _reader(session, device, span.after)
    held = {metric: min(before(metric), after(metric)) for metric in HELD}
    notes = []
    for metric, note in (("gradients", BACKWARD_NOTE), ("optimizer", OPTIMIZER_NOTE)):
        made = after(metric) - before(metric)
        if made > 0:
            notes.append(note.format(format_bytes(made)))
    read = _overridden(
        before,
        {**held, **_peaks(span, device), "active": NOT_AVAILABLE},
    )
    return _anatomy(device, moment, span.start, read, peak=peak, notes=notes)


def _at_highest_sample(
    session: Session, device: Device, span: Span, peak: Peak, moment: str
) -> Anatomy:
    stop = session.last_sample.time if span.stop is None else span.stop
    sample = _highest_sample(session, device, span.start, stop)
    there = _reader(session, device, sample)
    below = peak.value - there("allocated")
    notes = []
    if below > 0:
        named = "not attributed" if math.isnan(there("unattributed")) else "activations"
        notes.append(SAMPLED_NOTE.format(format_bytes(below), named))
    known = {**_peaks(span, device), "requested": NOT_AVAILABLE, "active": NOT_AVAILABLE}
    return _anatomy(device, moment, sample.time, _overridden(there, known), peak=peak, notes=notes)


def _at_step(session: Session, device: Device, number: int) -> Anatomy:
    spans = session.spans
    step = next(
        (one for one in reversed(spans) if one.kind == "step" and one.counts.get("step") == number),
        None,
    )
    moment = f"at step {number}"
    if step is not None and step.stop is not None:
        inside = _highest(_within(spans, step), device)
        if inside is not None:
            return _at_peak(session, device, inside, moment)
    group = next((one for one in session.steps if one.first <= number <= one.last), None)
    if group is None or device.key not in group.devices:
        numbers = [edge for one in session.steps for edge in (one.first, one.last)]
        there = f"steps {min(numbers)} to {max(numbers)}" if numbers else "no steps"
        message = f"this session has no step {number} on {device.key}; it has {there}"
        raise OptionError(message)
    worst = group.devices[device.key]
    sample = _highest_sample(session, device, group.start, group.stop)
    known = {"allocated": worst.peak, "requested": NOT_AVAILABLE, "active": NOT_AVAILABLE}
    notes = [FOLDED_NOTE.format(group.first, group.last)] if group.last > group.first else []
    read = _overridden(_reader(session, device, sample), known)
    peak = Peak(worst.peak, worst.certainty)
    return _anatomy(device, f"at step {worst.worst}", group.start, read, peak=peak, notes=notes)


def _anatomy(
    device: Device,
    moment: str,
    time: float,
    read: Read,
    *,
    peak: Peak | None = None,
    notes: Iterable[str] = (),
) -> Anatomy:
    reserved, context = read("reserved"), read("context")
    return Anatomy(
        device=device,
        moment=moment,
        time=time,
        allocated=read("allocated"),
        reserved=reserved,
        process=reserved if _is_host(device) else reserved + context,
        parts=parts_of(read, device.total, is_host=_is_host(device)),
        certainty="sampled" if peak is None else peak.certainty,
        notes=tuple(notes),
    )


def _is_host(device: Device) -> bool:
    return ":" not in device.key


def _reader(session: Session, device: Device, sample: Sample) -> Read:
    return lambda metric: session.value(sample, f"{device.key}/{metric}")


def _overridden(read: Read, known: dict[str, float]) -> Read:
    return lambda metric: known[metric] if metric in known else read(metric)


def _peaks(span: Span, device: Device) -> dict[str, float]:
    known = {}
    for metric in ("allocated", "requested", "reserved"):
        peak = span.peaks.get(f"{device.key}/{metric}")
        known[metric] = NOT_AVAILABLE if peak is None else peak.value
    return known


def _is_told_apart(span: Span) -> bool:
    """Return whether nothing comes and goes within a span but what its edges show."""
    return span.kind in {"forward", "backward", "optimizer"}


def _worst_phases(session: Session, device: Device) -> list[Span]:
    """Return the worst span of each kind, which are kept however many there were."""
    key = f"{device.key}/allocated"
    return [
        phase.highest[key]
        for root in session.spans
        if root.parent is None
        for phase in session.phases(root.id)
        if key in phase.highest
    ]


def _highest(spans: Iterable[Span], device: Device) -> Span | None:
    """Return the span with the highest peak; the shortest of those that share it."""
    key = f"{device.key}/allocated"
    known = [one for one in spans if key in one.peaks]
    if not known:
        return None

    def order(span: Span) -> tuple[float, float]:
        length = math.inf if span.stop is None else span.stop - span.start
        return (span.peaks[key].value, -length)

    return max(known, key=order)


def _within(spans: tuple[Span, ...], root: Span) -> list[Span]:
    inside = {root.id}
    found = [root]
    for span in spans:
        if span.parent in inside:
            inside.add(span.id)
            found.append(span)
    return found


def _highest_sample(
    session: Session, device: Device, start: float = 0.0, stop: float = math.inf
) -> Sample:
    """Return the row of the timeline where most was allocated."""
    column = session.index(f"{device.key}/allocated")
    part = session.between(start, stop)
    if column is None or not len(part):
        return session.last_sample
    values = part.high[:, column].tolist()
    row = max(range(len(values)), key=lambda at: (not math.isnan(values[at]), values[at]))
    return Sample(float(part.time[row]), tuple(part.high[row].tolist()))
