"""The recorder, which writes samples, spans and steps into a session, and calls the listeners."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hfmem_widget.errors import WatchStateError
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
from hfmem_widget.session.session import UNWRITTEN, Session
from hfmem_widget.session.spans import NOTHING, Phases, Spans
from hfmem_widget.session.steps import PHASES, device_figures_of_step, figures_of_step
from hfmem_widget.text import plain

NO_COUNTS: Mapping[str, float] = MappingProxyType({})

BROKEN_OFF = "not watched to its end"
"""The outcome of a span that a fault of ours broke off."""

NO_STEP = "no step"
"""The outcome of a supposed step that was none, or that began later: it becomes a block."""

NO_STEP_LABEL = "outside of steps"

MOST_UNPUBLISHED = 1024
"""Samples kept at most until the subscribers get them."""

Listener = Callable[[Session, Sequence[Sample]], object]
StepListener = Callable[[Span], object]


class Recorder:
    """Writes one `session`, from any thread, until `stop` or `break_off`.

    `label` is the user's name for it, `started_at` the wall clock at time zero in seconds since the epoch.
    """

    def __init__(self, label: str = "", *, started_at: float = 0.0) -> None:
        self._spans, self._phases = spans, phases = Spans(), Phases()
        self.session = Session(label, started_at=started_at, spans=spans, phases=phases)
        self.lock = self.session.lock = threading.RLock()
        self._newest_id = 0
        self._roles: list[tuple[int, str]] = []
        self._phase_peaks: dict[int, dict[str, dict[str, float]]] = {}
        self._unpublished: deque[Sample] = deque(maxlen=MOST_UNPUBLISHED)
        self.subscribers: list[Listener] = []  # called after each tick
        self._step_listeners: list[StepListener] = []

    def adopt(self, devices: Sequence[Device], series: Sequence[Series]) -> None:
        """Set the devices and series; a later call may replace devices and add series at the end."""
        with self.lock:
            self.session.devices = tuple(devices)
            self.session.series = tuple(series)
            self._roles = [(at, each.key) for at, each in enumerate(series) if each.metric in ROLES]
            self.session.timeline.widen(len(series))

    def append(self, sample: Sample) -> Sample:
        """Add a sample and return it as kept: time never runs backwards."""
        with self.lock:
            session = self.session
            if not session.running:
                return sample
            missing = len(session.series) - len(sample.values)
            if missing > 0:
                sample = replace(sample, values=(*sample.values, *[NOT_AVAILABLE] * missing))
            if sample.time < session.last_sample.time:
                sample = replace(sample, time=session.last_sample.time)
            session.last_sample = sample
            session.timeline.append(sample.time, sample.values)
            self._spans.highs.note(sample.values)
            self._unpublished.append(sample)
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
            parent = self._spans.highs.newest()
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
        """End a span at a sample; the samples give the peaks that `peaks` lacks."""
        with self.lock:
            span = self._open_span(span_id)
            if span is None:
                raise WatchStateError(f"span {span_id} is not open")
            counts = {**span.counts, **counts}
            if outcome == NO_STEP:
                span, counts, outcome = replace(span, kind="block", label=NO_STEP_LABEL), {}, "done"
            if span.kind == "step":  # a step without a number gets the next one
                last = counts.setdefault("step", float(self.session.steps.count + 1))
                first = counts.get("first", last)
                if first < last:
                    span = replace(span, label=f"steps {first:.0f} to {last:.0f}")
            span = self._ended(span, after, outcome, peaks, counts)
            self._account(span)
        return span

    def count(self, span_id: int, counts: Mapping[str, float]) -> None:
        """Update the counts of an open span; harmless if it has ended."""
        with self.lock:
            span = self._open_span(span_id)
            if span is not None:
                self._spans.add(replace(span, counts={**span.counts, **counts}))

    def progress(self, span_id: int, peaks: Mapping[str, Peak]) -> None:
        """Set the peaks of an open span so far."""
        with self.lock:
            span = self._open_span(span_id)
            if span is not None and span.peaks != peaks:
                self._spans.add(replace(span, peaks=dict(peaks)))

    def note(self, sentence: str) -> None:
        """Add a sentence to the session's notes, unless they have it already."""
        if sentence not in self.session.notes:
            self.session.notes.append(sentence)

    def stop(self, stopped_at: float) -> None:
        """End the session at a wall-clock time; nothing is appended afterwards."""
        with self.lock:
            self.session.stopped_at = stopped_at
            self.session.lock = UNWRITTEN

    def break_off(self, stopped_at: float, why: str) -> None:
        """End the session and its open spans after a fault of ours, with the figures so far."""
        session = self.session
        session.stopped_at = stopped_at
        session.broken_off = True
        self.note(why)
        with self.lock:
            for span in reversed(self._spans.open):
                self._ended(span, session.last_sample, BROKEN_OFF, span.peaks, span.counts)
        self.stop(stopped_at)

    def replace_lock(self) -> None:
        """Make a new lock: in a forked child, the thread that held the old one does not exist."""
        self.lock = self.session.lock = threading.RLock()
        self.session.timeline.replace_lock()
        self.session.steps.replace_lock()

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener(session, samples)`` after each tick, on the poller's thread.

        The samples are those since the previous tick, oldest first: the tick's own, and one for each edge of
        a span. There may be none if polling has stopped.
        """
        self.subscribers.append(listener)

    def unsubscribe(self, listener: Any) -> None:
        """Remove a listener for ticks or steps; harmless if it is not registered."""
        for listeners in (self.subscribers, self._step_listeners):
            if listener in listeners:
                listeners.remove(listener)

    def publish(self) -> None:
        """Call the subscribers with the new samples."""
        with self.lock:
            samples = tuple(self._unpublished)
            self._unpublished.clear()
        self._call(self.subscribers, "The live view stopped", self.session, samples)

    def on_step(self, listener: StepListener) -> None:
        """Call `listener(span)` with each ended step or group of steps, on any thread; it must be quick."""
        self._step_listeners.append(listener)

    def _call(self, listeners: list[Any], failed: str, *args: object) -> None:
        for listener in tuple(listeners):
            try:
                listener(*args)
            except Exception as error:  # noqa: BLE001  (a listener must not end what it listens to)
                self.unsubscribe(listener)
                self.note(f"{failed} ({type(error).__name__}: {plain(error)}).")

    def _open_span(self, span_id: int) -> Span | None:
        return self._spans.get(span_id) if span_id in self._spans.highs else None

    def _ended(
        self,
        span: Span,
        after: Sample,
        outcome: str,
        exact: Mapping[str, Peak],
        counts: Mapping[str, float],
    ) -> Span:
        """End an open span; the samples give the peaks that `exact` lacks."""
        peaks, highs = dict(exact), self._spans.highs.close(span.id)
        for column, key in self._roles:
            if key not in peaks and column < len(highs) and highs[column] != NOTHING:
                peaks[key] = Peak(highs[column], "sampled")
        span = span.ended(after, peaks, outcome, counts)
        self._spans.add(span)
        return span

    def _account(self, span: Span) -> None:
        if span.kind == "step":
            self._account_step(span, self._phase_peaks.pop(span.id, {}))
            return
        root, around = self._around(span.id, span.parent)
        same_kind = [other for other in around if other.kind == span.kind]
        # The seconds of a span within one of its kind (for blocks: of its name) would count twice.
        if not any(span.kind != "block" or other.label == span.label for other in same_kind):
            self._phases.add(root, span)
        step = next((other.id for other in around if other.kind == "step"), None)
        if step is not None and (span.kind in PHASES or span.kind == "substep"):
            peaks = self._phase_peaks.setdefault(step, {}).setdefault(span.kind, {})
            for key, peak in span.peaks.items():
                peaks[key] = max(peak.value, peaks.get(key, peak.value))

    def _account_step(self, step: Span, phases: Mapping[str, Mapping[str, float]]) -> None:
        session = self.session
        root, around = self._around(step.id, step.parent)
        if not any(other.kind == "step" for other in around):
            self._phases.add(root, step)
        self._phases.add_parts(root, phases)
        rows = {}
        for device in session.devices:
            key = f"{device.key}/allocated"
            own = {kind: peaks[key] for kind, peaks in phases.items() if key in peaks}
            if row := device_figures_of_step(step, key, session.index(key), own):
                rows[device.key] = row
        session.steps.add(figures_of_step(step), rows)
        self._call(self._step_listeners, "A listener for steps was disconnected", step)

    def _around(self, root: int, parent: int | None) -> tuple[int, list[Span]]:
        """Return the outermost span around span `root`, or itself, and all spans around it."""
        around = []
        while (outer := self._spans.get(parent)) is not None:
            around.append(outer)
            root, parent = outer.id, outer.parent
        return root, around
