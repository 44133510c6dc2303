"""What a watch reports of an error that ended its code, or that the code caught: the finding and the card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.incident import belongs_to, incident_of
from hfmem_widget.features.oom.model import Advice, Failure, Incident, OomDiagnosis
from hfmem_widget.features.oom.observer import OomEvent, OomObserver
from hfmem_widget.session import Finding, Sample, Session, Span
from hfmem_widget.text import size_text

KIND = "oom"

_EVIDENCE = (
    "asked", "free", "total", "allowed", "allocated", "reserved", "largest_free", "others", "room",
)  # fmt: skip
"""The figures of an incident that its finding has, where they are known."""

Noted = tuple[OomEvent, tuple[Span, ...], Sample]
"""An event, and what the session had at that instant: the open spans, and its last sample."""


class Report(NamedTuple):
    """The explanation of an error that ended the code."""

    incident: Incident
    diagnosis: OomDiagnosis
    advice: tuple[Advice, ...]
    is_observed: bool  # whether the allocator was seen to run out
    time: float


def report_on(
    session: Session,
    span: Span,
    failure: Failure,
    noted: Sequence[Noted],
    observer: OomObserver,
) -> Report:
    """Judge the error that ended a watch's outermost span."""
    events = (entry for entry in reversed(noted) if belongs_to(failure.error_text, entry[0]))
    event, path, sample = next(events, (None, (), failure.sample))
    if event is None:
        path = _raised_in(session, span)
        # What was read as the error left the span that raised it is the nearest to it.
        sample = path[-1].after or failure.sample
    else:
        # As they ended, since only then is counted what was in them; one of very many may be forgotten.
        ended = {each.id: each for each in session.spans}
        path = tuple(ended.get(each.id, each) for each in path)
    incident = incident_of(session, failure, event, sample, path=path, span=span)
    if not incident.capability:
        capability = observer.describe(incident.device.key)[1]
        incident = replace(incident, capability=capability)
    diagnosis = diagnose(incident)
    advice = advise(incident, diagnosis)
    return Report(incident, diagnosis, advice, event is not None, sample.time)


def _raised_in(session: Session, root: Span) -> tuple[Span, ...]:
    """Return the spans that an error went through, outermost first."""
    by_id = {span.id: span for span in session.spans}
    raised = [span for span in by_id.values() if span.outcome == root.outcome]
    raised = [span for span in raised if span.id >= root.id]
    path: list[Span] = []
    span = max(raised, key=lambda span: (span.start, span.id), default=None)
    while span is not None:
        path.insert(0, span)
        span = None if span.id == root.id or span.parent is None else by_id.get(span.parent)
    return tuple(path) if path and path[0].id == root.id else (root,)


def finding_of(
    incident: Incident, diagnosis: OomDiagnosis, advice: Sequence[Advice], span: Span
) -> Finding:
    """Return an error as a finding of the span that it ended."""
    figures = {name: getattr(incident, name) for name in _EVIDENCE} | {"total": incident.capacity}
    finite = {name: int(value) for name, value in figures.items() if math.isfinite(value)}
    return Finding(
        kind=KIND,
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
    """Return errors that the code itself caught as a finding of its span."""
    errors = "An out-of-memory error was" if count == 1 else f"{count} out-of-memory errors were"
    which = "it" if count == 1 else "the last one"
    return Finding(
        kind=KIND,
        severity="info",
        title=f"{errors} caught; {which} requested {size_text(last.asked)} on {last.device}, with "
        f"{size_text(last.free)} free.",
        evidence={
            "device": last.device,
            "caught": count,
            "asked": int(last.asked),
            "free": int(last.free),
        },
        span_id=span.id,
    )


def headline(incident: Incident) -> str:
    """Return what ran out and what was requested, without a full stop."""
    asked = f"{size_text(incident.asked)} requested" if incident.asked > 0 else ""
    free = f"{size_text(incident.free)} free" if incident.free >= 0 else ""
    figures = ", ".join(filter(None, (asked, free)))
    return f"Out of memory on {incident.place}" + (f": {figures}" if figures else "")
