"""Calls the user's function for each finding once, on a thread of its own: no code waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context

from hfmem_widget.features.judgement import Subject, subject_of
from hfmem_widget.monitor.companion import NOTHING, Companion, begun
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.ticker import Ticker, done_within
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Recorder, Session, Span

EVERY = 1.0  # seconds between two looks while the code runs
PATIENCE = 5.0  # seconds that the end of a watch waits for the function


class Alerts(Companion):
    """Tells of what is found in one watch."""

    def __init__(self, options: WatchOptions) -> None:
        self._function: Callable[..., object] = options.on_finding or (lambda _finding: None)
        self._session: Session | None = None
        self._alerted: set[Subject] = set()
        self._reported_within: list[object] = []
        self._lock = threading.Lock()
        self._context = copy_context()
        self._ticker = Ticker(self.look, EVERY)

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Look at the findings from now on, and not at those of earlier cells of the session."""
        self._session = recorder.session
        earlier = (each for each in self._session.findings if each.span_id != span.id)
        self._alerted.update(map(subject_of, earlier))
        begun(Alerts).append(self)
        self._ticker.start()

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Look no longer while nothing runs."""
        if self in (alerts := begun(Alerts)):
            alerts.remove(self)
        self._ticker.stop(0.0)

    def conclude(self, session: Session, span: Span) -> Mapping[str, str]:
        """Tell of the rest."""
        # What the user's code has set up meanwhile, such as the run of a tracker.
        self._context = copy_context()
        if not done_within(PATIENCE, self.look):
            session.notes.append(f"on_finding was still busy after {PATIENCE:.0f} s.")
        return NOTHING

    def look(self) -> None:
        """Tell of what is new."""
        session = self._session
        if session is None:
            return
        with self._lock:
            for finding in tuple(session.findings):
                subject = subject_of(finding)
                if subject in self._alerted:
                    continue
                self._alerted.add(subject)
                # An error about memory goes through all watches around it, and each finds it.
                if finding.kind == "oom" and _error(finding) in self._reported_within:
                    continue
                for around in begun(Alerts):
                    if around._function == self._function:  # noqa: SLF001  (one of its own kind)
                        around._reported_within.append(_error(finding))  # noqa: SLF001
                try:
                    self._context.run(self._function, finding)
                except (Exception, SystemExit) as error:  # noqa: BLE001  (it is the user's, and costs itself)
                    note = f"on_finding raised {type(error).__name__}; everything else went on."
                    if not any(each.startswith("on_finding raised") for each in session.notes):
                        session.notes.append(note)


def _error(finding: Finding) -> object:
    return finding.kind, finding.evidence.get("device"), finding.evidence.get("asked")
