"""Edges of the spans that come by the thousand: read when they are made, entered in the session later.

Making samples, spans and peaks of a reading takes several times as long as the reading. It is done by whoever
comes next: the poller, a longer span, or somebody who looks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from hfmem_widget.guard import interrupts_deferred
from hfmem_widget.monitor.peaks import PeakLedger, Readings, Window
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.session import Sample, Session, Span, SpanKind
from hfmem_widget.session.recorder import NO_COUNTS

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
    closing : Window or None
        The window of the span that ended.
    """

    watched: Watched
    readings: Readings
    time: float
    row: Sequence[float] | None
    held: Sequence[float]
    ended: Span | None
    begun: Span | None
    closing: Window | None


@dataclass(eq=False, slots=True)
class LateEdges:
    """The edges that wait, in the order in which they were made.

    Attributes
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

    ledger: PeakLedger
    enter: Callable[[LateEdge], None]
    break_off: Callable[[Session, Exception], None]
    held: Callable[[], Sequence[float]]
    clock: Callable[[], float]
    _waiting: deque[LateEdge] = field(default_factory=deque)
    _making: threading.RLock = field(default_factory=threading.RLock)
    _entering: threading.RLock = field(default_factory=threading.RLock)

    def edge(
        self,
        watched: Watched,
        row: Sequence[float] | None,
        *,
        closing: int | None = None,
        outcome: str = "done",
        counts: Mapping[str, float] = NO_COUNTS,
        kind: SpanKind | None = None,
        label: str = "",
    ) -> Span:
        """End the span `closing`, begin one of some `kind`, or both at the same instant.

        Returns
        -------
        Span
            The one that has begun, if any, else the one that has ended; without readings and peaks.
        """
        ended = begun = None
        with self._making:
            ending = None if closing is None else watched.windows.pop(closing)
            beginning = None if kind is None else Window()
            self.ledger.edge(closing=ending, opening=beginning)
            time = self.clock() - watched.origin
            if closing is not None:
                span = watched.late.pop(closing)
                ended = Span(
                    *(closing, span.kind, span.label, span.start, span.before),
                    stop=time,
                    outcome=outcome,
                    counts=counts,
                )
            if kind is not None and beginning is not None:
                number = watched.recorder.next_span_id()
                begun = Span(number, kind, label, time, Sample(time, ()))
                watched.windows[number] = beginning
                watched.late[number] = begun
            readings = cast("Window", beginning or ending).take_readings()
            self._waiting.append(
                LateEdge(watched, readings, time, row, self.held(), ended, begun, ending)
            )
        return cast("Span", begun or ended)

    def enter_if_many(self) -> None:
        """Enter what waits, if that is more than it should be."""
        if len(self._waiting) >= MOST_WAITING:
            self.enter_all()

    def enter_all(self) -> None:
        """Enter what waits."""
        # The lock is taken where nothing waits, too: another thread may be entering the last one.
        with self._entering:
            if not self._waiting:
                return
        # Half an edge would leave a span that never ends.
        with interrupts_deferred(), self._entering:
            while self._waiting:
                edge = self._waiting.popleft()
                try:
                    self.ledger.fold()
                    if edge.watched.session.running:
                        self.enter(edge)
                except Exception as error:  # noqa: BLE001  (whoever comes next is not whose edge it is)
                    self.break_off(edge.watched.session, error)

    def drop_all(self) -> None:
        """Drop what waits."""
        with self._making:
            self._waiting.clear()

    def forget(self) -> None:
        """Drop what waits and who holds the locks: for a forked child."""
        self._waiting.clear()
        self._making = threading.RLock()
        self._entering = threading.RLock()
