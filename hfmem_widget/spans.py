"""``with hfmem_widget.span("forward")``: a stretch of a watched cell or block, with peaks of its own."""

from __future__ import annotations

import copy
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, get_args

from hfmem_widget.decorating import Decorates, failure
from hfmem_widget.faults import harmless
from hfmem_widget.interrupts import interrupts_deferred
from hfmem_widget.labels import plain
from hfmem_widget.session import SpanKind
from hfmem_widget.session.model import FINE_KINDS

if TYPE_CHECKING:
    from hfmem_widget.monitor import Monitor
    from hfmem_widget.session import Session, Span

NOT_FOR_USERS = {"cell", "oom", "mark"}

OVERLAP_NOTE = (
    "A span ended before its code did, with the span that it lies in: of coroutines and threads that run at "
    "once, only the first is told to its end."
)


class SpanScope(Decorates):
    """What `span` returns: it opens a span in what is being watched, and does nothing where nothing is."""

    def __init__(self, label: str, counts: dict[str, float]) -> None:
        self._label = plain(label)
        known = self._label in get_args(SpanKind) and self._label not in NOT_FOR_USERS
        self._kind = cast("SpanKind", self._label) if known else "block"
        self._counts = counts
        self._opened: tuple[Monitor, Session, Span] | None = None

    def count(self, **counts: float) -> None:
        """Say what is counted in it, such as ``tokens=2048``, once that is known."""
        self._counts.update(counts)

    def _another(self) -> SpanScope:
        fresh = copy.copy(self)
        fresh._counts = dict(self._counts)  # noqa: SLF001  (a copy is made from within its own class)
        return fresh

    def __enter__(self) -> Self:
        with interrupts_deferred():
            harmless(self._open)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        with interrupts_deferred():
            harmless(self._close, failure(error))

    def _open(self) -> None:
        # Not imported before somebody watches: where nobody does, a span in a library costs nothing.
        watching: Any = sys.modules.get("hfmem_widget.monitor")
        monitor = watching.running_monitor() if watching is not None else None
        session = monitor.current if monitor is not None else None
        if monitor is not None and session is not None:
            opened = monitor.open_span(session, self._kind, self._label)
            self._opened = (monitor, session, opened)

    def _close(self, error: BaseException | None) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        monitor, session, span = opened
        if session.running:
            self._note_overlap(monitor, session, span)
            from hfmem_widget.monitor import outcome_of

            monitor.close_span(session, span.id, outcome_of(error), self._counts)

    def _note_overlap(self, monitor: Monitor, session: Session, span: Span) -> None:
        # Those of a step are entered later; whether one is open is not known at once.
        is_over = self._kind not in FINE_KINDS and not monitor.is_open(session, span.id)
        if is_over and OVERLAP_NOTE not in session.notes:
            session.notes.append(OVERLAP_NOTE)


def span(label: str, **counts: float) -> SpanScope:
    """Tell a stretch of a watched cell or block apart, for a ``with`` block or a decorated function.

    Of a decorated coroutine function or generator it lasts until that has ended. Spans lie within one
    another: of coroutines that run at once, the span that was opened later ends with the earlier one at the
    latest, and a note of the session says so.

    Parameters
    ----------
    label : str
        What to call it. "train", "epoch", "step", "substep", "forward", "backward", "optimizer",
        "evaluate", "predict", "load" and "save" are drawn and counted as a Trainer's are; anything else is a
        block.
    **counts : float
        What is counted in it: of a step ``tokens`` (padding included), ``samples``, ``longest``; of a
        training ``steps``, how many there will be.

    Returns
    -------
    SpanScope
        With `count`, for what is only known later. It does nothing while nothing is watched.

    Examples
    --------
    >>> for batch in loader:
    ...     with hfmem_widget.span("step", tokens=batch["input_ids"].numel()):
    ...         with hfmem_widget.span("forward"):
    ...             loss = model(**batch).loss
    ...         with hfmem_widget.span("backward"):
    ...             loss.backward()
    """
    return SpanScope(label, counts)
