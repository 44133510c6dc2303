"""What the poller does each time: read, hand the row to who listens, and count what that cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hfmem_widget.monitor.late import LateEdges
from hfmem_widget.monitor.peaks import PeakLedger, Peaks, Window
from hfmem_widget.monitor.register import Register
from hfmem_widget.monitor.rhythm import Rhythm, back_off
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.sources.allocator import Instant

PROGRESS_PERIOD = 0.5
"""Seconds between looks at the peaks of open spans."""


class Tick:
    """One tick, for the poller's thread; called with the ticker that ticks.

    Parameters
    ----------
    sampler : Sampler
    ledger : PeakLedger
    late : LateEdges
        The edges that are left for the poller to enter.
    register : Register
    break_off : callable
        Ends a session to which a row could not be added, with the fault.
    clock : callable
        Monotonic seconds.
    wall : callable
        Seconds since the epoch.
    cpu : callable
        CPU seconds of the calling thread.
    """

    def __init__(
        self,
        sampler: Sampler,
        ledger: PeakLedger,
        late: LateEdges,
        register: Register,
        break_off: Callable[[Watched, Exception], None],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        cpu: Callable[[], float],
    ) -> None:
        self._sampler = sampler
        self._ledger = ledger
        self._late = late
        self._register = register
        self._break_off = break_off
        self._clock = clock
        self._cpu = cpu
        self._rhythm = Rhythm(wall)
        self._last_look = -math.inf

    def __call__(self, ticker: Ticker) -> None:
        """Make it; a fault of ours is said to everybody, and ends the ticker."""
        try:
            self._read_and_tell(ticker)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            for watched in self._register.listening():
                watched.session.polling.stopped = reason
            self._register.note(
                f"Polling stopped ({reason}). Exact peaks are not affected. Please report this."
            )
            for watched in self._register.listening():
                watched.recorder.publish()
            raise

    def _read_and_tell(self, ticker: Ticker) -> None:
        started = self._cpu()
        now = self._clock()
        self._ledger.install()
        peaks, instant = self._look(now)
        row = self._sampler.poll(instant)
        self._late.enter_all()
        # A reading that hung came back to a world in which this poller was given up.
        if ticker.stopping:
            return
        listening = self._register.listening()
        for watched in listening:
            try:
                self._register.take_over(watched, self._sampler)
                watched.append(row, self._clock() - watched.origin)
            except Exception as error:  # noqa: BLE001  (a fault in one session is not the others')
                self._break_off(watched, error)
        sessions = [watched.session for watched in listening]
        if self._rhythm.tick(ticker, now, [session.polling for session in sessions]):
            self._register.note(
                "The machine was suspended, or its clock was changed, during this run."
            )
        if peaks:
            _report_progress(listening, peaks)
        back_off(sessions, ticker, self._cpu() - started)
        for watched in listening:
            watched.recorder.publish()

    def _look(self, now: float) -> tuple[dict[Window, Peaks], Instant | None]:
        if now - self._last_look < PROGRESS_PERIOD:
            return {}, None
        self._last_look = now
        return self._ledger.look()


def _report_progress(listening: Sequence[Watched], peaks: dict[Window, Peaks]) -> None:
    for watched in listening:
        for span_id, window in list(watched.windows.items()):
            if window in peaks:
                watched.recorder.progress(span_id, watched.wanted(peaks[window]))
