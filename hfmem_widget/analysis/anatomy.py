"""The anatomy of a device at a moment of a session: now, at the peak, at a step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from hfmem_widget.analysis.parts import LABELS, Read, parts_of
from hfmem_widget.analysis.readings import at_its_peak, held_throughout, known_of, overridden
from hfmem_widget.errors import OptionError
from hfmem_widget.session import HELD, Anatomy, Device, Peak, Sample, Session, Span
from hfmem_widget.session.steps import PHASES
from hfmem_widget.text import MIB, format_bytes, plain

Moment = str | int

NOW, AT_THE_PEAK = "now", "peak"
PEAK_MOMENT, END_MOMENT = "at the peak", "at the end"

MADE_IN = {"backward": "gradients", "optimizer": "optimizer"}
"""What each part of a step makes."""

SAMPLED_NOTE = (
    "The parts are those of the highest sample, {} below the peak; "
    'the difference is counted as "{}".'
)
FOLDED_NOTE = "Steps {} to {} were merged; this is the worst of them, step {}."
BEYOND_NOTE = "{} of these tensors is not allocated memory, such as weights mapped from a file."


def anatomy(session: Session, at: Moment = NOW, device: str = "") -> Anatomy:
    """Return what a device's memory is, or was, made of.

    Parameters
    ----------
    session : Session
    at : "now", "peak" or int, optional
        The newest reading, which of a finished session is its end; the highest allocated of the session; or
        the peak of a step, by its number.
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
        key = f"{found.key}/allocated"
        roots = [span.id for span in session.spans if span.parent is None]
        span = _highest((*session.spans, *_worst_phases(session, found, roots)), found)
        if span is None or session.peak(key) > span.peaks[key].value:
            return _at_highest_sample(session, found, moment=PEAK_MOMENT)
        return _at_peak(session, found, span, PEAK_MOMENT)
    if isinstance(at, bool) or not isinstance(at, int):
        message = f"at is {NOW!r}, {AT_THE_PEAK!r} or the number of a step, not {plain(at)!r}"
        raise OptionError(message)
    return _at_step(session, found, at)


def peak_of(session: Session, span: Span, device: Device) -> Anatomy:
    """Return what a device's memory was made of at the peak of one span of a session."""
    inside = [*_within(session.spans, span), *_worst_phases(session, device, [span.id])]
    highest = _highest(inside, device)
    if highest is None:
        stretch = (span.start, math.inf if span.stop is None else span.stop)
        return _at_highest_sample(session, device, stretch, moment=PEAK_MOMENT)
    return _at_peak(session, device, highest, PEAK_MOMENT)


def end_of(session: Session, span: Span, device: Device) -> Anatomy:
    """Return what a device's memory was made of when a span ended; now, while it is open."""
    after = session.last_sample if span.after is None else span.after
    return _anatomy(device, END_MOMENT, after.time, _reader(session, device, after))


def devices_with_parts(session: Session) -> tuple[Device, ...]:
    """Return the devices on which tensors of models or optimizers were found at any time."""
    return tuple(
        device
        for device in session.devices
        if any(_was_ever_held(session, f"{device.key}/{metric}") for metric in HELD)
    )


def _was_ever_held(session: Session, key: str) -> bool:
    column = session.index(key)
    return column is not None and bool((session.timeline.high[:, column] > 0).any())


def _device(session: Session, key: str) -> Device:
    if key:
        known = {device.key: device for device in session.devices}
        if key not in known:
            message = f"this session has no device {plain(key)!r}; available: {', '.join(known)}"
            raise OptionError(message)
        return known[key]
    if not session.devices:
        message = "this session has no samples yet"
        raise OptionError(message)
    others = [one for one in session.devices if ":" in one.key]
    used = [one for one in others if session.peak(f"{one.key}/allocated") > 0]
    if not used:
        return session.devices[-1]
    return max(used, key=lambda one: session.peak(f"{one.key}/allocated"))


def _at_sample(session: Session, device: Device, sample: Sample) -> Anatomy:
    moment = NOW if session.running else END_MOMENT
    return _anatomy(device, moment, sample.time, _reader(session, device, sample))


def _at_peak(session: Session, device: Device, span: Span, moment: str) -> Anatomy:
    """Return the parts at a span's peak: what was there at both of its edges was there in between."""
    peak = span.peaks[f"{device.key}/allocated"]
    if span.after is None or span.kind not in PHASES:
        stop = session.last_sample.time if span.stop is None else span.stop
        stretch = (span.start, stop)
        return _at_highest_sample(session, device, stretch, moment=moment, peak=peak, span=span)
    before = _reader(session, device, span.before)
    after = _reader(session, device, span.after)
    held, notes = held_throughout(before, after, MADE_IN.get(span.kind, ""))
    unattributed = known_of(before("unattributed"), after("unattributed"))
    known = held | {"unattributed": unattributed} | at_its_peak(before, device, peak, span)
    return _anatomy(device, moment, span.start, overridden(before, known), peak=peak, notes=notes)


def _at_highest_sample(
    session: Session,
    device: Device,
    stretch: tuple[float, float] = (0.0, math.inf),
    *,
    moment: str,
    peak: Peak | None = None,
    span: Span | None = None,
) -> Anatomy:
    """Return the parts of the row of the timeline where most was allocated, raised to the peak if known."""
    low, high = _highest_row(session, device, *stretch)
    there = _reader(session, device, high)
    held, notes = held_throughout(_reader(session, device, low), there)
    if peak is None:
        return _anatomy(device, moment, high.time, overridden(there, held), notes=notes)
    below = peak.value - there("allocated")
    if below > 0:
        beyond = "unattributed" if math.isnan(there("unattributed")) else "activations"
        notes.append(SAMPLED_NOTE.format(format_bytes(below), LABELS[beyond]))
    known = held | at_its_peak(there, device, peak, span)
    return _anatomy(device, moment, high.time, overridden(there, known), peak=peak, notes=notes)


def _at_step(session: Session, device: Device, number: int) -> Anatomy:
    spans = session.spans
    step = next(
        (one for one in reversed(spans) if one.kind == "step" and one.counts.get("step") == number),
        None,
    )
    moment = f"at step {number}"
    inside = None if step is None else _highest(_within(spans, step), device)
    if inside is not None:
        return _at_peak(session, device, inside, moment)
    groups = [group for group in session.steps if device.key in group.devices]
    # The newest: the steps of a second training are counted from one again.
    group = next((one for one in reversed(groups) if one.first <= number <= one.last), None)
    if group is None:
        numbers = [edge for one in groups for edge in (one.first, one.last)]
        there = f"it has steps {min(numbers)} to {max(numbers)}" if numbers else "it has none"
        message = f"this session has no step {number} on {device.key}; {there}"
        raise OptionError(message)
    worst = group.devices[device.key]
    peak = Peak(worst.peak, worst.certainty)
    stretch, moment = (group.start, group.stop), f"at step {worst.worst}"
    found = _at_highest_sample(session, device, stretch, moment=moment, peak=peak)
    if group.first == group.last:
        return found
    folded = FOLDED_NOTE.format(group.first, group.last, worst.worst)
    return replace(found, notes=(folded, *found.notes))


def _anatomy(
    device: Device,
    moment: str,
    time: float,
    read: Read,
    *,
    peak: Peak | None = None,
    notes: Iterable[str] = (),
) -> Anatomy:
    is_host = _is_host(device)
    allocated, reserved = read("allocated"), read("reserved")
    parts = parts_of(read, device.total, is_host=is_host)
    beyond = sum(part.bytes for part in parts if part.name in HELD) - allocated
    return Anatomy(
        device=device,
        moment=moment,
        time=time,
        allocated=allocated,
        reserved=reserved,
        process=reserved if is_host else reserved + read("context"),
        parts=parts,
        certainty="sampled" if peak is None else peak.certainty,
        notes=(*notes, BEYOND_NOTE.format(format_bytes(beyond))) if beyond >= MIB else tuple(notes),
    )


def _is_host(device: Device) -> bool:
    return ":" not in device.key


def _reader(session: Session, device: Device, sample: Sample) -> Read:
    return lambda metric: session.value(sample, f"{device.key}/{metric}")


def _worst_phases(session: Session, device: Device, roots: Iterable[int]) -> list[Span]:
    """Return the worst span of each kind, which are kept however many there were."""
    key = f"{device.key}/allocated"
    return [
        phase.highest[key]
        for root in roots
        for phase in session.phases(root)
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


def _highest_row(
    session: Session, device: Device, start: float, stop: float
) -> tuple[Sample, Sample]:
    """Return the row of the timeline where most was allocated: its lowest and its highest values."""
    column = session.index(f"{device.key}/allocated")
    part = session.between(start, stop)
    if column is None or not len(part):
        return session.last_sample, session.last_sample
    values = part.high[:, column].tolist()
    row = max(range(len(values)), key=lambda at: (not math.isnan(values[at]), values[at]))
    time = float(part.time[row])
    return Sample(time, tuple(part.low[row].tolist())), Sample(time, tuple(part.high[row].tolist()))
