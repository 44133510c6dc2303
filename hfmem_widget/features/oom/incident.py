"""The report on an error that ended the code, with the figures of the moment it occurred; its finding."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from traceback import walk_tb
from typing import Any, NamedTuple

from hfmem_widget.analysis.facts import failed_spans, findings_of
from hfmem_widget.analysis.parts import key_of, known_of, parts_of
from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.errors import ON_THE_HOST, OutOfMemoryText, about_memory
from hfmem_widget.features.oom.model import (
    Advice,
    Failure,
    HostLimit,
    Incident,
    ModelFacts,
    OomDiagnosis,
)
from hfmem_widget.features.oom.observer import OomEvent, OomObserver, calls_of
from hfmem_widget.session import HELD, Anatomy, Device, Finding, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.heap.referents import outwards
from hfmem_widget.sources.procfs import address_space
from hfmem_widget.text import GIB, format_bytes

CONTEXT_UP_TO = 2 * GIB  # the most that CUDA and its libraries take outside of PyTorch's allocator
LIMITED_BELOW = 0.995  # a ceiling above this share of the device is rounding, not a limit
SAME_WITHIN = 0.01  # requests that differ by a smaller share are the same: a text has two decimals

MOST_MODULES = 2_000
"""The most modules of a model whose fields are read."""


def failure_of(
    error: BaseException, sample: Sample, models: Iterable[Any], *, ran_out: bool
) -> Failure | None:
    """Return an error's figures if it is about memory; a doubtful text counts only if memory `ran_out`."""
    error_and_text = about_memory(error)
    if error_and_text is None or not (error_and_text[1].is_certain or ran_out):
        return None
    return Failure(
        error_text=error_and_text[1],
        calls=_calls_in(error_and_text[0]),
        sample=sample,
        model=_facts_of(models),
        host=HostLimit(*address_space()),
    )


def belongs_to(error_text: OutOfMemoryText, event: OomEvent) -> bool:
    """Return whether an error's text may be about an event of the allocator."""
    if error_text.origin not in {"cuda", "no batch size", "other"}:
        return False
    if error_text.device and error_text.device != event.device:
        return False
    return math.isnan(error_text.asked) or math.isclose(
        error_text.asked, event.asked, rel_tol=SAME_WITHIN
    )


def device_of(
    session: Session, error_text: OutOfMemoryText, event: OomEvent | None, span: Span | None = None
) -> Device:
    """Return an error's device, or else the GPU with the highest peak; without a GPU, one without a key."""
    devices = {device.key: device for device in session.devices}
    key = error_text.device if event is None else event.device
    if key:
        return devices.get(key, Device(key, ""))
    gpus = [device for device in session.devices if ":" in device.key]
    if error_text.origin == "no batch size" and not gpus:  # also raised on the CPU
        gpus = list(session.devices)

    def highest(device: Device) -> float:
        series = f"{device.key}/allocated"
        peak = None if span is None else span.peaks.get(series)
        return known_of(session.peak(series) if peak is None else peak.value, 0.0)

    return max(gpus, key=highest, default=Device("", ""))


def incident_of(
    session: Session,
    failure: Failure,
    event: OomEvent | None = None,
    sample: Sample | None = None,
    *,
    path: Sequence[Span] = (),
    span: Span | None = None,
) -> Incident:
    """Return the incident of a failure.

    If the allocator was observed, `event` has its figures at that instant, `sample` is the nearest reading,
    and `path` has the open spans, outermost first. `span` is the outermost one, after its end.
    """
    error_text, sample = failure.error_text, sample or failure.sample
    device = device_of(session, error_text, event, span)
    seen = event or OomEvent(device.key, NOT_AVAILABLE, NOT_AVAILABLE, NOT_AVAILABLE)
    # The allocator's own readings are of that very instant, a sample is only near it.
    readings = dict(seen.readings)
    if event is None and not math.isnan(error_text.allocated):
        readings = dict.fromkeys(("allocated", "active", "requested"), error_text.allocated)
        readings["reserved"] = error_text.allocated + known_of(error_text.unallocated, 0.0)
    later = span.after if span is not None else None
    series = f"{device.key}/allocated"

    def read(metric: str) -> float:
        key = key_of(device, metric)
        value = session.value(sample, key)
        if metric in HELD and later is not None:
            # An error allocates no such tensors: those counted after it were there when memory ran out.
            counted_later = session.value(later, key)
            value = max(known_of(value, counted_later), known_of(counted_later, value))
        return known_of(readings.get(metric, NOT_AVAILABLE), value)

    total, allowed = _capacity(error_text, seen, device, read("driver_reserved"))
    is_shared = device.shared > 0
    whole = known_of(device.total, total) if is_shared else total
    reported_free, left = known_of(seen.free, error_text.free), whole - read("device_used")
    # Where CPU and GPU share memory, CUDA counts page cache as used.
    free = known_of(left, reported_free) if is_shared else known_of(reported_free, left)
    if error_text.origin not in ON_THE_HOST and free >= 0:
        readings["device_used"] = whole - free
    allocated, reserved = read("allocated"), read("reserved")
    readings["others"] = others = _others(error_text, whole - free, reserved, read("others"))
    is_host = ":" not in device.key
    parts = parts_of(read, known_of(device.total, total), is_host=is_host, is_shared=is_shared)
    process = reserved if is_host else reserved + read("context")
    anatomy = Anatomy(
        device=device,
        moment="when it ran out",
        time=sample.time,
        allocated=allocated,
        reserved=reserved,
        process=read("process") if is_shared else process,
        parts=parts,
        certainty="sampled" if event is None else "exact",
    )
    evaluations = [part for part in path if part.kind in {"evaluate", "predict"}]
    at_its_start = session.value(evaluations[-1].before, series) if evaluations else NOT_AVAILABLE
    steps = [step for step in session.steps if step.longest > 0]
    lengths = [step.longest for step in steps]
    numbers = (part.counts.get("step", 0) for part in reversed(path) if part.kind == "step")
    current = next(numbers, NOT_AVAILABLE)
    usual = [step.longest for step in steps if not step.first <= current <= step.last]
    leaks = (
        finding
        for finding in (findings_of(session, span) if span else ())
        if finding.kind == "leak" and finding.evidence.get("device", device.key) == device.key
    )
    return Incident(
        device=device,
        origin=error_text.origin,
        asked=known_of(seen.asked, error_text.asked),
        total=total,
        free=free,
        allowed=allowed,
        allocated=allocated,
        reserved=reserved,
        others=others,
        processes=_foreign(error_text, reserved),
        preemptive=error_text.preemptive,
        blocks=seen.blocks,
        anatomy=anatomy if parts else None,
        path=tuple(path),
        calls=seen.calls or failure.calls,
        contents=session.contents,
        model=failure.model,
        host=failure.host,
        capability=seen.capability,
        autocast=seen.autocast,
        growth=next(leaks, None),
        grown=known_of(allocated - at_its_start, 0.0),
        lengths=(min(lengths), max(lengths)) if lengths else (),
        usual=(min(usual), max(usual)) if usual else (),
        seen=failure.seen,
    )


def _capacity(
    error_text: OutOfMemoryText, seen: OomEvent, device: Device, driver: float
) -> tuple[float, float]:
    """Return the device's capacity for programs, and the limit of this process, NaN without one."""
    if error_text.origin == "mps":  # its text has only the limit, which Apple recommends
        return error_text.allowed, NOT_AVAILABLE
    total = known_of(known_of(seen.total, error_text.total), device.total - known_of(driver, 0.0))
    allowed = known_of(error_text.allowed, seen.ceiling)
    return total, allowed if allowed < LIMITED_BELOW * total else NOT_AVAILABLE


def _foreign(error_text: OutOfMemoryText, reserved: float) -> tuple[tuple[int, float], ...]:
    """Return the other processes; in a container the driver's id of this one differs from ours."""
    if not math.isnan(error_text.in_use) or math.isnan(reserved):
        return error_text.processes
    ours = [
        process
        for process in error_text.processes
        if reserved <= process[1] <= reserved + CONTEXT_UP_TO
    ]
    return tuple(process for process in error_text.processes if process not in ours[:1])


def _others(error_text: OutOfMemoryText, used: float, reserved: float, sampled: float) -> float:
    foreign = _foreign(error_text, reserved)
    if foreign:
        return sum(size for _, size in foreign)
    if not math.isnan(sampled):
        # The limit of MPS is one on this process alone, whatever other processes use.
        if error_text.origin == "mps":
            return NOT_AVAILABLE
        # The sample may be from before this process returned its cached memory to the device.
        beside = used - reserved
        return sampled if math.isnan(beside) else min(sampled, max(0.0, beside))
    if not math.isnan(error_text.in_use):
        return max(0.0, used - error_text.in_use)
    if error_text.processes:
        return 0.0
    beyond = used - reserved
    # Up to `CONTEXT_UP_TO`, all of it may be this process' own context.
    return beyond if beyond > CONTEXT_UP_TO else NOT_AVAILABLE


def _calls_in(error: BaseException) -> tuple[str, ...]:
    """Return the functions that were running when an error was raised, innermost first, across threads."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    around = outwards(frames[0].f_back if frames else None)
    return calls_of(chain(reversed(frames), around))


def _facts_of(models: Iterable[Any]) -> ModelFacts:
    """Return settings in the models' own fields, without running their code; one that fails is skipped."""
    checkpointing, vocabulary, quantized = False, 0, False
    for model in models:
        with suppress(Exception):
            modules = [vars(module) for module in islice(model.modules(), MOST_MODULES)]
            held = (fields.get("config") for fields in modules)
            configs = [vars(config) for config in held if hasattr(config, "__dict__")]
            sizes = (config.get("vocab_size") for config in configs)
            known_sizes = (size for size in sizes if isinstance(size, int) and size)
            checkpointing |= any(each.get("gradient_checkpointing") is True for each in modules)
            vocabulary = vocabulary or next(known_sizes, 0)
            quantized |= any(config.get("quantization_config") for config in configs)
    return ModelFacts(checkpointing, vocabulary, quantized)


_EVIDENCE = (
    "asked", "free", "total", "allowed", "allocated", "reserved", "largest_free", "others", "room",
)  # fmt: skip
"""The figures of an incident that its finding has, if they are known."""

Noted = tuple[OomEvent, tuple[Span, ...], Sample]
"""An event, and the session's open spans and last sample at that instant."""


class Report(NamedTuple):
    """The explanation of an error that ended the code."""

    incident: Incident
    diagnosis: OomDiagnosis
    advice: tuple[Advice, ...]
    is_observed: bool  # whether the allocator was seen to run out
    time: float


def report_on(
    session: Session, span: Span, failure: Failure, noted: Sequence[Noted], observer: OomObserver
) -> Report:
    """Judge the error that ended a watch's outermost span."""
    events = (entry for entry in reversed(noted) if belongs_to(failure.error_text, entry[0]))
    event, path, sample = next(events, (None, (), failure.sample))
    if event is None:
        path = _raised_in(session, span)
        # The sample nearest to the error is that at the end of the span that raised it.
        sample = path[-1].after or failure.sample
    else:
        # Spans have their counts only at their end; a span that was dropped since stays as it was.
        by_id = {ended.id: ended for ended in session.spans}
        path = tuple(by_id.get(noted_span.id, noted_span) for noted_span in path)
    incident = incident_of(session, failure, event, sample, path=path, span=span)
    if not incident.capability:
        incident = replace(incident, capability=observer.describe(incident.device.key)[1])
    diagnosis = diagnose(incident)
    advice = advise(incident, diagnosis)
    return Report(incident, diagnosis, advice, event is not None, sample.time)


def _raised_in(session: Session, root: Span) -> tuple[Span, ...]:
    """Return the spans in which an error was raised, outermost first."""
    by_id = {span.id: span for span in session.spans}
    path: list[Span] = []
    failed = failed_spans(session, root)
    span = max(failed, key=lambda part: (part.start, part.id), default=None)
    while span is not None:
        path.insert(0, span)
        span = by_id.get(span.parent or 0) if span.id != root.id else None
    return tuple(path) if path and path[0].id == root.id else (root,)


def finding_of(
    incident: Incident, diagnosis: OomDiagnosis, advice: Sequence[Advice], span: Span
) -> Finding:
    """Return the finding of an error, for the span that it ended."""
    figures = {name: getattr(incident, name) for name in _EVIDENCE} | {"total": incident.capacity}
    finite = {name: int(value) for name, value in figures.items() if math.isfinite(value)}
    return Finding(
        kind="oom",
        severity="critical",
        title=f"{headline(incident)} ({diagnosis.name}).",
        evidence={
            "device": incident.device.key,
            "cause": diagnosis.cause,
            "diagnosis": diagnosis.sentence,
            "origin": incident.origin,
            "observed": incident.blocks is not None,
            **finite,
        },
        advice=tuple(part.sentence() for part in advice),
        span_id=span.id,
    )


def caught_finding(last: OomEvent, count: int, span: Span) -> Finding:
    """Return the finding of errors that the code itself caught, for its span."""
    errors = "An out-of-memory error was" if count == 1 else f"{count} out-of-memory errors were"
    which = "it" if count == 1 else "the last one"
    return Finding(
        kind="oom",
        severity="info",
        title=f"{errors} caught; {which} requested {format_bytes(last.asked)} on {last.device}, with "
        f"{format_bytes(last.free)} free.",
        evidence={
            "device": last.device,
            "caught": count,
            "asked": int(last.asked),
            "free": int(last.free),
        },
        span_id=span.id,
    )


def headline(incident: Incident) -> str:
    """Return the device that ran out of memory and the request, as a sentence without a full stop."""
    asked = f"{format_bytes(incident.asked)} requested" if incident.asked > 0 else ""
    free = f"{format_bytes(incident.free)} free" if incident.free >= 0 else ""
    if incident.limit > 0 and not incident.free < incident.asked:
        free = f"this process may use {format_bytes(incident.limit)}"
    figures = ", ".join(filter(None, (asked, free)))
    return f"Out of memory on {incident.place}" + (f": {figures}" if figures else "")
