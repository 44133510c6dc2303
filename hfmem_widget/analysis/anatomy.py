"""The anatomy of a device at a moment of a session: now, at the peak, at a step."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.kept import kept_at, with_kept
from hfmem_widget.analysis.others import UNTOUCHED, children_words, kept_text
from hfmem_widget.analysis.parts import (
    LABELS,
    MAY_BE_NOTES,
    Read,
    allocated_parts,
    at_its_peak,
    held_throughout,
    highest_row,
    known_of,
    overridden,
    parts_of,
    reader,
    with_made,
)
from hfmem_widget.errors import OptionError
from hfmem_widget.session import (
    HELD,
    Anatomy,
    Device,
    Peak,
    Sample,
    Session,
    Span,
    inside,
    outermost,
)
from hfmem_widget.session.steps import PHASES
from hfmem_widget.text import MIB, format_bytes, plain

Moment = str | int

NOW, AT_THE_PEAK = "now", "peak"
START_MOMENT, PEAK_MOMENT, END_MOMENT = "at the start", "at the peak", "at the end"

MADE_IN = {"backward": "gradients", "optimizer": "optimizer"}
"""What each phase of a step makes."""

TELLING = 0.005 * 2**20
"""Bytes below which a difference reads as 0.00 MiB."""

NOTES = {
    "beyond": "{} of these tensors is not allocated memory, such as weights mapped from a file.",
    "pinned": "PyTorch has pinned {} on the host for copies to GPUs, beside private memory.",
    "shared": "{} of private memory is shared memory, which other processes may have, too.",
    "untouched": f"At least {{}} more {UNTOUCHED}",
    "private_pools": "Up to {} of the cache is in private pools, as of CUDA graphs; "
    "other tensors cannot use it.",
    "page_cache": "{} of the free memory is page cache, which the kernel gives back when memory is needed.",
    "swap": "{} of this process is in swap.",
    "machine_swap": "{} of swap is in use, by all processes.",
}
"""What a reading says besides the parts, where it is 1 MiB or more."""


def anatomy(session: Session, at: Moment = NOW, device: str = "") -> Anatomy:
    """Return a device's memory at a moment, part by part, as `Session.anatomy` says.

    The newest reading of a finished session is its end. Raises `OptionError` if there is no such moment or no
    such device; the message says what there is.
    """
    here = _OnDevice(session, _device(session, device))
    if at == NOW:
        return here.at_sample(NOW if session.running else END_MOMENT, session.last_sample)
    if at == AT_THE_PEAK:
        roots = [span.id for span in outermost(session.spans)]
        highest = here.highest((*session.spans, *here.worst_phases(roots)))
        if highest is None or session.peak(here.key) > highest.peaks[here.key].value:
            return here.at_highest_sample(PEAK_MOMENT)
        return here.at_peak(PEAK_MOMENT, highest)
    if isinstance(at, bool) or not isinstance(at, int):
        message = f"at is {NOW!r}, {AT_THE_PEAK!r} or the number of a step, not {plain(at)!r}"
        raise OptionError(message)
    return here.at_step(at)


def peak_of(session: Session, span: Span, device: Device) -> Anatomy:
    """Return a device's memory at the peak of one span of a session, part by part."""
    here = _OnDevice(session, device)
    highest = here.highest(
        (*inside((span, *session.spans), span.id), *here.worst_phases([span.id]))
    )
    if highest is None:
        stop = math.inf if span.stop is None else span.stop
        return here.at_highest_sample(PEAK_MOMENT, span.start, stop)
    return here.at_peak(PEAK_MOMENT, highest)


def start_of(session: Session, span: Span, device: Device) -> Anatomy:
    """Return a device's memory at the start of a span, part by part."""
    return _OnDevice(session, device).at_sample(START_MOMENT, span.before)


def end_of(session: Session, span: Span, device: Device) -> Anatomy:
    """Return a device's memory at the end of a span, part by part; now, while the span is open."""
    return _OnDevice(session, device).at_sample(END_MOMENT, span.after or session.last_sample)


def _device(session: Session, key: str) -> Device:
    if key:
        by_key = {device.key: device for device in session.devices}
        if key not in by_key:
            message = f"this session has no device {plain(key)!r}; available: {', '.join(by_key)}"
            raise OptionError(message)
        return by_key[key]
    if not session.devices:
        raise OptionError("this session has no samples yet")
    gpus = [device for device in session.devices if ":" in device.key]
    peaks = {device: session.peak(f"{device.key}/allocated") for device in gpus}
    used = {device: peak for device, peak in peaks.items() if peak > 0}
    return max(used, key=used.__getitem__, default=session.devices[-1])


class _OnDevice:
    def __init__(self, session: Session, device: Device) -> None:
        self.key = f"{device.key}/allocated"
        self._session = session
        self._device = device

    def at_sample(self, moment: str, sample: Sample) -> Anatomy:
        return self._anatomy(moment, sample.time, self._read(sample))

    def at_peak(self, moment: str, span: Span) -> Anatomy:
        """Return the parts at a span's peak: what was there at both of its edges was there in between."""
        peak = span.peaks[self.key]
        if span.after is None or span.kind not in PHASES:
            stop = self._session.last_sample.time if span.stop is None else span.stop
            return self.at_highest_sample(moment, span.start, stop, peak=peak, span=span)
        before, after = self._read(span.before), self._read(span.after)
        held, made = held_throughout(before, after, MADE_IN.get(span.kind, ""))
        bounds = {
            # What was there before can only shrink.
            "before": known_of(after("before"), before("before")),
            "unattributed": known_of(before("unattributed"), after("unattributed")),
        }
        sums = at_its_peak(before, self._device, peak, span)
        read = overridden(before, held | bounds | sums)
        return self._anatomy(moment, span.start, read, peak=peak, made=made)

    def at_highest_sample(
        self,
        moment: str,
        start: float = 0.0,
        stop: float = math.inf,
        *,
        peak: Peak | None = None,
        span: Span | None = None,
    ) -> Anatomy:
        last = self._session.last_sample
        low, high = highest_row(self._session, self._device, start, stop) or (last, last)
        # Models are looked for at a span's end, too: where that has as much, its parts are the newest count.
        end = None if span is None else span.after
        highest = self._level(high) if peak is None else peak.value
        if end is not None and self._level(end) >= highest - NEXT_TO_NOTHING:
            low = high = end
        read = self._read(high)
        figures, made = held_throughout(self._read(low), read)
        if (kept := self._kept_by_group(high.time)) > read("unattributed"):
            figures["unattributed"] = kept
        notes = []
        if peak is not None:
            below = peak.value - read("allocated")
            if below >= TELLING:
                beyond = "unattributed" if math.isnan(read("unattributed")) else "activations"
                notes.append(
                    f"The parts are those of the highest sample, {format_bytes(below)} below the peak; "
                    f'the difference is counted as "{LABELS[beyond]}".'
                )
            figures |= at_its_peak(read, self._device, peak, span)
        read = overridden(read, figures)
        return self._anatomy(moment, high.time, read, peak=peak, made=made, notes=notes)

    def at_step(self, number: int) -> Anatomy:
        spans = self._session.spans
        steps = (span for span in reversed(spans) if span.kind == "step")
        step = next((span for span in steps if span.counts.get("step") == number), None)
        highest = None if step is None else self.highest(inside(spans, step.id))
        if highest is not None:
            return self.at_peak(f"at step {number}", highest)
        groups = [group for group in self._session.steps if self._device.key in group.devices]
        # The newest: the steps of a second training are counted from one again.
        having = (each for each in reversed(groups) if each.first <= number <= each.last)
        group = next(having, None)
        if group is None:
            numbers = [edge for each in groups for edge in (each.first, each.last)]
            there = f"it has steps {min(numbers)} to {max(numbers)}" if numbers else "it has none"
            raise OptionError(f"this session has no step {number} on {self._device.key}; {there}")
        worst = group.devices[self._device.key]
        peak = Peak(worst.peak, worst.certainty)
        several = f"in steps {group.first} to {group.last}"
        moment = f"at step {worst.worst}" if worst.worst else several
        parts = self.at_highest_sample(moment, group.start, group.stop, peak=peak)
        if not worst.worst or group.first == group.last:
            return parts
        merged = f"Steps {group.first} to {group.last} were merged"
        note = f"{merged}; this is the worst of them, step {worst.worst}."
        return replace(parts, notes=(note, *parts.notes))

    def highest(self, spans: Iterable[Span]) -> Span | None:
        """Return the span with the highest peak; the shortest of those that share it."""

        def order(span: Span) -> tuple[float, float]:
            length = math.inf if span.stop is None else span.stop - span.start
            return span.peaks[self.key].value, -length

        return max((span for span in spans if self.key in span.peaks), key=order, default=None)

    def worst_phases(self, roots: Iterable[int]) -> list[Span]:
        """Return the worst span of each kind, which are kept however many there were."""
        phases = (phase for root in roots for phase in self._session.phases(root))
        return [phase.highest[self.key] for phase in phases if self.key in phase.highest]

    def _kept_by_group(self, time: float) -> float:
        """Return the bytes that are not attributed after the group of steps at a time; NaN without a group.

        A group is based once, at its begin: what its steps keep looks like their activations until it ends.
        """
        groups = (each for each in self._session.steps if each.start <= time <= each.stop)
        group = next((each for each in groups if each.last > each.first), None)
        after = None if group is None else self._session.between(group.stop, math.inf)
        if after is None or len(after) < 2:
            return math.nan
        sample = Sample(float(after.time[1]), tuple(after.low[1].tolist()))
        return allocated_parts(self._read(sample)).get("unattributed", math.nan)

    def _level(self, sample: Sample) -> float:
        return self._session.value(sample, self.key)

    def _read(self, sample: Sample) -> Read:
        return reader(self._session, self._device, sample)

    def _anatomy(
        self,
        moment: str,
        time: float,
        read: Read,
        *,
        peak: Peak | None = None,
        made: Mapping[str, float] = MappingProxyType({}),
        notes: Iterable[str] = (),
    ) -> Anatomy:
        is_host = ":" not in self._device.key
        allocated, reserved = read("allocated"), read("reserved")
        is_shared = self._device.shared > 0
        parts = parts_of(read, self._device.total, is_host=is_host, is_shared=is_shared)
        parts = with_kept(with_made(parts, made), *kept_at(self._session, self._device.key, [time]))
        sizes = {metric: read(metric) for metric in NOTES}
        sizes["beyond"] = sum(part.bytes for part in parts if part.name in HELD) - allocated
        sizes["private_pools"] = min(read("private_pools"), reserved - allocated)
        if is_shared:  # page cache is a part
            del sizes["page_cache"]
        large = {metric: format_bytes(size) for metric, size in sizes.items() if size >= MIB}
        process = reserved if is_host else reserved + read("context")
        children = " ".join(children_words(self._session, read))
        may_be_made = (MAY_BE_NOTES[metric].format(format_bytes(made[metric])) for metric in made)
        kept = kept_text(read) if is_host else ""
        return Anatomy(
            device=self._device,
            moment=moment,
            time=time,
            allocated=allocated,
            reserved=reserved,
            process=read("process") if is_shared else process,
            parts=tuple(replace(p, note=children) if p.name == "children" else p for p in parts),
            certainty="sampled" if peak is None else peak.certainty,
            notes=(
                *may_be_made,
                *notes,
                *(NOTES[metric].format(size) for metric, size in large.items()),
                *filter(None, [kept]),
            ),
            made=made,
        )
