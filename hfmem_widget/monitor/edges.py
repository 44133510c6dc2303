"""The edges of spans: what is read at that instant, and what becomes of it in the session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hfmem_widget.errors import WatchStateError, is_limit
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.peaks import PeakLedger, Window
from hfmem_widget.monitor.poller import Poller
from hfmem_widget.monitor.sampler import FINE_SHARE, FULLEST_SHARE, Sampler
from hfmem_widget.monitor.watched import HAS_ENDED, Register, Watched
from hfmem_widget.session import ROLES, Peak, Sample, Span, SpanKind
from hfmem_widget.session.model import FINE_KINDS
from hfmem_widget.session.recorder import NO_COUNTS
from hfmem_widget.sources.allocator import Instant

Row = Sequence[float]

NO_THREAD = "the system could not start its thread, or has no memory for the thread's stack"

REBASE_PERIOD = 0.1
"""Seconds between looks at what nothing explains where an optimizer's steps are all that is known."""

LOOK_SHARE = 0.005
"""Of the time: what reading may take where a token is generated, beside the edges of spans."""


@dataclass(eq=False, slots=True)
class Edges:
    """Opens and closes the spans of sessions; the caller holds the session's `Watched.edges`.

    The `poller` is claimed while a span of a session is open. The `clock` returns monotonic seconds.
    """

    sampler: Sampler
    ledger: PeakLedger
    attribution: Attribution
    register: Register
    poller: Poller
    clock: Callable[[], float]
    count: int = 0  # of the edges that there were in all sessions
    _rebase_due: float = -math.inf
    _look_due: float = -math.inf

    def open(self, watched: Watched, kind: SpanKind, label: str) -> Span:
        """Open a span; see `Monitor.open_span`."""
        if watched.ending:
            raise WatchStateError(HAS_ENDED)
        self._attribute(kind if watched.windows else _outermost(kind), begins=True)
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
        session = watched.session
        span = session.span(span_id)
        if span.stop is not None:
            return span
        for inner in session.open_within(span_id):
            self.close(watched, inner.id, outcome)
        if len(watched.windows) == 1:
            self.poller.poll_now()
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

    def turn(self, watched: Watched, closing: int, kind: SpanKind, label: str) -> Span:
        """Close a span and open its neighbour; see `Monitor.turn`."""
        if watched.ending:
            raise WatchStateError(HAS_ENDED)
        self._attribute(kind, begins=True)
        session = watched.session
        if session.span(closing).stop is not None:
            return self.open(watched, kind, label)
        for inner in session.open_within(closing):
            self.close(watched, inner.id, "done")
        ending = watched.windows.pop(closing)
        beginning = self.ledger.turn(ending)
        span_id = watched.recorder.next_span_id()
        edge = self._append(watched, self._row_at(beginning, kind), begins=(span_id, kind, label))
        watched.close(closing, edge, ending.peaks, "done", NO_COUNTS)
        return watched.open(span_id, kind, label, edge, beginning)

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
        self._append(watched, self.sampler.edge())
        ended = self.clock()
        self._look_due = ended + (ended - began) / LOOK_SHARE

    def sample(self, watched: Watched) -> None:
        """Add a sample of this instant."""
        instant = Instant(None, {}, self.attribution.source.latest)
        self._append(watched, self.sampler.edge(instant, share=FULLEST_SHARE))

    def peaks_so_far(self, watched: Watched, span_id: int) -> dict[str, Peak]:
        """Return the peaks of a span; see `Monitor.peaks_so_far`."""
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
        self.count += 1
        held = self.attribution.source.latest
        instant = Instant(self.ledger.allocator, window.take_readings(), held)
        return self.sampler.edge(instant, share=_share_of(kind), is_fine=kind in FINE_KINDS)

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

    def _append(
        self,
        watched: Watched,
        row: Row,
        begins: tuple[int, SpanKind, str] | None = None,
    ) -> Sample:
        """Add a row to a session, at which a span may begin: its id, kind and label."""
        self.register.take_over(watched)
        values = watched.values_of(row)
        if begins is not None:
            watched.unexplained.base(*begins, values, is_inner=bool(watched.windows))
        return watched.append(values, self.clock() - watched.origin)


def _outermost(kind: SpanKind) -> SpanKind:
    """Return what kind a watch's own span counts as: a block is as rare, and as much compared, as a cell."""
    return "cell" if kind == "block" else kind


def _share_of(kind: SpanKind) -> float | None:
    """Return how much of the time reading may take where a span begins, or where one of a step ends."""
    # What nothing explains where a step begins is measured once, for all of the step.
    if kind == "step" or kind not in FINE_KINDS:
        return None
    # These must not begin with a reading of the span before them, whose high it is not.
    return FULLEST_SHARE if kind in {"substep", "backward", "optimizer", "decode"} else FINE_SHARE
