"""Explains why watched code ran out of memory: events are noted as they happen, and judged after a failure.

Only figures and names of the error are kept, but no traceback, frame or tensor. The modules that judge it are
imported after the first failure, since nearly all cells succeed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from hfmem_widget.features.oom.observer import OBSERVER, OomEvent, OomObserver
from hfmem_widget.monitor.companion import Companion, begun
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Guide, Recorder, Sample, Session, Span, inside
from hfmem_widget.session.model import NOT_AVAILABLE, same
from hfmem_widget.text import format_bytes

if TYPE_CHECKING:
    from hfmem_widget.features.oom.errors import OutOfMemoryText
    from hfmem_widget.features.oom.incident import Noted, Report
    from hfmem_widget.features.oom.model import Failure

MOST_KEPT = 4  # the newest events that a watch keeps
MOST_MARKS = 8  # the newest marks of a watch on the chart


class OutOfMemory(Companion):
    """Watches one stretch of code for errors about memory, and explains them.

    Of nested watches, only the innermost one that is not quiet shows its card.
    """

    stands_above = True

    def __init__(
        self, options: WatchOptions | None = None, *, observer: OomObserver = OBSERVER
    ) -> None:
        self._observer = observer
        self._shows = options is None or not options.quiet
        self.shown_within: OutOfMemoryText | None = None
        """The error that a watch within this one has shown."""
        self._monitor: Monitor | None = None
        self._recorder: Recorder | None = None
        self._root = 0
        self._events: deque[Noted] = deque(maxlen=MOST_KEPT)
        self._marks: deque[Guide] = deque()
        self._count = 0
        self._failure: Failure | None = None
        self._report: Report | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin to listen to the allocator, as soon as a tick finds that CUDA is up."""
        self._monitor, self._recorder, self._root = monitor, recorder, span.id
        begun(OutOfMemory).append(self)
        self._observer.listen(self._note)
        if not self._observer.settled:
            recorder.subscribe(self._attach)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Note the error's figures, if it is about memory."""
        others = begun(OutOfMemory)
        if self in others:
            others.remove(self)
        self._observer.leave(self._note)
        recorder.unsubscribe(self._attach)
        monitor, self._monitor, self._recorder = self._monitor, None, None
        if error is None:
            return
        from hfmem_widget.features.oom.incident import belongs_to, device_of, failure_of

        session = recorder.session
        models, optimizers = monitor.attribution.subjects.all() if monitor else ((), ())
        failure = failure_of(error, session.last_sample, models, ran_out=bool(self._count))
        if failure is None:
            return
        self._failure = failure
        with suppress(Exception):  # the rest of the card does without it
            from hfmem_widget.features.oom.seen import seen_in

            events = [event for event, *_ in self._events if belongs_to(failure.error_text, event)]
            device = device_of(session, failure.error_text, events[-1] if events else None, span)
            self._failure = replace(failure, seen=seen_in(error, device.key, optimizers))
        if self._shows:
            for around in others:
                around.shown_within = failure.error_text

    def report(self, session: Session, span: Span) -> None:
        """Add the finding to the session, if memory ran out."""
        if self._failure is None and not self._count:
            return
        from hfmem_widget.features.oom.incident import caught_finding, finding_of, report_on

        if self._failure is None:
            session.findings.append(caught_finding(self._events[-1][0], self._count, span))
            return
        self._report = report = report_on(
            session, span, self._failure, self._events, self._observer
        )
        incident = report.incident
        if not report.is_observed:
            self._mark(
                session, incident.device.key, incident.asked, report.time, incident.allocated
            )
        session.findings.append(finding_of(*report[:3], span))

    def conclude(self, session: Session, span: Span) -> Mapping[str, str] | None:
        """Return the card; the best change that dry runs found replaces the advice that they tried."""
        report, failure = self._report, self._failure
        if report is None or failure is None:
            return None
        from hfmem_widget.features.oom.advice import advice_of
        from hfmem_widget.features.oom.html import out_of_memory_bundle
        from hfmem_widget.features.oom.incident import finding_of

        if session.moves:
            at = session.findings.index(finding_of(*report[:3], span))
            left = tuple(advice for advice in report.advice if not advice.is_tried)
            best = advice_of(session.moves[0])
            session.findings[at] = finding_of(*report[:2], (best, *left), span)
            report = report._replace(advice=left)
        if same(self.shown_within, failure.error_text):
            return None
        earlier = self._count - report.is_observed
        return out_of_memory_bundle(*report[:3], moves=session.moves, earlier=earlier)

    def _note(self, event: OomEvent) -> None:
        session = self._recorder.session if self._recorder is not None else None
        if session is None or not session.running:
            return
        if not (path := inside(session.open_spans, self._root)):
            return
        self._count += 1
        sample = session.last_sample
        self._events.append((event, path, sample))
        allocated = event.readings.get("allocated", NOT_AVAILABLE)
        self._mark(session, event.device, event.asked, sample.time, allocated)

    def _mark(
        self, session: Session, device: str, asked: float, time: float, allocated: float
    ) -> None:
        label = f"out of memory: {format_bytes(asked)} requested" if asked > 0 else "out of memory"
        mark = Guide(device, "oom", label, start=time, stop=time, first=allocated, last=allocated)
        if math.isnan(allocated) or mark in session.guides:
            return
        if len(self._marks) == MOST_MARKS and (oldest := self._marks.popleft()) in session.guides:
            session.guides.remove(oldest)
        self._marks.append(mark)
        session.guides.append(mark)

    def _attach(self, session: Session, samples: Sequence[Sample]) -> None:
        self._observer.attach()
        if self._observer.settled and self._recorder is not None:
            self._recorder.unsubscribe(self._attach)
