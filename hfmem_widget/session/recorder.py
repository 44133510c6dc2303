"""Who writes a session: samples, spans, steps, and who is told of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType

from hfmem_widget.errors import WatchStateError
from hfmem_widget.session.highs import NOTHING
from hfmem_widget.session.model import (
    NOT_AVAILABLE,
    ROLES,
    Device,
    Peak,
    Sample,
    Series,
    Span,
    SpanKind,
)
from hfmem_widget.session.phases import Phases
from hfmem_widget.session.session import Session
from hfmem_widget.session.spans import Spans
from hfmem_widget.session.steps import PHASES, DeviceSteps, StepGroup
from hfmem_widget.session.timeline import Timeline
from hfmem_widget.session.writer import NOBODY
from hfmem_widget.text import plain

NO_COUNTS: Mapping[str, float] = MappingProxyType({})

BROKEN_OFF = "not watched to its end"
"""How a span ended that a fault of ours kept from being watched."""

MOST_UNTOLD = 64
"""Samples kept at most until the subscribers are told of them."""

Listener = Callable[[Session, Sequence[Sample]], object]


def _nothing() -> None:
    """Nothing is left for later."""


class Recorder:
    """Writes one session, from any thread.

    Parameters
    ----------
    label : str
        What the user calls it.
    started_at : float
        Wall clock at time zero, seconds since the epoch.
    timeline : Timeline, optional
        Where samples go.
    catch_up : callable, optional
        Writes what was left for later, before spans are read.

    Attributes
    ----------
    session : Session
        Written until `stop` or `break_off`; what comes after that is not taken.
    """

    def __init__(
        self,
        label: str = "",
        *,
        started_at: float = 0.0,
        timeline: Timeline | None = None,
        catch_up: Callable[[], None] = _nothing,
    ) -> None:
        self.lock: AbstractContextManager[object] = threading.RLock()
        self.catch_up = catch_up
        self._spans, self._phases = Spans(), Phases()
        self.session = Session(
            label,
            started_at=started_at,
            timeline=timeline,
            spans=self._spans,
            phases=self._phases,
            writer=self,
        )
        self._newest_id = 0
        self._phase_peaks: dict[int, dict[str, dict[str, float]]] = {}
        self._untold: deque[Sample] = deque(maxlen=MOST_UNTOLD)
        self._subscribers: list[Listener] = []
        self._step_listeners: list[Callable[[Span], None]] = []

    def adopt(self, devices: Sequence[Device], series: Sequence[Series]) -> None:
        """Take over what is read; series may be added at the end, devices may be replaced by key."""
        with self.lock:
            self.session.devices = tuple(devices)
            self.session.series = tuple(series)
            self.session.timeline.widen(len(series))

    def append(self, sample: Sample) -> Sample:
        """Add a sample and return it as kept: time never runs backwards."""
        with self.lock:
            session = self.session
            if not session.running:
                return sample
            missing = len(session.series) - len(sample.values)
            if missing > 0:
                values = (*sample.values, *[NOT_AVAILABLE] * missing)
                sample = replace(sample, values=values)
            if sample.time < session.last_sample.time:
                sample = replace(sample, time=session.last_sample.time)
            session.last_sample = sample
            session.timeline.append(sample.time, sample.values)
            self._spans.note(sample.values)
            self._untold.append(sample)
        return sample

    def next_span_id(self) -> int:
        """Take the id of a span that is about to be opened."""
        with self.lock:
            self._newest_id += 1
            return self._newest_id

    def open_span(
        self, kind: SpanKind, label: str, before: Sample, span_id: int | None = None
    ) -> Span:
        """Begin a span at a sample that has been appended."""
        with self.lock:
            number = self.next_span_id() if span_id is None else span_id
            self._newest_id = max(self._newest_id, number)
            parent = self._spans.innermost
            span = Span(number, kind, plain(label), before.time, before, parent=parent)
            self._spans.add(span)
            self._spans.forget_old(len(self.session.series))
        return span

    def close_span(
        self,
        span_id: int,
        after: Sample,
        peaks: Mapping[str, Peak],
        outcome: str = "done",
        counts: Mapping[str, float] = NO_COUNTS,
    ) -> Span:
        """End a span at a sample; where `peaks` has no entry for a series, the samples give one."""
        with self.lock:
            span = self._spans.get(span_id)
            if span is None or not self._spans.is_open(span_id):
                message = f"span {span_id} is not open"
                raise WatchStateError(message)
            counts = {**span.counts, **counts}
            if span.kind == "step":
                counts.setdefault("step", float(self.session.steps.count + 1))
            span = replace(
                span,
                stop=after.time,
                after=after,
                peaks=self._completed(peaks, self._spans.take_highs(span_id)),
                outcome=outcome,
                counts=counts,
            )
            self._spans.replace(span)
            self._account(span)
        return span

    def count(self, span_id: int, counts: Mapping[str, float]) -> None:
        """Set what is counted in an open span; harmless if it has ended."""
        with self.lock:
            span = self._spans.get(span_id)
            if span is not None and span.stop is None:
                self._spans.replace(replace(span, counts={**span.counts, **counts}))

    def progress(self, span_id: int, peaks: Mapping[str, Peak]) -> None:
        """Set the peaks of an open span as they are known so far."""
        with self.lock:
            span = self._spans.get(span_id)
            if span is not None and span.stop is None and span.peaks != peaks:
                self._spans.replace(replace(span, peaks=dict(peaks)))

    def note(self, sentence: str) -> None:
        """Add a sentence that a person must know, once."""
        if sentence not in self.session.notes:
            self.session.notes.append(sentence)

    def stop(self, stopped_at: float) -> None:
        """End the session at a wall-clock time; nothing is appended afterwards."""
        with self.lock:
            self.session.stopped_at = stopped_at
            self.session._writer = NOBODY  # noqa: SLF001  (its own; what has ended is read without a lock)

    def break_off(self, stopped_at: float, why: str) -> None:
        """End the session where a fault of ours keeps it from going on; open spans end as they are known."""
        session = self.session
        session.stopped_at = stopped_at
        session.broken_off = True
        self.note(why)
        with self.lock:
            after = session.last_sample
            for span in reversed(self._spans.open):
                peaks = self._completed(span.peaks, self._spans.take_highs(span.id))
                ended = replace(span, stop=after.time, after=after, peaks=peaks, outcome=BROKEN_OFF)
                self._spans.replace(ended)
        self.stop(stopped_at)

    def replace_lock(self) -> None:
        """Forget who holds the lock: for a forked child, where that thread does not exist."""
        self.lock = threading.RLock()
        self.session.timeline.replace_lock()

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener(session, samples)`` after each tick, on the poller's thread.

        The samples are those that came since the tick before, oldest first: the tick's own, and one for each
        edge of a span; there may be none where polling has stopped.
        """
        self._subscribers.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Call it no longer; harmless if it was not called."""
        if listener in self._subscribers:
            self._subscribers.remove(listener)

    @property
    def subscribers(self) -> tuple[Listener, ...]:
        """Who is called after each tick."""
        return tuple(self._subscribers)

    def publish(self) -> None:
        """Tell the subscribers what is new; one that fails is left out from then on, and a note says so."""
        with self.lock:
            samples = tuple(self._untold)
            self._untold.clear()
        for listener in self.subscribers:
            try:
                listener(self.session, samples)
            except Exception as error:  # noqa: BLE001  (a broken view must not stop the poller)
                self.unsubscribe(listener)
                self.note(f"The live view stopped ({type(error).__name__}: {error}).")

    def on_step(self, listener: Callable[[Span], None]) -> None:
        """Call `listener(span)` for each step that has ended, on any thread; it must be quick."""
        self._step_listeners.append(listener)

    def off_step(self, listener: Callable[[Span], None]) -> None:
        """Call it no longer; harmless if it was not called."""
        if listener in self._step_listeners:
            self._step_listeners.remove(listener)

    def _completed(self, peaks: Mapping[str, Peak], highs: Iterable[float]) -> dict[str, Peak]:
        """Return peaks with those that only the samples tell."""
        known = dict(peaks)
        for series, high in zip(self.session.series, highs, strict=False):
            if series.metric in ROLES and high != NOTHING and series.key not in known:
                known[series.key] = Peak(high, "sampled")
        return known

    def _account(self, span: Span) -> None:
        """Take a finished span into the phases and the steps, which outlive it."""
        root, step, within_its_like = span.id, None, False
        around = self._spans.get(span.parent)
        while around is not None:
            root = around.id
            if around.kind == "step" and step is None:
                step = around.id
            if around.kind == span.kind and (span.kind != "block" or around.label == span.label):
                within_its_like = True
            around = self._spans.get(around.parent)
        if not within_its_like:  # else its seconds would count twice
            self._phases.add(root, span)
        if span.kind == "step":
            phases = self._phase_peaks.pop(span.id, {})
            self.session.steps.append(_step_of(self.session, span, phases))
            self._tell_of_step(span)
        elif span.kind in PHASES and step is not None:
            peaks = self._phase_peaks.setdefault(step, {}).setdefault(span.kind, {})
            for key, peak in span.peaks.items():
                peaks[key] = max(peak.value, peaks.get(key, peak.value))

    def _tell_of_step(self, span: Span) -> None:
        for listener in tuple(self._step_listeners):
            try:
                listener(span)
            except Exception as error:  # noqa: BLE001  (a listener must not end what it listens to)
                self.off_step(listener)
                self.note(
                    f"A listener for steps was disconnected ({type(error).__name__}: {plain(error)})."
                )


def _step_of(session: Session, span: Span, phases: Mapping[str, Mapping[str, float]]) -> StepGroup:
    number = int(span.counts["step"])
    tokens = span.counts.get("tokens", NOT_AVAILABLE)
    devices = {}
    for device in session.devices:
        key = f"{device.key}/allocated"
        peak = span.peaks.get(key)
        if peak is not None and peak.value > 0:
            devices[device.key] = DeviceSteps(
                peak=peak.value,
                certainty=peak.certainty,
                lowest=peak.value,
                worst=number,
                worst_tokens=span.counts.get("largest_batch", tokens),
                after=NOT_AVAILABLE if span.after is None else session.value(span.after, key),
                phases={kind: peaks[key] for kind, peaks in phases.items() if key in peaks},
            )
    return StepGroup(
        parent=span.parent or 0,
        first=number,
        last=number,
        start=span.start,
        stop=span.start + span.duration,
        samples=span.counts.get("samples", NOT_AVAILABLE),
        longest=span.counts.get("longest", NOT_AVAILABLE),
        tokens=tokens,
        content_tokens=span.counts.get("content_tokens", NOT_AVAILABLE),
        devices=devices,
    )
