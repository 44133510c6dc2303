"""Why a watched stretch of code ran out of memory: noted when it happens, judged when the code has failure.

Nothing of the error is kept, neither its traceback nor a frame nor a tensor: only figures and names.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from traceback import walk_tb
from typing import Any

from hfmem_widget.errors import WatchStateError
from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.errors import OutOfMemoryText, about_memory
from hfmem_widget.features.oom.incident import belongs_to, incident_of
from hfmem_widget.features.oom.model import Failure, HostLimit, Incident, ModelFacts, OomEvent
from hfmem_widget.features.oom.observer import OBSERVER, OomObserver, calls_of, outwards
from hfmem_widget.features.oom.words import caught_finding, finding_of
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Guide, LocalNote, Recorder, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.procfs import address_space
from hfmem_widget.text import size_text
from hfmem_widget.view.screen import Screen

MOST_KEPT = 4  # events of one watch that are kept: the last ones
MOST_MARKS = 8  # marks of one watch on the chart: the last ones
MOST_MODULES = 2_000  # modules of a model that are asked what they say of themselves

_watching: list[OutOfMemory] = []
"""Those that have begun and not ended."""


class OutOfMemory(Companion):
    """Watches one stretch of code for errors about memory, and says why.

    Of nested watches, only the innermost one that is not quiet shows its card.
    """

    stands_above = True

    def __init__(
        self,
        options: WatchOptions | None = None,
        screen: Screen | None = None,
        *,
        observer: OomObserver = OBSERVER,
    ) -> None:
        del screen
        self._observer = observer
        self._shows = options is None or not options.quiet
        self._shown_within: OutOfMemoryText | None = None
        self._name = "" if options is None else options.oom_dump
        self._folder: Path | None = None
        if self._name:
            from hfmem_widget.features.oom.dump import folder_of

            # At once: where nothing can be written, the watch is refused before the user's code has run.
            self._folder = folder_of(self._name)
        self._dumped_within: OutOfMemoryText | None = None
        self._monitor: Monitor | None = None
        self._recorder: Recorder | None = None
        self._root = 0
        # Each with what the session had at that instant.
        self._events: deque[tuple[OomEvent, tuple[Span, ...], Sample]] = deque(maxlen=MOST_KEPT)
        self._marks: deque[Guide] = deque()
        self._count = 0
        self._failure: Failure | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin to listen to the allocator, as soon as a tick finds that CUDA is up."""
        self._monitor, self._recorder, self._root = monitor, recorder, span.id
        _watching.append(self)
        self._observer.listen(self._note)
        if not self._observer.settled:
            recorder.subscribe(self._attach)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Note what the error says."""
        del span
        if self in _watching:
            _watching.remove(self)
        self._observer.leave(self._note)
        recorder.unsubscribe(self._attach)
        monitor, self._monitor, self._recorder = self._monitor, None, None
        found = about_memory(error)
        # A text that may mean something else is about memory if that did run out.
        if found is None or not (found[1].is_certain or self._count):
            return
        self._failure = Failure(
            said=found[1],
            calls=_calls_in(found[0]),
            sample=recorder.session.last_sample,
            model=_facts_of(monitor.attribution.subjects.all()[0]) if monitor else ModelFacts(),
            host=HostLimit(*address_space()),
        )
        for around in _watching:
            if self._shows:
                around._shown_within = found[1]  # noqa: SLF001  (one of its own kind)
            if self._folder is not None:
                around._dumped_within = found[1]  # noqa: SLF001

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add the finding to the session, and return the card; nothing if memory was not the reason."""
        failure = self._failure
        if failure is None:
            if self._count:
                session.findings.append(caught_finding(self._events[-1][0], self._count, span))
            return NOTHING
        incident, is_observed, time = self._incident(session, span, failure)
        if not is_observed:
            self._mark(session, incident.device.key, incident.asked, time, incident.allocated)
        diagnosis = diagnose(incident)
        advice = advise(incident, diagnosis)
        session.findings.append(finding_of(incident, diagnosis, advice, span))
        is_shown = not _are_same(self._shown_within, failure.said)
        folder = None if _are_same(self._dumped_within, failure.said) else self._folder
        if not is_shown and folder is None:
            return NOTHING
        # Not before it is needed: nearly no cell runs out of memory.
        from hfmem_widget.features.oom.html import out_of_memory_bundle

        earlier = self._count - is_observed
        card = partial(out_of_memory_bundle, incident, diagnosis, advice, earlier=earlier)
        kept = "" if folder is None else self._dump(folder, session, span, card())
        if kept and not (is_shown and self._shows):
            session.notes.append(LocalNote(kept))
        return card(kept=kept) if is_shown else NOTHING

    def _dump(self, folder: Path, session: Session, span: Span, lead: Mapping[str, str]) -> str:
        from hfmem_widget.features.oom.dump import dump
        from hfmem_widget.view.card import card_bundle

        card = partial(card_bundle, session, span, with_chart=False, lead=lead)
        return dump(folder, self._name, session, card, self._observer.segments)

    def _incident(
        self, session: Session, span: Span, failure: Failure
    ) -> tuple[Incident, bool, float]:
        """Return what is known of the error, whether it was observed, and when it was."""
        events = (known for known in reversed(self._events) if belongs_to(failure.said, known[0]))
        event, path, sample = next(events, (None, (), failure.sample))
        if event is None:
            path = _raised_in(session, span)
            # What was read as the error left the span that raised it is the nearest to it.
            sample = path[-1].after or failure.sample
        else:
            path = _with_counts(session, path)
        incident = incident_of(session, failure, event, sample, path=path, span=span)
        if not incident.capability:
            capability = self._observer.describe(incident.device.key)[1]
            incident = replace(incident, capability=capability)
        return incident, event is not None, sample.time

    def _note(self, event: OomEvent) -> None:
        session = self._recorder.session if self._recorder is not None else None
        if session is None or not session.running:
            return
        path = _path_to(session.open_spans, self._root)
        if not path:
            return
        self._count += 1
        sample = session.last_sample
        self._events.append((event, path, sample))
        allocated = event.readings.get("allocated", NOT_AVAILABLE)
        self._mark(session, event.device, event.asked, sample.time, allocated)

    def _mark(
        self, session: Session, device: str, asked: float, time: float, allocated: float
    ) -> None:
        """Mark on a device's chart that it ran out."""
        label = f"out of memory: {size_text(asked)} requested" if asked > 0 else "out of memory"
        mark = Guide(device, "oom", label, start=time, stop=time, first=allocated, last=allocated)
        if math.isnan(allocated) or mark in session.guides:
            return
        if len(self._marks) == MOST_MARKS and (oldest := self._marks.popleft()) in session.guides:
            session.guides.remove(oldest)
        self._marks.append(mark)
        session.guides.append(mark)

    def _attach(self, session: Session, samples: Sequence[Sample]) -> None:
        del session, samples
        self._observer.attach()
        if self._observer.settled and self._recorder is not None:
            self._recorder.unsubscribe(self._attach)


def _are_same(one: OutOfMemoryText | None, other: OutOfMemoryText) -> bool:
    # A tuple takes a NaN for itself; since Python 3.13 a dataclass does not.
    return one is not None and astuple(one) == astuple(other)


def _calls_in(error: BaseException) -> tuple[str, ...]:
    """Return the functions that ran where an error was raised, innermost first.

    Its traceback crosses threads, such as from autograd's into the one that waits for it; frames do not.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    around = outwards(frames[0].f_back if frames else None)
    return calls_of(chain(reversed(frames), around))


def _path_to(spans: Sequence[Span], root: int) -> tuple[Span, ...]:
    """Return the open spans from an outermost one inwards."""
    inside: dict[int, Span] = {}
    for span in spans:
        if span.id == root or span.parent in inside:
            inside[span.id] = span
    return tuple(inside.values())


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
    ended: list[Span] = []
    for span in path:
        try:
            ended.append(session.span(span.id))
        except WatchStateError:  # so many came after it that it was forgotten
            ended.append(span)
    return tuple(ended)


def _facts_of(models: Iterable[Any]) -> ModelFacts:
    """Return what models say of themselves, read from their own fields: no code of theirs is run."""
    modules = [vars(module) for model in models for module in islice(model.modules(), MOST_MODULES)]
    configs = [
        vars(fields["config"]) for fields in modules if hasattr(fields.get("config"), "__dict__")
    ]
    sizes = (config.get("vocab_size") for config in configs)
    return ModelFacts(
        checkpointing=any(fields.get("gradient_checkpointing") is True for fields in modules),
        vocabulary=next((size for size in sizes if isinstance(size, int) and size), 0),
        quantized=any(config.get("quantization_config") for config in configs),
    )
