"""Edges of the spans that come by the thousand: read when they are made, entered in the session later.

A step has half a dozen edges, each on the user's thread. What must happen at that instant is reading and
resetting the allocator's counters; making samples, spans and peaks of that takes several times
as long, and is done by whoever comes next: the poller, a longer span, or somebody who looks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hfmem_widget.guard import interrupts_deferred
from hfmem_widget.monitor.peaks import PeakLedger, Readings, Window
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.session import Sample, Span, SpanKind

Row = Sequence[float] | None

MOST_WAITING = 256
"""Edges that wait at most, where the poller hangs or ticks rarely."""


@dataclass(frozen=True, slots=True)
class LateEdge:
    """An instant at which a span ended, another began, or both.

    Attributes
    ----------
    watched : Watched
    readings : mapping of int to dict
        What the ledger read of each device.
    time : float
        Seconds since the session began.
    row : sequence of float or None
        What else was read then; None where the ledger has all that had to be read at that instant.
    held : sequence of float
        What the tensors were counted to be then.
    ended, begun : Span or None
        As far as they were known at that instant: without readings and peaks.
    ending : Window or None
        The window of the one that ended.
    """

    watched: Watched
    readings: Readings
    time: float
    row: Row
    held: Sequence[float]
    ended: Span | None = None
    ending: Window | None = None
    begun: Span | None = None


class LateEdges:
    """The edges that wait, in the order in which they were made.

    Parameters
    ----------
    ledger : PeakLedger
    enter : callable
        Enters an edge in its session.
    break_off : callable
        Ends a session whose edge could not be entered, with the fault: nobody else's waits for it.
    held : callable
        Returns what the tensors were counted to be.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        ledger: PeakLedger,
        enter: Callable[[LateEdge], None],
        break_off: Callable[[Watched, Exception], None],
        held: Callable[[], Sequence[float]],
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._enter = enter
        self._break_off = break_off
        self._held = held
        self._clock = clock
        self._waiting: deque[LateEdge] = deque()
        self._making = threading.RLock()
        self._entering = threading.RLock()

    def begin(self, watched: Watched, kind: SpanKind, label: str, row: Row) -> Span:
        """Begin a span now; the one returned lacks its readings."""
        with self._making:
            window = self._ledger.open(late=True)
            begun = self._begun(watched, window, kind, label)
            self._waiting.append(
                LateEdge(
                    watched, window.take_readings(), begun.start, row, self._held(), begun=begun
                )
            )
        return begun

    def end(
        self,
        watched: Watched,
        span_id: int,
        *,
        outcome: str,
        counts: Mapping[str, float],
        row: Row,
    ) -> Span:
        """End a span that was begun here; the one returned lacks its readings and peaks."""
        with self._making:
            window = watched.windows.pop(span_id)
            self._ledger.close(window, late=True)
            time, ended = self._ended(watched, span_id, outcome, counts)
            self._waiting.append(
                LateEdge(watched, window.take_readings(), time, row, self._held(), ended, window)
            )
        return ended

    def turn(
        self,
        watched: Watched,
        span_id: int,
        kind: SpanKind,
        label: str,
        *,
        outcome: str,
        row: Row,
    ) -> Span:
        """End a span and begin its neighbour at the same instant."""
        with self._making:
            ending = watched.windows.pop(span_id)
            window = self._ledger.turn(ending, late=True)
            time, ended = self._ended(watched, span_id, outcome, {})
            begun = self._begun(watched, window, kind, label)
            self._waiting.append(
                LateEdge(
                    watched, window.take_readings(), time, row, self._held(), ended, ending, begun
                )
            )
        return begun

    def enter_if_many(self) -> None:
        """Enter what waits, if that is more than it should be."""
        if len(self._waiting) >= MOST_WAITING:
            self.enter_all()

    def enter_all(self) -> None:
        """Enter what waits."""
        # The lock is taken where nothing waits, too: what waited a moment ago is perhaps being entered by
        # another thread.
        with self._entering:
            if not self._waiting:
                return
        # Half an edge would leave a span that never ends.
        with interrupts_deferred(), self._entering:
            while self._waiting:
                edge = self._waiting.popleft()
                try:
                    self._ledger.fold()
                    if edge.watched.session.running:
                        self._enter(edge)
                except Exception as error:  # noqa: BLE001  (whoever comes next is not whose edge it is)
                    self._break_off(edge.watched, error)

    def drop_all(self) -> None:
        """Drop what waits."""
        with self._making:
            self._waiting.clear()

    def forget(self) -> None:
        """Drop what waits and who holds the locks: for a forked child."""
        self._waiting.clear()
        self._making = threading.RLock()
        self._entering = threading.RLock()

    def _begun(self, watched: Watched, window: Window, kind: SpanKind, label: str) -> Span:
        time = self._clock() - watched.origin
        span = Span(watched.recorder.next_span_id(), kind, label, time, Sample(time, ()))
        watched.windows[span.id] = window
        watched.late[span.id] = span
        return span

    def _ended(
        self, watched: Watched, span_id: int, outcome: str, counts: Mapping[str, float]
    ) -> tuple[float, Span]:
        begun, time = watched.late.pop(span_id), self._clock() - watched.origin
        ended = Span(
            span_id,
            begun.kind,
            begun.label,
            begun.start,
            begun.before,
            stop=time,
            outcome=outcome,
            counts=counts,
        )
        return time, ended
