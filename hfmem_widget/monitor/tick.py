"""What the poller does each time: read, hand the row to every open session, and count what that cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hfmem_widget.monitor.grouping import PollerCost
from hfmem_widget.monitor.peaks import PeakLedger, Peaks, Window
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.monitor.watched import GAP, Register, Watched
from hfmem_widget.options import INTERVAL
from hfmem_widget.session import Session

PROGRESS_PERIOD = 0.5
"""Seconds between looks at the peaks of open spans."""

BUSY_FRACTION = 0.2
"""Share of an interval that a tick may cost before the poller slows down."""

FIRST_TICKS, COST_EVERY = 8, 4
"""The first ticks of a session, each of which is measured, and the distance of measured ones later."""

PACES = (0.0, 0.0), (20.0, 0.4), (40.0, 0.8)
"""Edges of spans a second, from which on ticks come less often, and the least seconds between ticks then.
Each edge is a sample, too, so a tick of 1 to 2 ms adds little. All are below `sampler.STALE_AFTER`."""

ENOUGH_EDGES = 0.5
"""Share of the edges with which a pace begins that keeps it."""

SURE_TICKS = 5
"""Ticks in a row with more edges before ticks come less often."""

CLOCK_STEP = 2.0
"""Seconds by which the wall clock must leave the monotonic one before a note says so."""


@dataclass(eq=False, slots=True)
class Tick:
    """One tick, for the poller's thread; called with the ticker that ticks, always the same one.

    `edges` returns how many edges of spans there have been. What a tick takes goes to `poller_cost`.
    `break_off` ends a session to which a row could not be added. The clocks return monotonic seconds, seconds
    since the epoch, and CPU seconds of this thread.
    """

    sampler: Sampler
    ledger: PeakLedger
    register: Register
    edges: Callable[[], int]
    poller_cost: PollerCost
    break_off: Callable[[Session, Exception], None]
    clock: Callable[[], float]
    wall: Callable[[], float]
    cpu: Callable[[], float]
    _ticks: int = 0
    _last_look: float = -math.inf
    _missed_before: int = 0
    _last_tick: float = -math.inf
    _edges_before: float = 0
    _ticks_with_more: int = 0
    _has_backed_off: bool = False
    _clocks_apart: tuple[float, float] = (-math.inf, math.inf)

    def __call__(self, ticker: Ticker) -> None:
        """Tick; a fault of ours is noted in every open session, and ends the ticker."""
        try:
            self._tick(ticker)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            for watched in self.register.listening():
                watched.session.polling.stopped = reason
            self.register.note(
                f"Polling stopped ({reason}). Exact peaks are not affected. Please report this."
            )
            for watched in self.register.listening():
                watched.recorder.publish()
            raise

    def _tick(self, ticker: Ticker) -> None:
        now = self.clock()
        listening = self.register.listening()
        # Reading a thread's CPU time is a system call, and takes as long as reading a device.
        self._ticks += 1
        is_new = any(watched.session.polling.ticks < FIRST_TICKS for watched in listening)
        started = self.cpu() if is_new or self._ticks % COST_EVERY == 0 else None
        self.ledger.install()
        peaks: dict[Window, Peaks] = {}
        instant = None
        if now - self._last_look >= PROGRESS_PERIOD:
            self._last_look = now
            peaks, instant = self.ledger.look()
        row = self.sampler.poll(instant)
        # A reading that hung has returned after this poller was given up.
        if ticker.stopping:
            return
        listening = self.register.listening()
        for watched in listening:
            try:
                self.register.take_over(watched)
                watched.append(row, self.clock() - watched.origin)
            except Exception as error:  # noqa: BLE001  (a fault in one session is not the others')
                self.break_off(watched.session, error)
        sessions = [watched.session for watched in listening]
        self._pace(listening, ticker, now - self._last_tick)
        self._count(sessions, ticker, now)
        for watched in listening:
            _progress(watched, peaks)
        if started is not None:
            self._has_backed_off |= _back_off(sessions, ticker, self.cpu() - started)
        for watched in listening:
            watched.recorder.publish()
        if started is not None and not is_new:
            self.poller_cost.ticked(self.cpu() - started, ticker.pace)

    def _pace(self, listening: Sequence[Watched], ticker: Ticker, since: float) -> None:
        """Tick less often while edges come far more often, unless an interval was asked for."""
        edges: float = self.edges()
        edges, self._edges_before = edges - self._edges_before, edges
        # At the first tick of a watch nothing is open yet.
        if self._has_backed_off or not listening:
            return
        if any(
            watched.options.interval is not None or watched.session.polling.interval != INTERVAL
            for watched in listening
        ):
            ticker.least = 0.0
            return
        # Peaks that are exact need no tick.
        if self.ledger.in_use and any(watched.session.polling.short_steps for watched in listening):
            edges = max(edges, PACES[-1][0] * since)
        paces = [pace for _, pace in PACES]
        now = paces.index(ticker.least)
        kept = sum(edges >= ENOUGH_EDGES * least * since for least, _ in PACES[1 : now + 1])
        has_more = any(edges >= least * since for least, _ in PACES[now + 1 : now + 2])
        self._ticks_with_more = self._ticks_with_more + 1 if has_more else 0
        if kept < now:
            ticker.least = paces[kept]
        elif self._ticks_with_more >= SURE_TICKS:
            ticker.least, self._ticks_with_more = paces[now + 1], 0

    def _count(self, sessions: Sequence[Session], ticker: Ticker, now: float) -> None:
        """Count a tick made at `now`, and note whether the machine's clock was set since the one before."""
        since, missed = now - self._last_tick, ticker.missed - self._missed_before
        for session in sessions:
            polling = session.polling
            polling.ticks += 1
            polling.missed += missed
            polling.current_interval = ticker.pace
            if since > GAP * ticker.pace and math.isfinite(since):
                polling.longest_gap = max(polling.longest_gap, since)
        self._last_tick, self._missed_before = now, ticker.missed
        # Lower and upper bounds: another thread may hold the interpreter's lock between two readings.
        earliest, wall, latest = self.clock(), self.wall(), self.clock()
        (low, high), self._clocks_apart = self._clocks_apart, (wall - latest, wall - earliest)
        if wall - latest > high + CLOCK_STEP or wall - earliest < low - CLOCK_STEP:
            self.register.note(
                "The machine was suspended, or its clock was changed, during this run."
            )


def _progress(watched: Watched, peaks: Mapping[Window, Peaks]) -> None:
    for span_id, window in list(watched.windows.items()):
        if window in peaks:
            watched.recorder.progress(span_id, watched.wanted(peaks[window]))


def _back_off(sessions: Sequence[Session], ticker: Ticker, cost: float) -> bool:
    """Record what a tick cost in CPU seconds; slow down if that is too much, and return whether it was."""
    for session in sessions:
        polling = session.polling
        polling.cost = cost if math.isnan(polling.cost) else 0.9 * polling.cost + 0.1 * cost
        if polling.ticks >= 3 and polling.cost > BUSY_FRACTION * ticker.pace:
            ticker.least = 2 * ticker.pace
            session.notes.append(
                f"A sample took {polling.cost * 1000:.0f} ms, so samples are now taken every "
                f"{ticker.pace:g} s. Exact peaks are not affected."
            )
            return True
    return False
