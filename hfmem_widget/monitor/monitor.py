"""The monitor that drivers call: sessions, spans with a reading at each edge, and one poller for all."""

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Container, Mapping
from functools import partial
from typing import NoReturn, TypeVar

from hfmem_widget.errors import WatchStateError, is_limit
from hfmem_widget.guard import forget_faults, harmless
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.grouping import Grouping, PollerCost
from hfmem_widget.monitor.peaks import PeakLedger, Window
from hfmem_widget.monitor.sampler import FINE_SHARE, FULLEST_SHARE, Row, Sampler
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.monitor.tick import Tick
from hfmem_widget.monitor.ticker import MakeTicker, Poller, Ticker, done_within
from hfmem_widget.monitor.watched import HAS_ENDED, Register, Watched
from hfmem_widget.options import INTERVAL, WatchOptions
from hfmem_widget.session import ROLES, Peak, Recorder, Sample, Session, Span, SpanKind
from hfmem_widget.session.model import FINE_KINDS
from hfmem_widget.session.recorder import NO_COUNTS
from hfmem_widget.sources.allocator import Instant

POLL_TIMEOUT = 1.0
"""Seconds that a watch of certain devices may wait until it is known which devices there are."""

BROKEN_OFF_NOTE = (
    "Watching stopped here because of a fault in hfmem_widget ({}); the figures cover the time before. Your "
    "code was not affected. Please report this."
)

AT_A_LIMIT_NOTE = "Watching stopped here because {}; the figures cover the time before."

_AT_A_LIMIT: Mapping[type[BaseException], str] = {
    MemoryError: AT_A_LIMIT_NOTE.format("the host's memory was full"),
    RecursionError: AT_A_LIMIT_NOTE.format("Python's recursion limit was reached"),
}

NO_THREAD = "the system could not start its thread, or has no memory for the thread's stack"

REBASE_PERIOD = 0.1
"""Seconds between readings of unexplained memory if only the optimizer's steps are known."""

LOOK_SHARE = 0.005
"""Share of the time that reading may take while tokens are generated, besides the edges of spans."""

R = TypeVar("R")


class Monitor:
    """Polls while a span is open, and reads exactly at every span's edges.

    The source of the `attribution` is one of the sampler's. `make_ticker` takes the tick and the interval.
    The clocks return monotonic seconds, seconds since the epoch, and CPU seconds of the calling thread.
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
        self.attribution = attribution or Attribution(subjects=Subjects(dict))
        """Counts what the memory is used for."""
        self._clock = clock
        self._wall = wall
        self.register = Register(sampler)
        self._poller_cost = PollerCost()
        readers = sampler, ledger, self.register
        self.poller = Poller(
            lambda: Tick(
                *readers,
                *(lambda: self._edge_count, self._poller_cost, self.break_off),
                *(clock, wall, cpu),
            ),
            make_ticker,
        )
        self._edge_count = 0  # edges of all sessions so far
        self._rebase_due = self._look_due = -math.inf
        self._interval = INTERVAL
        self._pid = os.getpid()

    def __reduce__(self) -> NoReturn:
        message = (
            "a watch belongs to its process and cannot be pickled; in another process, such as a worker "
            "of a DataLoader, create one with hfmem_widget.watch()"
        )
        raise TypeError(message)

    @property
    def in_this_process(self) -> bool:
        """False in a forked child, where a monitor is inert."""
        return self._pid == os.getpid()

    @property
    def current(self) -> Session | None:
        """The session to which further spans of this thread or task belong; None on the poller's thread."""
        if not self.in_this_process or self.poller.is_here:
            return None
        watched = self.register.current()
        return None if watched is None else watched.session

    @property
    def around(self) -> list[Session]:
        """The sessions that this thread or asynchronous task has opened and not ended, outermost first."""
        here = self.register.around_here() if self.in_this_process else []
        return [watched.session for watched in here]

    def begin(self, options: WatchOptions, *, is_one_reading: bool = False) -> Session:
        """Begin a session; polling starts when a span is opened in it.

        A single reading has nothing that was there before. Raises `OptionError` if a device does not exist.
        """
        self.sampler.edge()
        # Driver calls may hang, so they belong on another thread here, too; the devices are then unknown.
        if options.devices and done_within(POLL_TIMEOUT, self.sampler.poll):
            options.check_devices(tuple(device.key for device in self.sampler.devices))
        recorder = Recorder(options.label, started_at=self._wall())
        session = recorder.session
        interval = self._interval if options.interval is None else options.interval
        session.polling.interval = session.polling.current_interval = interval
        watched = Watched(recorder, options, self._clock(), is_one_reading=is_one_reading)
        self.register.take_over(watched)
        self.register.add(watched, if_first=self._begin_anew)
        return session

    def prefer(self, interval: float) -> None:
        """Poll every `interval` seconds from now on, for every session without an interval of its own."""
        if interval == self._interval:
            return
        self._interval = interval
        for watched in self.register.all():
            if watched.options.interval is None:
                watched.session.polling.interval = interval
                self.poller.repace(watched, interval)

    def recorder(self, session: Session) -> Recorder:
        """Return the recorder of a session; raise `WatchStateError` if it has ended."""
        return self.register.find(session).recorder

    def grouping(self, session: Session) -> Grouping:
        """Return the object that decides how the steps of a training are measured."""
        watched = self.register.get(session)
        options = WatchOptions() if watched is None else watched.options
        return Grouping(session.polling, self._poller_cost, options)

    def _begin_anew(self) -> None:
        """Drop what a fault of this package has left behind; called while nothing is watched."""
        forget_faults()
        self.sampler.try_again()
        self.ledger.drop_all()
        self.attribution.rests = False

    def end(self, session: Session, outcome: str = "done") -> None:
        """End a session and the spans still open in it; ending it again does nothing."""
        watched = self.register.get(session)
        if watched is None:
            return

        def close_all() -> None:
            watched.ending = True
            for span in reversed(session.open_spans):
                self.close_span(session, span.id, outcome)
            self.register.remove(session)
            watched.recorder.stop(self._wall())

        # Another thread may be training in it, and would go on opening spans while these are closed.
        self._change(watched, close_all)

    def break_off(self, session: Session, error: BaseException) -> None:
        """End a session after a fault of this package, in whatever state; a second call does nothing."""
        watched = self.register.get(session)
        if watched is None:
            return
        note = _AT_A_LIMIT.get(type(error), BROKEN_OFF_NOTE).format(type(error).__name__)
        harmless(self.register.remove, session)
        harmless(self.poller.release, watched)
        harmless(self.ledger.drop, list(watched.windows.values()))
        harmless(watched.recorder.break_off, self._wall(), note)
        watched.windows.clear()

    def open_span(self, session: Session, kind: SpanKind, label: str = "") -> Span:
        """Open a span with readings of this instant.

        The first span of all starts the poller, and waits up to 0.1 s for figures that only its thread reads.
        """
        watched = self.register.find(session)
        if not self.in_this_process:
            return watched.recorder.open_span(kind, label, session.last_sample)
        if kind not in FINE_KINDS:
            watched.end_group()
        return self._change(watched, partial(self._open, watched, kind, label))

    def group_begins(self, session: Session, end: Callable[[], object]) -> None:
        """Register `end`: it is called when anything but the current steps begins in a session."""
        self.register.find(session).end_group = end

    def end_group(self, session: Session) -> None:
        """End the current group of steps of a session, unless one of those steps does so itself."""
        self.register.find(session).end_group()

    def close_span(
        self,
        session: Session,
        span_id: int,
        outcome: str = "done",
        counts: Mapping[str, float] = NO_COUNTS,
    ) -> Span:
        """Close a span and those still open in it, and add `counts`; closing again returns it as it is."""
        watched = self.register.find(session)
        if not self.in_this_process:
            recorder = watched.recorder
            return recorder.close_span(span_id, session.last_sample, {}, outcome, counts)
        return self._change(watched, partial(self._close, watched, span_id, outcome, counts))

    def turn(self, session: Session, closing: int, kind: SpanKind, label: str = "") -> Span:
        """Close an open span and open the next one at the same instant; return the new span."""
        watched = self.register.find(session)
        if not self.in_this_process:
            watched.recorder.close_span(closing, session.last_sample, {})
            return watched.recorder.open_span(kind, label, session.last_sample)
        return self._change(watched, partial(self._turn, watched, closing, kind, label))

    def open_ids(self, session: Session) -> Collection[int]:
        """Return the ids of a session's open spans, a live view; empty once the session has ended."""
        watched = self.register.get(session)
        return () if watched is None else watched.windows

    def is_open(self, session: Session, span_id: int) -> bool:
        """Return whether a span is open; it may have been closed by another owner."""
        return span_id in self.open_ids(session)

    def is_within(self, session: Session, kinds: Container[SpanKind]) -> bool:
        """Return whether a span of some kind is open."""
        watched = self.register.get(session)
        return watched is not None and watched.is_within(kinds)

    def opened_here(self, session: Session) -> bool:
        """Return whether this is the thread on which a session's outermost span was opened."""
        watched = self.register.get(session)
        return watched is not None and watched.thread == threading.get_ident()

    def optimizer_stepped(self) -> None:
        """Count an optimizer's new states; without spans of steps, the next step begins here."""
        self.attribution.optimizer_stepped()
        self.rebase()

    def rebase(self) -> None:
        """From time to time, let activations count from here, if no span says where they begin."""
        watched = self.register.current()
        if watched is not None and watched.unexplained.based_on is None:
            self._change(watched, partial(self._rebase, watched))

    def cache_grew(self, *caches: object) -> None:
        """Count KV caches that this thread has just used, and now and then add a sample."""
        self.attribution.cache_grew(*caches)
        watched = self.register.current()
        if watched is not None:
            self._change(watched, partial(self._look, watched))

    def sample(self, session: Session) -> None:
        """Add a sample at a point where much is allocated that no peak counter would show."""
        watched = self.register.get(session)
        if watched is not None:
            instant = Instant(None, {}, self.attribution.source.latest)
            read = partial(self.sampler.edge, instant, share=FULLEST_SHARE)
            self._change(watched, lambda: self._append(watched, read()))

    def peaks_so_far(self, session: Session, span_id: int) -> dict[str, Peak]:
        """Return the peaks of an open span up to now, by series key; empty once it has ended."""
        watched = self.register.find(session)
        window = watched.windows.get(span_id)
        exact = self.ledger.so_far().get(window, {}) if window is not None else {}
        highs = session.highs_in(span_id)
        known = {
            series.key: Peak(highs[series.key], "sampled")
            for series in session.series
            if series.metric in ROLES and series.key in highs
        }
        return dict(watched.wanted({**known, **exact}))

    def shutdown(self) -> str:
        """End everything; return a sentence if the user's own peaks now read lower, else ``""``."""
        if not self.in_this_process:
            return ""
        for watched in self.register.all():
            harmless(self.end, watched.session)
        self.sampler.close()
        return self.ledger.uninstall()

    def after_fork_in_child(self) -> None:
        """Become inert in a forked child, which does not have the poller's thread."""
        self.poller.after_fork_in_child()
        self.sampler.replace_locks()
        self.ledger.forget_windows()
        self.attribution.replace_lock()
        self.register.replace_locks()

    def _change(self, watched: Watched, change: Callable[[], R]) -> R:
        """Complete a change, or break the session off: half a change would spoil the rest."""
        try:
            with watched.edges:
                return change()
        except WatchStateError:
            raise
        except BaseException as error:
            self.break_off(watched.session, error)
            raise

    def _open(self, watched: Watched, kind: SpanKind, label: str) -> Span:
        if watched.ending:
            raise WatchStateError(HAS_ENDED)
        self._attribute(kind, begins=True, is_outermost=not watched.windows)
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

    def _close(
        self, watched: Watched, span_id: int, outcome: str, counts: Mapping[str, float] = NO_COUNTS
    ) -> Span:
        session = watched.session
        span = session.span(span_id)
        if span.stop is not None:
            return span
        for inner in session.open_within(span_id):
            self._close(watched, inner.id, outcome)
        if len(watched.windows) == 1:
            self.poller.poll_now()
            watched.unexplained.ended(span_id, was_last=True)  # activations do not stay
        self._attribute(span.kind, begins=False, is_outermost=len(watched.windows) == 1)
        session.contents = self.attribution.contents
        window = watched.windows.get(span_id)
        if window is None:  # of another session that has the same span
            return watched.close(span_id, session.last_sample, {}, outcome, counts)
        peaks = self.ledger.close(window)
        after = self._append(watched, self._row_at(window, span.kind))
        del watched.windows[span_id]
        span = watched.close(span_id, after, peaks, outcome, counts)
        if not watched.windows:
            self.poller.release(watched)
        return span

    def _turn(self, watched: Watched, closing: int, kind: SpanKind, label: str) -> Span:
        if watched.ending:
            raise WatchStateError(HAS_ENDED)
        self._attribute(kind, begins=True)
        session = watched.session
        if session.span(closing).stop is not None:
            return self._open(watched, kind, label)
        for inner in session.open_within(closing):
            self._close(watched, inner.id, "done")
        ending = watched.windows.pop(closing)
        beginning = self.ledger.turn(ending)
        span_id = watched.recorder.next_span_id()
        edge = self._append(watched, self._row_at(beginning, kind), begins=(span_id, kind, label))
        watched.close(closing, edge, ending.peaks, "done", NO_COUNTS)
        return watched.open(span_id, kind, label, edge, beginning)

    def _rebase(self, watched: Watched) -> None:
        now = self._clock()
        if now < self._rebase_due:
            return
        self._rebase_due = now + REBASE_PERIOD
        row = self.sampler.edge()
        self.register.take_over(watched)
        watched.unexplained.rebase(row)

    def _look(self, watched: Watched) -> None:
        """Add a sample, unless that would take too much of the time."""
        began = self._clock()
        if began < self._look_due or not watched.windows:
            return
        self._append(watched, self.sampler.edge())
        ended = self._clock()
        self._look_due = ended + (ended - began) / LOOK_SHARE

    def _row_at(self, window: Window, kind: SpanKind) -> Row:
        """Read everything at a window's newest edge, except what its ledger has just read."""
        self._edge_count += 1
        if kind not in FINE_KINDS:
            self.sampler.refresh()
        latest = self.attribution.source.latest
        instant = Instant(self.ledger.allocator, window.take_readings(), latest)
        return self.sampler.edge(instant, share=_share_of(kind), is_fine=kind in FINE_KINDS)

    def _attribute(self, kind: SpanKind, *, begins: bool, is_outermost: bool = False) -> None:
        """Count what the memory is used for; a fault in that ends the counting, not the watch."""
        if is_outermost and kind == "block":
            kind = "cell"  # a watch's own span is as rare, and compared, as a cell
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
        self, watched: Watched, row: Row, begins: tuple[int, SpanKind, str] | None = None
    ) -> Sample:
        """Add a row to a session, at which a span may begin: its id, kind and label."""
        self.register.take_over(watched)
        if begins is not None:
            watched.unexplained.base(*begins, row, is_inner=bool(watched.windows))
        return watched.append(row, self._clock() - watched.origin)


def outcome_of(error: BaseException | None) -> str:
    """Return how a piece of code ended, as text for `Span.outcome`."""
    if error is None:
        return "done"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit) and (code := code_of(error)):
        return f"exited with code {code}"
    return f"raised {type(error).__name__}"


def code_of(left: SystemExit) -> int:
    """Return the exit code of a process that ends by this `SystemExit`, as Python derives it."""
    code = left.code
    return code & 0xFF if isinstance(code, int) else int(code is not None)


def _share_of(kind: SpanKind) -> float | None:
    """Return the share of the time that reading may take where a span begins, or a step's span ends."""
    # Unexplained memory is measured once, at the begin of a step, for the whole step.
    if kind == "step" or kind not in FINE_KINDS:
        return None
    # These must begin with a reading of their own, not with a high of the span before.
    return FULLEST_SHARE if kind in {"substep", "backward", "optimizer", "decode"} else FINE_SHARE
