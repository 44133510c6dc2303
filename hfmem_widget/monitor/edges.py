"""The edges of spans: what is read at that instant, and what becomes of it in the session.

Making samples, spans and peaks of a reading takes several times as long as the reading. For the spans that
come by the thousand it is done later by whoever comes next: the poller, a longer span, or somebody who looks.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from hfmem_widget.errors import WatchStateError, is_limit
from hfmem_widget.guard import interrupts_deferred
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.peaks import PeakLedger, Readings, Window
from hfmem_widget.monitor.poller import Poller
from hfmem_widget.monitor.sampler import FINE_SHARE, FULLEST_SHARE, Polled, Sampler
from hfmem_widget.monitor.watched import HAS_ENDED, Register, Watched
from hfmem_widget.session import ROLES, Peak, Sample, Session, Span, SpanKind
from hfmem_widget.session.model import FINE_KINDS
from hfmem_widget.session.recorder import NO_COUNTS
from hfmem_widget.sources.allocator import Instant

Row = Sequence[float]

NO_THREAD = "the system could not start its thread, or has no memory for the thread's stack"

REBASE_PERIOD = 0.1
"""Seconds between looks at what nothing explains where an optimizer's steps are all that is known."""

MOST_WAITING = 512
"""Edges that wait at most, where the poller hangs or ticks rarely."""

LOOK_SHARE = 0.005
"""Of the time: what reading may take where a token is generated, beside the edges of spans."""


@dataclass(frozen=True, slots=True)
class LateEdge:
    """An instant at which a span ended, another began, or both; they lack their readings and peaks.

    The ledger has read the `readings` of each device. The `row` is what else was read; it is None where the
    rest may be read later. The tensors were counted to be `held`. The `time` is in seconds of the session.
    """

    watched: Watched
    readings: Readings
    time: float
    row: Row | None
    held: Sequence[float]
    ended: Span | None
    begun: Span | None
    closing: Window | None


@dataclass(eq=False, slots=True)
class Edges:
    """Opens and closes the spans of sessions; the caller holds the session's `Watched.edges`.

    The `poller` is claimed while a span of a session is open. A session whose edge cannot be entered is
    broken off, so that no other session's edge waits for it. The `clock` returns monotonic seconds.
    """

    sampler: Sampler
    ledger: PeakLedger
    attribution: Attribution
    register: Register
    poller: Poller
    break_off: Callable[[Session, Exception], None]
    clock: Callable[[], float]
    _rebase_due: float = -math.inf
    _look_due: float = -math.inf
    _waiting: deque[LateEdge] = field(default_factory=deque)
    _making: threading.RLock = field(default_factory=threading.RLock)
    _entering: threading.RLock = field(default_factory=threading.RLock)

    def open(self, watched: Watched, kind: SpanKind, label: str) -> Span:
        """Open a span; see `Monitor.open_span`."""
        if watched.ending:
            raise WatchStateError(HAS_ENDED)
        self._attribute(kind if watched.windows else _outermost(kind), begins=True)
        if kind in FINE_KINDS and watched.can_wait:
            return self._late_edge(watched, kind=kind, label=label)
        self._enter_waiting(watched)
        if not watched.windows:
            self.register.opens_here(watched)
            if not self.poller.claim(watched, watched.session.polling.interval):
                watched.session.polling.stopped = NO_THREAD
        window = self.ledger.open(bounded=not watched.options.ledger)
        span_id = watched.recorder.next_span_id()
        before = self._append(watched, self._row_at(window, kind), begins=(span_id, kind, label))
        span = watched.open(span_id, kind, label, before, window)
        watched.session.contents = self.attribution.contents
        return span

    def close(
        self,
        watched: Watched,
        span_id: int,
        outcome: str,
        counts: Mapping[str, float] = NO_COUNTS,
    ) -> Span:
        """Close a span; see `Monitor.close_span`."""
        if watched.ends_late(span_id):
            self._attribute(watched.late[span_id].kind, begins=False)
            return self._late_edge(watched, closing=span_id, outcome=outcome, counts=counts)
        session = watched.session
        span = session.span(span_id)
        if span.stop is not None:
            return span
        for inner in session.open_within(span_id):
            self.close(watched, inner.id, outcome)
        if len(watched.windows) == 1:
            self.poller.poll_now()
        self._enter_waiting(watched)
        watched.late.pop(span_id, None)
        is_outermost = len(watched.windows) == 1
        self._attribute(_outermost(span.kind) if is_outermost else span.kind, begins=False)
        session.contents = self.attribution.contents
        window = watched.windows.get(span_id)
        if window is None:  # another session's, which has it, too
            return watched.close(span_id, session.last_sample, {}, outcome, counts)
        peaks = self.ledger.close(window)
        after = self._append(watched, self._row_at(window, span.kind))
        del watched.windows[span_id]
        span = watched.close(span_id, after, peaks, outcome, counts)
        if not watched.windows:
            self.poller.release(watched)
        return span

    def turn(
        self, watched: Watched, closing: int, kind: SpanKind, label: str, outcome: str
    ) -> Span:
        """Close a span and open its neighbour; see `Monitor.turn`."""
        if watched.ending:
            raise WatchStateError(HAS_ENDED)
        self._attribute(kind, begins=True)
        if watched.ends_late(closing) and kind in FINE_KINDS:
            return self._late_edge(
                watched, closing=closing, outcome=outcome, kind=kind, label=label
            )
        session = watched.session
        if session.span(closing).stop is not None:
            return self.open(watched, kind, label)
        for inner in session.open_within(closing):
            self.close(watched, inner.id, outcome)
        self._enter_waiting(watched)
        watched.late.pop(closing, None)
        ending = watched.windows.pop(closing)
        beginning = self.ledger.turn(ending)
        span_id = watched.recorder.next_span_id()
        edge = self._append(watched, self._row_at(beginning, kind), begins=(span_id, kind, label))
        watched.close(closing, edge, ending.peaks, outcome, NO_COUNTS)
        return watched.open(span_id, kind, label, edge, beginning)

    @property
    def waits(self) -> bool:
        """True while there are edges that are to be entered."""
        return bool(self._waiting)

    def enter_all(self) -> int:
        """Enter all edges that wait in their sessions; return how many."""
        entered = 0
        # The lock is taken where nothing waits, too: another thread may be entering the last one.
        with self._entering:
            if not self._waiting:
                return entered
        # Half an edge would leave a span that never ends.
        with interrupts_deferred(), self._entering:
            polled = self.sampler.polled()
            while self._waiting:
                edge = self._waiting.popleft()
                entered += 1
                try:
                    self.ledger.fold()
                    if edge.watched.session.running:
                        self._enter(edge, polled)
                except Exception as error:  # noqa: BLE001  (another session may be on this thread)
                    self.break_off(edge.watched.session, error)
        return entered

    def drop_all(self) -> None:
        """Drop what waits."""
        with self._making:
            self._waiting.clear()

    def forget(self) -> None:
        """Drop what waits, and make new locks: for a forked child."""
        self._waiting.clear()
        self._making = threading.RLock()
        self._entering = threading.RLock()

    def rebase(self, watched: Watched) -> None:
        """Let activations begin here, now and then, where there are no spans of steps."""
        now = self.clock()
        if now < self._rebase_due:
            return
        self._rebase_due = now + REBASE_PERIOD
        row = self.sampler.edge()
        self.register.take_over(watched)
        watched.unexplained.rebase(watched.values_of(row))

    def look(self, watched: Watched) -> None:
        """Add a sample, unless that would take too much of the time."""
        began = self.clock()
        if began < self._look_due or not watched.windows:
            return
        self._enter_waiting(watched)
        self._append(watched, self.sampler.edge())
        ended = self.clock()
        self._look_due = ended + (ended - began) / LOOK_SHARE

    def sample(self, watched: Watched) -> None:
        """Add a sample of this instant, to be entered later as an edge is."""
        held = self.attribution.source.latest
        row = self.sampler.edge(Instant(None, {}, held), share=FULLEST_SHARE)
        with self._making:
            time = self.clock() - watched.origin
            self._waiting.append(LateEdge(watched, {}, time, row, held, None, None, None))

    def peaks_so_far(self, watched: Watched, span_id: int) -> dict[str, Peak]:
        """Return the peaks of a span; see `Monitor.peaks_so_far`."""
        self.enter_all()
        window = watched.windows.get(span_id)
        exact = self.ledger.so_far().get(window, {}) if window is not None else {}
        session = watched.session
        known = {
            series.key: Peak(high, "sampled")
            for series in session.series
            if series.metric in ROLES
            and not math.isnan(high := session.highest_in(span_id, series.key))
        }
        return dict(watched.wanted({**known, **exact}))

    def _row_at(self, window: Window, kind: SpanKind) -> Row:
        """Read everything at a window's newest edge, but not again what its ledger has just read."""
        held = self.attribution.source.latest
        instant = Instant(self.ledger.allocator, window.take_readings(), held)
        return self.sampler.edge(instant, share=_share_of(kind))

    def _attribute(self, kind: SpanKind, *, begins: bool) -> None:
        """Count what the memory is for; a fault in it costs the counting, not the watch."""
        if self.attribution.rests and kind in FINE_KINDS:
            return
        try:
            self.attribution.at_edge(kind, begins=begins)
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the user's cell)
            if is_limit(error):
                return
            self.register.note(
                f"Memory could not be attributed ({type(error).__name__}: {error}). The other figures "
                "are unaffected. Please report this."
            )

    def _enter_waiting(self, watched: Watched) -> None:
        self.enter_all()
        if self.register.get(watched.session) is None:  # one of its own could not be entered
            raise WatchStateError(HAS_ENDED)

    def _append(
        self,
        watched: Watched,
        row: Row,
        time: float | None = None,
        begins: tuple[int, SpanKind, str] | None = None,
    ) -> Sample:
        """Add a row to a session, at which a span may begin: its id, kind and label."""
        self.register.take_over(watched)
        values = watched.values_of(row)
        if begins is not None:
            watched.base(*begins, values)
        return watched.append(values, self.clock() - watched.origin if time is None else time)

    def _late_edge(
        self,
        watched: Watched,
        *,
        closing: int | None = None,
        outcome: str = "done",
        counts: Mapping[str, float] = NO_COUNTS,
        kind: SpanKind | None = None,
        label: str = "",
    ) -> Span:
        """End the span `closing`, begin one of some `kind`, or both at the same instant.

        Returns the one that has begun, if any, else the one that has ended; without readings and peaks.
        """
        ended = begun = None
        if kind is not None and len(self._waiting) >= MOST_WAITING:
            self.enter_all()
        row = None
        if not self.ledger.in_use:  # else the ledger reads all that cannot be read later
            instant = Instant(None, {}, self.attribution.source.latest)
            row = self.sampler.edge(instant, share=_share_of(kind))
        with self._making:
            ending = None if closing is None else watched.windows.pop(closing)
            beginning = None if kind is None else Window()
            self.ledger.edge(closing=ending, opening=beginning)
            time = self.clock() - watched.origin
            if closing is not None:
                ended = _as_ended(watched.late.pop(closing), time, outcome, counts)
            if kind is not None and beginning is not None:
                span_id = watched.recorder.next_span_id()
                begun = Span(span_id, kind, label, time, Sample(time, ()))
                watched.windows[span_id] = beginning
                watched.late[span_id] = begun
            readings = cast("Window", beginning or ending).take_readings()
            held = self.attribution.source.latest
            self._waiting.append(LateEdge(watched, readings, time, row, held, ended, begun, ending))
        return cast("Span", begun or ended)

    def _enter(self, edge: LateEdge, polled: Polled) -> None:
        """Enter an edge in its session."""
        watched, ended, begun = edge.watched, edge.ended, edge.begun
        row = edge.row
        if row is None:
            instant = Instant(self.ledger.allocator, edge.readings, edge.held)
            row = polled.at(instant) or self.sampler.edge(instant)
        begins = None if begun is None else (begun.id, begun.kind, begun.label)
        sample = self._append(watched, row, edge.time, begins)
        if ended is not None and edge.closing is not None:
            watched.close(ended.id, sample, edge.closing.peaks, ended.outcome, ended.counts)
        if begun is not None:
            watched.enter(begun.id, begun.kind, begun.label, sample)


def _as_ended(span: Span, time: float, outcome: str, counts: Mapping[str, float]) -> Span:
    """Return a span that is not entered yet as it has ended: without readings and peaks."""
    known = span.id, span.kind, span.label, span.start, span.before
    return Span(*known, stop=time, outcome=outcome, counts=counts)


def _outermost(kind: SpanKind) -> SpanKind:
    """Return what kind a watch's own span counts as: a block is as rare, and as much compared, as a cell."""
    return "cell" if kind == "block" else kind


def _share_of(kind: SpanKind | None) -> float | None:
    """Return how much of the time reading may take where a span begins, or where one of a step ends."""
    # What nothing explains where a step begins is measured once, for all of the step.
    if kind == "step" or (kind is not None and kind not in FINE_KINDS):
        return None
    # These must not begin with a reading of the span before them, whose high it is not.
    return FULLEST_SHARE if kind in {"substep", "backward", "optimizer", "decode"} else FINE_SHARE
