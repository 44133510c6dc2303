"""The poller: one thread for as long as anything claims it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from hfmem_widget.monitor.ticker import NOT_STARTED, MakeTicker, Ticker, begun

FIRST_TICK_TIMEOUT = 0.1
"""Seconds a cell may wait for readings that are only made on the poller's thread."""

STOP_TIMEOUT = 0.2
FORK_TIMEOUT = 0.5
ASIDE_TIMEOUT = 1.0


class Poller:
    """Calls `tick` with its ticker as long as it is claimed, at the shortest interval claimed."""

    def __init__(self, tick: Callable[[Ticker], object], make_ticker: MakeTicker) -> None:
        self._tick = tick
        self._make_ticker = make_ticker
        self._ticker: Ticker | None = None
        self._claims: dict[Hashable, float] = {}
        self._hung: list[Ticker] = []
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._held_for_fork: threading.Lock | None = None

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._ticker is not None and self._ticker.alive

    @property
    def is_here(self) -> bool:
        """True on the thread itself, where only finalizers run the user's code."""
        return self._ticker is not None and self._ticker.is_here

    def claim(self, by: Hashable, interval: float) -> bool:
        """Poll at least every `interval` seconds until `release`; the first claim waits briefly for a tick.

        Returns False where no thread could be started, or it ended at once: nothing is polled. The claim is
        to be given back all the same.
        """
        with self._lock:
            self._claims[by] = interval
            ticker = self._ticker
            if ticker is not None and ticker.alive and not ticker.stopping:
                ticker.hasten(interval)
                return True
            # A tick that hung keeps the lock it has; this one must not wait for it.
            self._ticking = ticking = threading.Lock()
            self._ticker = started = self._make_ticker(
                lambda: self._tick_holding(ticking, started), interval
            )
            try:
                started.start()
            except NOT_STARTED:
                self._ticker = None
                return False
        # A thread may also end at once, where `threading.settrace` was given a function that raises.
        return started.tick_now(FIRST_TICK_TIMEOUT) or started.alive

    def repace(self, by: Hashable, interval: float) -> None:
        """Poll at least every `interval` seconds for a claim that there is; the others keep theirs."""
        with self._lock:
            if by not in self._claims:
                return
            self._claims[by] = interval
            self._settle()

    def release(self, by: Hashable) -> None:
        """Give a claim back; the last one ends the thread. Giving it back again does nothing."""
        with self._lock:
            interval, ticker = self._claims.pop(by, None), self._ticker
            if ticker is None:
                return
            if self._claims:
                # One that is longer than all that are left is of a ticker that was slowed down.
                if ticker.interval == interval or ticker.interval < min(self._claims.values()):
                    self._settle()
                return
            self._ticker = None
        self._end(ticker, STOP_TIMEOUT)

    def _settle(self) -> None:
        """Tick as often as the claims want."""
        if self._ticker is not None:
            interval = min(self._claims.values())
            self._ticker.hasten(interval)
            self._ticker.interval = interval

    def poll_now(self) -> None:
        """Have a tick made now, and wait for it as long as a cell may."""
        ticker = self._ticker
        if ticker is not None and ticker.alive:
            ticker.tick_now(FIRST_TICK_TIMEOUT)

    def aside(self, action: Callable[[], object], *, wait: bool = False) -> bool:
        """Do something once on a thread of its own, and wait for it a second at most, if at all.

        With `wait`, returns whether it was done in that time: where no thread can be started, it is done
        here. Else returns False where no thread could be started: nothing is done.
        """
        try:
            ticker = begun(action, self._make_ticker)
        except NOT_STARTED:
            if wait:
                action()
            return wait
        if wait:
            ticker.tick_now(ASIDE_TIMEOUT)
            return self._end(ticker, ASIDE_TIMEOUT) and ticker.failure is None
        return True

    def join(self, timeout: float) -> bool:
        """Wait for threads that hung when they were stopped; say whether all have ended."""
        return all(ticker.stop(timeout) for ticker in self._hung)

    def before_fork(self) -> None:
        """Hold the tick, so that no lock of ours is in the middle of anything."""
        ticking = self._ticking
        self._held_for_fork = ticking if ticking.acquire(timeout=FORK_TIMEOUT) else None

    def after_fork_in_parent(self) -> None:
        """Let the tick go on."""
        held, self._held_for_fork = self._held_for_fork, None
        if held is not None:
            held.release()

    def after_fork_in_child(self) -> None:
        """Forget the thread, which did not come along."""
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._ticker = None
        self._claims = {}

    def _tick_holding(self, ticking: threading.Lock, ticker: Ticker) -> None:
        if not self._claims:
            # Whoever gave back the last claim did not come to the end of it.
            ticker.stop(0.0)
        with ticking:
            self._tick(ticker)

    def _end(self, ticker: Ticker, timeout: float) -> bool:
        has_ended = ticker.stop(timeout)
        if not has_ended:
            self._hung.append(ticker)
        return has_ended
