"""What drivers call: sessions, their spans, and one poller for them all."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from hfmem_widget.errors import WatchStateError
from hfmem_widget.guard import harmless, interrupts_deferred
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.late import LateEdge, LateEdges
from hfmem_widget.monitor.peaks import PeakLedger, Window
from hfmem_widget.monitor.poller import MakeTicker, Poller
from hfmem_widget.monitor.register import HAS_ENDED, Register
from hfmem_widget.monitor.sampler import FINE_SHARE, FULLEST_SHARE, Sampler
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.monitor.tick import Tick
from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import ROLES, Peak, Sample, Session, Span, SpanKind
from hfmem_widget.session.model import FINE_KINDS
from hfmem_widget.session.session import NO_COUNTS
from hfmem_widget.sources.allocator import Instant

EXIT_TIMEOUT = 1.0
REBASE_PERIOD = 0.1
"""Seconds between looks at what nothing explains where an optimizer's steps are all that is known."""

BROKEN_OFF_NOTE = (
    "Watching stopped here because of a fault in hfmem_widget ({}); the figures cover the time before. Your "
    "code was not affected. Please report this."
)

NO_THREAD = "the system could not start its thread, or has no memory for the thread's stack"

_FRESH: frozenset[SpanKind | None] = frozenset({"substep", "backward", "optimizer"})
"""What must not begin with a reading of the span before it, whose high it is not."""


class Monitor:
    """Polls while a span is open, and reads exactly at every span's edges.

    Parameters
    ----------
    sampler : Sampler
    ledger : PeakLedger
    clock : callable, optional
        Monotonic seconds.
    wall : callable, optional
        Seconds since the epoch.
    attribution : Attribution, optional
        Counts what the memory is for; its source is one of the sampler's.
    cpu : callable, optional
        CPU seconds of the calling thread.
    make_ticker : callable, optional
        Takes the tick and the interval.
    """

    def __init__(
        self,
        sampler: Sampler,
        ledger: PeakLedger,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        attribution: Attribution | None = None,
        cpu: Callable[[], float] = time.thread_time,
        make_ticker: MakeTicker = Ticker,
    ) -> None:
        self.sampler = sampler
        self.ledger = ledger
        self.attribution = (
            Attribution(subjects=Subjects(dict)) if attribution is None else attribution
        )
        self._clock = clock
        self._wall = wall
        self._held = self.attribution.source
        self._late = LateEdges(
            ledger, self._enter, self._break_off, lambda: self._held.latest, clock
        )
        self._register = Register()
        tick = Tick(
            *(sampler, ledger, self._late, self._register, self._break_off),
            clock=clock,
            wall=wall,
            cpu=cpu,
        )
        self._poller = Poller(tick, make_ticker)
        self._rebase_due = -math.inf
        self._pid = os.getpid()

    def __reduce__(self) -> NoReturn:
        message = (
            "a watch belongs to its process and cannot be pickled; in another process, such as a worker "
            "of a DataLoader, create one with hfmem_widget.watch()"
        )
        raise TypeError(message)

    @property
    def polling(self) -> bool:
        """True while the poller's thread runs."""
        return self._poller.alive

    @property
    def in_this_process(self) -> bool:
        """False in a forked child, where a monitor is inert."""
        return self._pid == os.getpid()

    @property
    def current(self) -> Session | None:
        """The session in which further spans of this thread belong, or of this asynchronous task.

        None on the poller's own thread, where the user's code runs in finalizers alone.
        """
        if not self.in_this_process or self.polls_here:
            return None
        watched = self._register.current()
        return None if watched is None else watched.session

    @property
    def enclosing(self) -> Session | None:
        """The session that this thread or asynchronous task itself has opened last, and not ended."""
        watched = self._register.enclosing() if self.in_this_process else None
        return None if watched is None else watched.session

    @property
    def polls_here(self) -> bool:
        """True on the poller's own thread."""
        return self._poller.is_here

    def begin(self, options: WatchOptions) -> Session:
        """Begin a session; nothing is polled until a span is opened in it.

        Raises
        ------
        OptionError
            If a device was asked for that is not there.
        """
        self.sampler.edge()
        if options.devices:
            # A driver call belongs on a thread that may hang, here too.
            if not self._poller.aside(self.sampler.poll, wait=True):
                self.sampler.poll()
            options.check_devices(tuple(device.key for device in self.sampler.devices))
        session = Session(options.label, started_at=self._wall())
        session.polling.interval = session.polling.current_interval = options.interval
        watched = Watched(session, options, self._clock())
        self._adopt(watched)
        session.read_after(self._late.enter_all)
        self._register.add(watched, self._begin_anew)
        return session

    def _begin_anew(self) -> None:
        """Leave behind whatever a fault of ours has left, where nobody is watched yet."""
        self.sampler.try_again()
        self.ledger.drop_all()
        self._late.drop_all()

    def end(self, session: Session, outcome: str = "done") -> None:
        """End a session and the spans still open in it; ending it again does nothing."""
        watched = self._register.get(session)
        if watched is None:
            return
        # Another thread may be training in it, and would go on opening spans while these are closed.
        with _Whole(self, watched), watched.edges:
            watched.ending = True
            for span in reversed(session.open_spans):
                self.close_span(session, span.id, outcome)
            self._register.remove(session)
            session.stop(self._wall())

    def break_off(self, session: Session, error: BaseException) -> None:
        """End a session, from wherever it is left by a fault of ours; ending it again does nothing."""
        watched = self._register.get(session)
        if watched is not None:
            self._break_off(watched, error)

    def _break_off(self, watched: Watched, error: BaseException) -> None:
        session = watched.session
        harmless(self._register.remove, session)
        harmless(self._poller.release, watched)
        harmless(self.ledger.drop, list(watched.windows.values()))
        harmless(session.break_off, self._wall(), BROKEN_OFF_NOTE.format(type(error).__name__))
        watched.windows.clear()
        watched.late.clear()

    def open_span(self, session: Session, kind: SpanKind, label: str = "") -> Span:
        """Open a span with readings of this instant.

        The outermost span of all starts the poller and waits for its first tick, at most 0.1 s, so that
        also what is only read on the poller's thread is known at its start. A span of a step is entered in
        the session a little later, and returned without its readings.
        """
        watched = self._register.find(session)
        if not self.in_this_process:
            return session.open_span(kind, label, session.last_sample)
        with _Whole(self, watched), watched.edges:
            if watched.ending:
                raise WatchStateError(HAS_ENDED)
            self._attribute(kind if watched.windows else _outermost(kind), begins=True)
            if kind in FINE_KINDS and watched.can_wait:
                self._late.enter_if_many()
                return self._late.begin(watched, kind, label, self._row_now(kind))
            self._enter_waiting(watched)
            if not watched.windows:
                self._register.opens_here(watched)
                if not self._poller.claim(watched, watched.options.interval):
                    session.polling.stopped = NO_THREAD
            window = self.ledger.open(bounded=not watched.options.ledger)
            row = self._row_at(window, kind)
            before, based = self._begin_at(watched, kind, label, row)
            span = watched.open(kind, label, before, window)
            watched.based_on = span.id if based else watched.based_on
            session.contents = self.attribution.contents
            return span

    def close_span(
        self,
        session: Session,
        span_id: int,
        outcome: str = "done",
        counts: Mapping[str, float] = NO_COUNTS,
    ) -> Span:
        """Close a span and those still open in it; closing it again returns it as it is.

        Parameters
        ----------
        counts : mapping of str to float, optional
            What is counted in it, besides what has been said of it so far.
        """
        watched = self._register.find(session)
        if not self.in_this_process:
            return session.close_span(span_id, session.last_sample, {}, outcome, counts)
        with _Whole(self, watched), watched.edges:
            if watched.ends_late(span_id):
                self._attribute(watched.late[span_id].kind, begins=False)
                row = self._row_now(None)
                return self._late.end(watched, span_id, outcome=outcome, counts=counts, row=row)
            span = session.span(span_id)
            if span.stop is not None:
                return span
            for inner in session.open_within(span_id):
                self.close_span(session, inner.id, outcome)
            if len(watched.windows) == 1:
                self._poller.poll_now()
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
                self._poller.release(watched)
            return span

    def turn(
        self,
        session: Session,
        closing: int,
        kind: SpanKind,
        label: str = "",
        *,
        outcome: str = "done",
    ) -> Span:
        """Close a span and open its neighbour at the same instant, from one reading; return the neighbour.

        Costs half of closing one and opening the other, and leaves nothing between the two. Where the
        span has ended already, its neighbour is opened.
        """
        watched = self._register.find(session)
        if not self.in_this_process:
            session.close_span(closing, session.last_sample, {}, outcome)
            return session.open_span(kind, label, session.last_sample)
        with _Whole(self, watched), watched.edges:
            if watched.ending:
                raise WatchStateError(HAS_ENDED)
            self._attribute(kind, begins=True)
            if watched.ends_late(closing) and kind in FINE_KINDS:
                self._late.enter_if_many()
                row = self._row_now(kind)
                return self._late.turn(watched, closing, kind, label, outcome=outcome, row=row)
            if session.span(closing).stop is not None:
                return self.open_span(session, kind, label)
            for inner in session.open_within(closing):
                self.close_span(session, inner.id, outcome)
            self._enter_waiting(watched)
            watched.late.pop(closing, None)
            ending = watched.windows.pop(closing)
            beginning = self.ledger.turn(ending)
            row = self._row_at(beginning, kind)
            edge, based = self._begin_at(watched, kind, label, row)
            watched.close(closing, edge, ending.peaks, outcome, NO_COUNTS)
            span = watched.open(kind, label, edge, beginning)
            watched.based_on = span.id if based else watched.based_on
            return span

    def is_open(self, session: Session, span_id: int) -> bool:
        """Return False once a span has ended, which whoever opened it need not have done."""
        watched = self._register.get(session)
        return watched is not None and span_id in watched.windows

    def optimizer_steps(self, optimizer: object) -> None:
        """Count what an optimizer that is about to step has before it; on the user's thread."""
        with interrupts_deferred():
            self.attribution.optimizer_steps(optimizer)

    def optimizer_stepped(self) -> None:
        """Count what it has made; where no span tells steps apart, one ends and another begins here."""
        with interrupts_deferred():
            self.attribution.optimizer_stepped()
            watched = self._register.current()
            now = self._clock()
            if watched is not None and watched.based_on is None and now >= self._rebase_due:
                self._rebase_due = now + REBASE_PERIOD
                with _Whole(self, watched), watched.edges:
                    row = self.sampler.edge()
                    self._adopt(watched)
                    watched.rebase(row)

    def gradients_cleared(self) -> None:
        """See whether gradients are gone; on the user's thread."""
        with interrupts_deferred():
            self.attribution.gradients_cleared()

    def catch_up(self) -> None:
        """Enter in their sessions what was left for later; whoever reads spans has that done for them."""
        self._late.enter_all()

    def peaks_so_far(self, session: Session, span_id: int) -> dict[str, Peak]:
        """Return the peaks of an open span up to now, by series key; none of one that has ended."""
        watched = self._register.find(session)
        self._late.enter_all()
        window = watched.windows.get(span_id)
        exact = self.ledger.so_far().get(window, {}) if window is not None else {}
        known = {
            series.key: Peak(high, "sampled")
            for series in session.series
            if series.metric in ROLES
            and not math.isnan(high := session.highest_in(span_id, series.key))
        }
        return dict(watched.wanted({**known, **exact}))

    @contextmanager
    def span(self, session: Session, kind: SpanKind, label: str = "") -> Iterator[Span]:
        """Keep a span open for a ``with`` block, and say how the block ended."""
        span = self.open_span(session, kind, label)
        try:
            yield span
        except BaseException as error:
            self.close_span(session, span.id, outcome_of(error))
            raise
        else:
            self.close_span(session, span.id)

    def aside(self, action: Callable[[], object]) -> bool:
        """Do something once, on a thread of its own, so that neither the poller nor the user waits for it.

        Returns
        -------
        bool
            False where no thread could be started: nothing is done.
        """
        return self._poller.aside(action)

    def shutdown(self, timeout: float = EXIT_TIMEOUT) -> str:
        """End all sessions and the poller, and put the allocator's entry points back.

        Returns
        -------
        str
            A sentence if the user's own peaks now read lower, else ``""``.
        """
        if not self.in_this_process:
            return ""
        for watched in self._register.all():
            harmless(self.end, watched.session)
        # A driver's library that is shut down under a call in flight crashes the process (nvitop#222).
        if self._poller.join(timeout):
            self.sampler.close()
        return self.ledger.uninstall()

    def before_fork(self) -> None:
        """Hold the poller, so that no lock of ours is in the middle of anything."""
        self._poller.before_fork()

    def after_fork_in_parent(self) -> None:
        """Let the poller go on."""
        self._poller.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Become inert: the poller's thread did not come along."""
        self._poller.after_fork_in_child()
        self.sampler.replace_locks()
        self.ledger.forget_windows()
        self._late.forget()
        self.attribution.replace_lock()
        self._register.replace_locks()

    def _row_at(self, window: Window, kind: SpanKind) -> Sequence[float]:
        """Read everything at a window's newest edge, but not again what its ledger has just read."""
        instant = Instant(self.ledger.allocator, window.take_readings(), self._held.latest)
        return self.sampler.edge(instant, share=_share_of(kind))

    def _row_now(self, kind: SpanKind | None) -> Sequence[float] | None:
        """Read at an edge that is entered later what is not in the ledger: all there is without a GPU."""
        if self.ledger.in_use:
            return None
        return self.sampler.edge(Instant(None, {}, self._held.latest), share=_share_of(kind))

    def _attribute(self, kind: SpanKind, *, begins: bool) -> None:
        """Count what the memory is for; a fault in it costs the counting, not the watch."""
        try:
            self.attribution.at_edge(kind, begins=begins)
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the user's cell)
            self._register.note(
                f"Memory could not be attributed ({type(error).__name__}: {error}). The other figures "
                "are unaffected. Please report this."
            )

    def _begin_at(
        self, watched: Watched, kind: SpanKind, label: str, row: Sequence[float]
    ) -> tuple[Sample, bool]:
        """Append a row at which a span begins, and tell whether it knows what nothing explained there."""
        self._adopt(watched)
        based = watched.base(kind, label, row)
        return self._append(watched, row), based

    def _enter(self, edge: LateEdge) -> None:
        """Enter an edge in its session, with what the ledger read then, and the rest as last polled."""
        row = edge.row
        if row is None:
            instant = Instant(self.ledger.allocator, edge.readings, edge.held)
            row = self.sampler.edge(instant, share=FINE_SHARE)
        ended, begun = edge.ended, edge.begun
        self._adopt(edge.watched)
        if begun is not None and edge.watched.base(begun.kind, begun.label, row):
            edge.watched.based_on = begun.id
        sample = self._append(edge.watched, row, edge.time)
        if ended is not None and edge.ending is not None:
            peaks = edge.ending.peaks
            edge.watched.close(ended.id, sample, peaks, ended.outcome, ended.counts)
        if begun is not None:
            edge.watched.session.open_span(begun.kind, begun.label, sample, begun.id)

    def _enter_waiting(self, watched: Watched) -> None:
        self._late.enter_all()
        if self._register.get(watched.session) is None:  # one of its own could not be entered
            raise WatchStateError(HAS_ENDED)

    def _append(self, watched: Watched, row: Sequence[float], time: float | None = None) -> Sample:
        self._adopt(watched)
        return watched.append(row, self._clock() - watched.origin if time is None else time)

    def _adopt(self, watched: Watched) -> None:
        self._register.take_over(watched, self.sampler)


class _Whole:
    """A change to what is kept of a session: done to its end, or the session is broken off.

    Half of one would spoil every later figure, and whoever shares something with it.
    """

    __slots__ = ("_monitor", "_watched")

    def __init__(self, monitor: Monitor, watched: Watched) -> None:
        self._monitor = monitor
        self._watched = watched

    def __enter__(self) -> None:
        """Nothing has changed yet."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and not isinstance(error, WatchStateError):
            self._monitor.break_off(self._watched.session, error)


def _outermost(kind: SpanKind) -> SpanKind:
    """Return as what a watch's own span is counted: a block is as few, and as much compared, as a cell."""
    return "cell" if kind == "block" else kind


def _share_of(kind: SpanKind | None) -> float | None:
    """Return how much of the time reading may take where a span begins, or where one of a step ends."""
    if kind == "step":  # what nothing explains there is measured once, for all of the step
        return None
    if kind in _FRESH:
        return FULLEST_SHARE
    return FINE_SHARE if kind is None or kind in FINE_KINDS else None


def outcome_of(error: BaseException | None) -> str:
    """Return how a stretch of code ended, as `Span.outcome` says it."""
    if error is None:
        return "done"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"raised {type(error).__name__}"
