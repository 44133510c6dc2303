"""What is made of an error once some code has failed: whether memory ran out, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from traceback import walk_tb
from typing import Any

from hfmem_widget.features.oom.errors import about_memory
from hfmem_widget.features.oom.incident import belongs_to, incident_of
from hfmem_widget.features.oom.model import (
    Failure,
    HostLimit,
    Incident,
    ModelFacts,
    OomEvent,
)
from hfmem_widget.features.oom.observer import OomObserver, calls_of, outwards
from hfmem_widget.session import Sample, Session, Span
from hfmem_widget.sources.procfs import address_space

Noted = tuple[OomEvent, tuple[Span, ...], Sample]
"""An event, and what the session had at that instant: the open spans, and its last sample."""

MOST_MODULES = 2_000
"""Modules of a model that are asked what they say of themselves."""


def failure_of(
    error: BaseException, sample: Sample, models: Iterable[Any], *, ran_out: bool
) -> Failure | None:
    """Return what an error says if it is about memory, of which nothing is kept.

    A text that may mean something else is about memory if that did run out.
    """
    found = about_memory(error)
    if found is None or not (found[1].is_certain or ran_out):
        return None
    return Failure(
        said=found[1],
        calls=_calls_in(found[0]),
        sample=sample,
        model=_facts_of(models),
        host=HostLimit(*address_space()),
    )


def judged(
    session: Session,
    span: Span,
    failure: Failure,
    noted: Sequence[Noted],
    observer: OomObserver,
) -> tuple[Incident, bool, float]:
    """Return what is known of the error, whether it was observed, and when it was."""
    events = (known for known in reversed(noted) if belongs_to(failure.said, known[0]))
    event, path, sample = next(events, (None, (), failure.sample))
    if event is None:
        path = _raised_in(session, span)
        # What was read as the error left the span that raised it is the nearest to it.
        sample = path[-1].after or failure.sample
    else:
        path = _with_counts(session, path)
    incident = incident_of(session, failure, event, sample, path=path, span=span)
    if not incident.capability:
        capability = observer.describe(incident.device.key)[1]
        incident = replace(incident, capability=capability)
    return incident, event is not None, sample.time


def _calls_in(error: BaseException) -> tuple[str, ...]:
    """Return the functions that ran where an error was raised, innermost first.

    Its traceback crosses threads, such as from autograd's into the one that waits for it; frames do not.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    around = outwards(frames[0].f_back if frames else None)
    return calls_of(chain(reversed(frames), around))


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


def _with_counts(session: Session, path: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans as they ended: only then is it known what was counted in them."""
    ended = {span.id: span for span in session.spans}
    # One may be forgotten, if very many came after it.
    return tuple(ended.get(span.id, span) for span in path)


def _facts_of(models: Iterable[Any]) -> ModelFacts:
    """Return what models say of themselves; an odd one says nothing, and costs the others nothing."""
    known = []
    for model in models:
        with suppress(Exception):
            known.append(_facts_of_one(model))
    return ModelFacts(
        checkpointing=any(facts.checkpointing for facts in known),
        vocabulary=next((facts.vocabulary for facts in known if facts.vocabulary), 0),
        quantized=any(facts.quantized for facts in known),
    )


def _facts_of_one(model: Any) -> ModelFacts:
    """Return what a model says of itself, read from its own fields: no code of its own is run."""
    modules = [vars(module) for module in islice(model.modules(), MOST_MODULES)]
    configs = [
        vars(fields["config"]) for fields in modules if hasattr(fields.get("config"), "__dict__")
    ]
    sizes = (config.get("vocab_size") for config in configs)
    return ModelFacts(
        checkpointing=any(fields.get("gradient_checkpointing") is True for fields in modules),
        vocabulary=next((size for size in sizes if isinstance(size, int) and size), 0),
        quantized=any(config.get("quantization_config") for config in configs),
    )
