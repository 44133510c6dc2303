"""Why a watched stretch of code ran out of memory: noted when it happens, judged when the code has failed.

Nothing of the error is kept, neither its traceback nor a frame nor a tensor: only figures and names.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import chain, islice
from traceback import walk_tb
from typing import Any

from hfmem_widget.analysis.readings import known_of
from hfmem_widget.errors import WatchStateError
from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.errors import about_memory, out_of_memory
from hfmem_widget.features.oom.incident import belongs_to, incident_of
from hfmem_widget.features.oom.model import Advice, Diagnosis, HostLimit, Incident, ModelFacts
from hfmem_widget.features.oom.observer import SHORTAGES, ShortageObserver, calls_of, outwards
from hfmem_widget.features.oom.shortage import Shortage
from hfmem_widget.features.oom.texts import OutOfMemoryText
from hfmem_widget.features.oom.words import caught_finding, finding_of
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Guide, Recorder, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.procfs import address_space
from hfmem_widget.text import size_text
from hfmem_widget.view.screen import Screen

MOST_KEPT = 4
"""Shortages of one stretch of code; of more, the last."""

MOST_MARKS = 8
"""Of one stretch of code on the chart; of more, the last."""

MOST_MODULES = 2_000
"""Of a model, so many modules are asked what they say of themselves."""


_watching: list[OutOfMemory] = []
"""Those that have begun and not ended."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """A shortage, and what the session had at that instant."""

    shortage: Shortage
    path: tuple[Span, ...]
    sample: Sample


@dataclass(frozen=True, slots=True)
class _Failed:
    """What is known of the error that ended the code."""

    told: OutOfMemoryText
    calls: tuple[str, ...]
    sample: Sample
    model: ModelFacts
    host: HostLimit


class OutOfMemory(Companion):
    """Watches one stretch of code for errors about memory, and says why.

    Parameters
    ----------
    options : WatchOptions, optional
        Whether its card is shown: it is not where all is quiet. Where one watch lies in another, the inner
        one's is, and that is enough.
    screen : Screen, optional
    observer : ShortageObserver, optional
    """

    stands_above = True

    def __init__(
        self,
        options: WatchOptions | None = None,
        screen: Screen | None = None,
        *,
        observer: ShortageObserver = SHORTAGES,
    ) -> None:
        del screen
        self._observer = observer
        self._shows = options is None or not options.quiet
        self._shown_within: OutOfMemoryText | None = None
        self._monitor: Monitor | None = None
        self._recorder: Recorder | None = None
        self._root = 0
        self._noted: deque[_Noted] = deque(maxlen=MOST_KEPT)
        self._marks: deque[Guide] = deque()
        self._count = 0
        self._failed: _Failed | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin to listen to the allocator; where CUDA is not up yet, as soon as a tick finds that it is."""
        self._monitor, self._recorder, self._root = monitor, recorder, span.id
        _watching.append(self)
        self._observer.listen(self._note)
        if not self._observer.settled:
            recorder.subscribe(self._attach)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Take from the error what it says."""
        del span
        if self in _watching:
            _watching.remove(self)
        self._observer.leave(self._note)
        recorder.unsubscribe(self._attach)
        monitor, self._monitor, self._recorder = self._monitor, None, None
        about = about_memory(error)
        told = out_of_memory(about)
        if told is None or about is None or not self._is_meant(told):
            return
        self._failed = _Failed(
            told=told,
            calls=_calls_in(about),
            sample=recorder.session.last_sample,
            model=_facts_of(monitor.attribution.subjects.all()[0]) if monitor else ModelFacts(),
            host=HostLimit(*address_space()),
        )
        for around in _watching if self._shows else ():
            around._shown_within = told  # noqa: SLF001  (one of its own kind)

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add the finding to the session, and return the card; nothing where memory was no reason."""
        failed = self._failed
        if failed is None:
            if self._count:
                last = self._noted[-1].shortage
                session.findings.append(caught_finding(last, self._count, span))
            return NOTHING
        incident, seen, time = self._incident(session, span, failed)
        if not seen:
            self._mark(session, incident.device.key, incident.asked, time, incident.allocated)
        diagnosis = diagnose(incident)
        advice = advise(incident, diagnosis)
        session.findings.append(finding_of(incident, diagnosis, advice, span))
        if self._shown_within is not None and _same(failed.told, self._shown_within):
            return NOTHING
        return _bundle(incident, diagnosis, advice, earlier=self._count - seen)

    def _incident(
        self, session: Session, span: Span, failed: _Failed
    ) -> tuple[Incident, int, float]:
        """Return what is known of the error, how many of the shortages noted are of it, and when it was."""
        of_it = (one for one in reversed(self._noted) if belongs_to(failed.told, one.shortage))
        noted = next(of_it, None)
        path = _raised_in(session, span) if noted is None else _with_counts(session, noted.path)
        sample = _edge_of(path[-1], failed.sample) if noted is None else noted.sample
        incident = incident_of(
            session,
            failed.told,
            None if noted is None else noted.shortage,
            sample,
            path=path,
            calls=failed.calls,
            later=span.after,
        )
        key = f"{incident.device.key}/allocated"
        evaluation = incident.within("evaluate", "predict")
        began = (
            session.value(evaluation.before, key) if evaluation is not None else incident.allocated
        )
        incident = replace(
            incident,
            model=failed.model,
            capability=incident.capability or self._observer.describe(incident.device.key)[1],
            host=failed.host,
            growth=_growth_on(incident.device.key, session, span),
            grown=known_of(incident.allocated - began, 0.0),
            left_behind=_left_behind(session, span, key),
        )
        return incident, 0 if noted is None else 1, sample.time

    def _note(self, shortage: Shortage) -> None:
        session = self._recorder.session if self._recorder is not None else None
        if session is None or not session.running:
            return
        path = _path_to(session.open_spans, self._root)
        if not path:
            return
        self._count += 1
        sample = session.last_sample
        self._noted.append(_Noted(shortage, path, sample))
        allocated = shortage.readings.get("allocated", NOT_AVAILABLE)
        self._mark(session, shortage.device, shortage.asked, sample.time, allocated)

    def _mark(
        self, session: Session, device: str, asked: float, time: float, allocated: float
    ) -> None:
        """Mark on a device's chart that it ran out, at a second of the session and at so many bytes."""
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

    def _is_meant(self, told: OutOfMemoryText) -> bool:
        """Return whether an error whose text may mean something else is about memory: it ran out before."""
        return told.is_certain or self._count > 0


def _bundle(
    incident: Incident, diagnosis: Diagnosis, advice: Sequence[Advice], *, earlier: int
) -> Mapping[str, str]:
    # Not before it is needed: nearly no cell runs out of memory.
    from hfmem_widget.features.oom.html import out_of_memory_bundle

    return out_of_memory_bundle(incident, diagnosis, advice, earlier=earlier)


def _same(one: OutOfMemoryText, other: OutOfMemoryText) -> bool:
    # A tuple takes a NaN for itself; since Python 3.13 a dataclass does not.
    return astuple(one) == astuple(other)


def _calls_in(error: BaseException) -> tuple[str, ...]:
    """Return the functions that ran where an error was raised, innermost first.

    Its traceback goes on over threads, as from autograd's into the one that waits for it; frames do not.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    around = outwards(frames[0].f_back if frames else None)
    return calls_of(chain(reversed(frames), around))


def _path_to(spans: Sequence[Span], root: int) -> tuple[Span, ...]:
    """Return the open spans from an outermost one inwards."""
    inside: dict[int, Span] = {}
    for one in spans:
        if one.id == root or one.parent in inside:
            inside[one.id] = one
    return tuple(inside.values())


def _raised_in(session: Session, root: Span) -> tuple[Span, ...]:
    """Return the spans that an error went through, outermost first."""
    by_id = {one.id: one for one in session.spans}
    raised = [one for one in by_id.values() if one.outcome == root.outcome and one.id >= root.id]
    path: list[Span] = []
    one = max(raised, key=lambda span: (span.start, span.id), default=None)
    while one is not None:
        path.append(one)
        one = by_id.get(one.parent) if one.id != root.id and one.parent is not None else None
    return tuple(reversed(path)) if path and path[-1].id == root.id else (root,)


def _edge_of(raised: Span, otherwise: Sample) -> Sample:
    """Return what was read where an error left the span that raised it, which is the nearest to it."""
    return otherwise if raised.after is None else raised.after


def _with_counts(session: Session, path: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans as they ended: only then is it known what was counted in them."""
    ended: list[Span] = []
    for one in path:
        try:
            ended.append(session.span(one.id))
        except WatchStateError:  # so many came after it that it was forgotten
            ended.append(one)
    return tuple(ended)


def _growth_on(device: str, session: Session, span: Span) -> Finding | None:
    leaks = (one for one in session.findings if one.kind == "leak" and one.span_id == span.id)
    return next((one for one in leaks if one.evidence.get("device", device) == device), None)


def _left_behind(session: Session, span: Span, key: str) -> float:
    if span.after is None:
        return 0.0
    return known_of(session.value(span.after, key) - session.value(span.before, key), 0.0)


def _facts_of(models: Iterable[Any]) -> ModelFacts:
    """Return what models say of themselves, read from their own fields: no code of theirs is run."""
    facts = ModelFacts()
    for model in models:
        for module in islice(model.modules(), MOST_MODULES):
            fields = vars(module)
            config = vars(fields["config"]) if hasattr(fields.get("config"), "__dict__") else {}
            facts = ModelFacts(
                checkpointing=facts.checkpointing or fields.get("gradient_checkpointing") is True,
                attention=facts.attention or str(config.get("_attn_implementation_internal") or ""),
                vocabulary=facts.vocabulary or _whole(config.get("vocab_size")),
                quantized=facts.quantized or bool(config.get("quantization_config")),
            )
    return facts


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
