"""The edges of spans: what is read at that instant, and what becomes of it in the session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hfmem_widget.errors import WatchStateError
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.late import LateEdge, LateEdges
from hfmem_widget.monitor.peaks import PeakLedger, Window
from hfmem_widget.monitor.poller import Poller
from hfmem_widget.monitor.register import HAS_ENDED, Register
from hfmem_widget.monitor.sampler import FINE_SHARE, FULLEST_SHARE, Sampler
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.session import ROLES, Peak, Sample, Span, SpanKind
from hfmem_widget.session.model import FINE_KINDS
from hfmem_widget.session.recorder import NO_COUNTS
from hfmem_widget.sources.allocator import Instant

NO_THREAD = "the system could not start its thread, or has no memory for the thread's stack"

REBASE_PERIOD = 0.1
"""Seconds between looks at what nothing explains where an optimizer's steps are all that is known."""

Row = Sequence[float]


@dataclass(eq=False, slots=True)
class Edges:
    """Opens and closes the spans of sessions; whoever calls holds the session's `Watched.edges`.

    Attributes
    ----------
    poller : Poller
        Claimed while a span of a session is open.
    clock : callable
        Monotonic seconds.
    """

    sampler: Sampler
    ledger: PeakLedger
    attribution: Attribution
    late: LateEdges
    register: Register
    poller: Poller
    clock: Callable[[], float]
    _rebase_due: float = -math.inf

    def open(self, watched: Watched, kind: SpanKind, label: str) -> Span:
        """Open a span; see `Monitor.open_span`."""
        if watched.ending:
            raise WatchStateError(HAS_ENDED)
        self._attribute(kind if watched.windows else _outermost(kind), begins=True)
        if kind in FINE_KINDS and watched.can_wait:
            self.late.enter_if_many()
            return self.late.edge(watched, self._row_now(kind), kind=kind, label=label)
        self._enter_waiting(watched)
        if not watched.windows:
            self.register.opens_here(watched)
            if not self.poller.claim(watched, watched.options.interval):
                watched.session.polling.stopped = NO_THREAD
        window = self.ledger.open(bounded=not watched.options.ledger)
        before, based = self._begin_at(watched, kind, label, self._row_at(window, kind))
        span = watched.open(kind, label, before, window)
        watched.based_on = span.id if based else watched.based_on
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
            row = self._row_now(None)
            return self.late.edge(watched, row, closing=span_id, outcome=outcome, counts=counts)
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
        window = watched.windows[span_id]
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
            self.late.enter_if_many()
            row = self._row_now(kind)
            return self.late.edge(
                watched, row, closing=closing, outcome=outcome, kind=kind, label=label
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
        edge, based = self._begin_at(watched, kind, label, self._row_at(beginning, kind))
        watched.close(closing, edge, ending.peaks, outcome, NO_COUNTS)
        span = watched.open(kind, label, edge, beginning)
        watched.based_on = span.id if based else watched.based_on
        return span

    def enter(self, edge: LateEdge) -> None:
        """Enter an edge in its session, with what the ledger read then, and the rest as last polled."""
        row, watched, ended, begun = edge.row, edge.watched, edge.ended, edge.begun
        if row is None:
            instant = Instant(self.ledger.allocator, edge.readings, edge.held)
            row = self.sampler.edge(instant, share=FINE_SHARE)
        self.register.take_over(watched, self.sampler)
        if begun is not None and watched.base(begun.kind, begun.label, row):
            watched.based_on = begun.id
        sample = self._append(watched, row, edge.time)
        if ended is not None and edge.closing is not None:
            watched.close(ended.id, sample, edge.closing.peaks, ended.outcome, ended.counts)
        if begun is not None:
            watched.recorder.open_span(begun.kind, begun.label, sample, begun.id)

    def rebase(self, watched: Watched) -> None:
        """Let activations begin here, where no span tells the steps apart; now and then."""
        now = self.clock()
        if now < self._rebase_due:
            return
        self._rebase_due = now + REBASE_PERIOD
        row = self.sampler.edge()
        self.register.take_over(watched, self.sampler)
        watched.rebase(row)

    def peaks_so_far(self, watched: Watched, span_id: int) -> dict[str, Peak]:
        """Return the peaks of a span; see `Monitor.peaks_so_far`."""
        self.late.enter_all()
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

    def _row_now(self, kind: SpanKind | None) -> Row | None:
        """Read at a late edge what is not in the ledger: everything where there is no GPU, else nothing."""
        if self.ledger.in_use:
            return None
        instant = Instant(None, {}, self.attribution.source.latest)
        return self.sampler.edge(instant, share=_share_of(kind))

    def _attribute(self, kind: SpanKind, *, begins: bool) -> None:
        """Count what the memory is for; a fault in it costs the counting, not the watch."""
        try:
            self.attribution.at_edge(kind, begins=begins)
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the user's cell)
            self.register.note(
                f"Memory could not be attributed ({type(error).__name__}: {error}). The other figures "
                "are unaffected. Please report this."
            )

    def _begin_at(
        self, watched: Watched, kind: SpanKind, label: str, row: Row
    ) -> tuple[Sample, bool]:
        """Append a row at which a span begins; also return whether its activations count from here."""
        self.register.take_over(watched, self.sampler)
        based = watched.base(kind, label, row)
        return self._append(watched, row), based

    def _enter_waiting(self, watched: Watched) -> None:
        self.late.enter_all()
        if self.register.get(watched.session) is None:  # one of its own could not be entered
            raise WatchStateError(HAS_ENDED)

    def _append(self, watched: Watched, row: Row, time: float | None = None) -> Sample:
        self.register.take_over(watched, self.sampler)
        return watched.append(row, self.clock() - watched.origin if time is None else time)


def _outermost(kind: SpanKind) -> SpanKind:
    """Return what kind a watch's own span counts as: a block is as rare, and as much compared, as a cell."""
    return "cell" if kind == "block" else kind


def _share_of(kind: SpanKind | None) -> float | None:
    """Return how much of the time reading may take where a span begins, or where one of a step ends."""
    # What nothing explains where a step begins is measured once, for all of the step.
    if kind == "step" or (kind is not None and kind not in FINE_KINDS):
        return None
    # These must not begin with a reading of the span before them, whose high it is not.
    return FULLEST_SHARE if kind in {"substep", "backward", "optimizer"} else FINE_SHARE
