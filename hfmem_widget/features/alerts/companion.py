"""Calls the user's function once for each finding, on a thread of its own, so that no code waits for it."""

import threading
from collections.abc import Callable
from contextvars import copy_context

from hfmem_widget.features import Subject, subject_of
from hfmem_widget.monitor.companion import Companion, begun
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.ticker import Ticker, done_within
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Recorder, Session, Span

EVERY = 1.0  # seconds between two checks while the code runs
PATIENCE = 5.0  # seconds that the end of a watch waits for the function


class Alerts(Companion):
    """Reports the findings of one watch."""

    def __init__(self, options: WatchOptions) -> None:
        self._function: Callable[..., object] = options.on_finding or (lambda _finding: None)
        self._alerted: set[Subject] = set()
        self._reported_within: list[object] = []
        self._lock = threading.Lock()
        self._context = copy_context()
        self._ticker = Ticker(self.report_new, EVERY)

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Report findings from now on; those of earlier cells of the session are skipped."""
        self._session = recorder.session
        earlier = (finding for finding in self._session.findings if finding.span_id != span.id)
        self._alerted.update(map(subject_of, earlier))
        begun(Alerts).append(self)
        self._ticker.start()

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Stop the ticker; the remaining findings are reported by `conclude`."""
        if self in (alerts := begun(Alerts)):
            alerts.remove(self)
        self._ticker.stop(0.0)

    def conclude(self, session: Session, span: Span) -> None:
        """Report the remaining findings, and wait a while for the function."""
        # The user's code may have set context variables meanwhile, such as the run of a tracker.
        self._context = copy_context()
        if not done_within(PATIENCE, self.report_new):
            session.notes.append(f"on_finding was still busy after {PATIENCE:.0f} s.")

    def report_new(self) -> None:
        """Call the function for each finding that it has not received."""
        session = self._session
        with self._lock:
            for finding in tuple(session.findings):
                subject = subject_of(finding)
                if subject in self._alerted:
                    continue
                self._alerted.add(subject)
                # An out-of-memory error passes through all nested watches, and each finds it.
                if finding.kind == "oom" and _error_of(finding) in self._reported_within:
                    continue
                for outer in begun(Alerts):
                    if outer._function == self._function:  # noqa: SLF001  (of the same class)
                        outer._reported_within.append(_error_of(finding))  # noqa: SLF001
                try:
                    self._context.run(self._function, finding)
                except (Exception, SystemExit) as error:  # noqa: BLE001  (the user's function may raise anything)
                    note = f"on_finding raised {type(error).__name__}; everything else went on."
                    if not any(other.startswith("on_finding raised") for other in session.notes):
                        session.notes.append(note)


def _error_of(finding: Finding) -> object:
    return finding.kind, finding.evidence.get("device"), finding.evidence.get("asked")
