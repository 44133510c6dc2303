"""The only place that makes a thread, and the poller: a thread that runs while anything claims it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress

NOT_STARTED = RuntimeError, MemoryError
"""What is raised where there are too many threads, or there is no memory for a stack."""


def done_within(seconds: float, action: Callable[[], object]) -> bool:
    """Call a function on another thread, or else here; return whether it finished in so many seconds."""
    done = threading.Event()

    def noted() -> None:
        try:
            action()
        finally:
            done.set()

    try:
        start_thread(noted)
    except NOT_STARTED:
        with suppress(Exception):  # as on a thread
            noted()
    return done.wait(seconds)


def start_thread(action: Callable[[], object], make: MakeTicker | None = None) -> Ticker:
    """Start a daemon thread that calls a function once, and return it."""

    def once() -> None:
        ticker.stop(0.0)  # after this tick
        action()

    ticker = (make or Ticker)(once, 1.0)
    ticker.start()
    return ticker


class Ticker:
    """Calls `tick` on its own daemon thread, every `interval` seconds of an absolute schedule, until stopped.

    A tick that comes too late is not made up for: it is skipped and counted. The interval may be changed
    meanwhile. An exception out of `tick` ends the ticker. A ticker runs once.
    """

    def __init__(
        self,
        tick: Callable[[], object],
        interval: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval = interval
        self.least = 0.0
        """Seconds by which ticks are apart even where the interval is shorter."""
        self.missed = 0
        self._tick = tick
        self._clock = clock
        self._due = clock()
        self.stopping = False
        """True once it is to stop; a tick that returns late must then change nothing."""
        self._wake = threading.Event()
        self._served = threading.Condition()
        self._asked_for = 0
        self._served_up_to = 0
        self._thread = threading.Thread(target=self._run, name="hfmem-poller", daemon=True)

    @property
    def pace(self) -> float:
        """Seconds between ticks."""
        return max(self.interval, self.least)

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    @property
    def is_here(self) -> bool:
        """True on the thread itself."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Make the thread; the first tick comes at once."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Ask the thread to end, wait at most `timeout` seconds, and say whether it has."""
        self.stopping = True
        self._wake.set()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout)
        return not self.alive

    def tick_now(self, timeout: float) -> bool:
        """Make one whole tick now, and return whether it finished within `timeout` seconds."""
        with self._served:
            self._asked_for += 1
            request = self._asked_for
            self._wake.set()
            self._served.wait_for(lambda: self._served_up_to >= request or self.stopping, timeout)
            return self._served_up_to >= request

    def ask(self, interval: float) -> None:
        """Tick every `interval` seconds from now on; at once if that is more often than before."""
        before, self.interval = self.interval, interval
        if interval < before:
            self._wake.set()

    def step(self) -> float:
        """Make one tick and return the seconds to wait for the next."""
        serving = self._asked_for
        now = self._clock()
        if now >= self._due:
            late = int((now - self._due) // self.pace)
            self.missed += late
            self._due += (late + 1) * self.pace
        self._tick()
        with self._served:
            self._served_up_to = serving
            self._served.notify_all()
        return max(0.0, min(self._due - self._clock(), self.pace))

    def _run(self) -> None:
        with suppress(BaseException):  # nothing above a thread could catch it
            while not self.stopping:
                self._wake.wait(self.step())
                self._wake.clear()


MakeTicker = Callable[[Callable[[], object], float], Ticker]
"""Takes what to call, and the interval in seconds."""

FIRST_TICK_TIMEOUT = 0.1
"""Seconds a cell may wait for readings that are only made on the poller's thread."""

STOP_TIMEOUT = 0.2
FORK_TIMEOUT = 0.5

MakeTick = Callable[[], Callable[[Ticker], object]]
"""Returns what a new ticker is to call, with itself."""


class Poller:
    """Ticks while it is claimed, at the shortest claimed interval; `make_tick` is called for each ticker."""

    def __init__(self, make_tick: MakeTick, make_ticker: MakeTicker) -> None:
        self._make_tick = make_tick
        self._make_ticker = make_ticker
        self._ticker: Ticker | None = None
        self._claims: dict[Hashable, float] = {}
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

        Returns False if nothing is polled, as without a thread; the claim must be released all the same.
        """
        with self._lock:
            self._claims[by] = interval
            ticker = self._ticker
            if ticker is not None and ticker.alive and not ticker.stopping:
                ticker.ask(min(self._claims.values()))
                return True
            # A tick that hung still holds its lock; this one must not wait for it.
            tick, ticking = self._make_tick(), threading.Lock()
            self._ticking = ticking
            self._ticker = started = self._make_ticker(
                lambda: self._tick_holding(ticking, tick, started), interval
            )
            try:
                started.start()
            except NOT_STARTED:
                self._ticker = None
                return False
        # A thread may also end at once, where `threading.settrace` was given a function that raises.
        return started.tick_now(FIRST_TICK_TIMEOUT) or started.alive

    def repace(self, by: Hashable, interval: float) -> None:
        """Poll at least every `interval` seconds for an existing claim; the others keep their intervals."""
        with self._lock:
            if by in self._claims:
                self._claims[by] = interval
                if self._ticker is not None:
                    self._ticker.ask(min(self._claims.values()))

    def release(self, by: Hashable) -> None:
        """Release a claim; releasing the last one ends the thread. A second release does nothing."""
        with self._lock:
            self._claims.pop(by, None)
            ticker = self._ticker
            if ticker is None:
                return
            if self._claims:
                ticker.ask(min(self._claims.values()))
                return
            self._ticker = None
        ticker.stop(STOP_TIMEOUT)

    def poll_now(self) -> None:
        """Make a tick now, and wait for it as long as a cell may wait."""
        ticker = self._ticker
        if ticker is not None and ticker.alive:
            ticker.tick_now(FIRST_TICK_TIMEOUT)

    def aside(self, action: Callable[[], object]) -> bool:
        """Call a function once on a thread of its own, and return whether one could be started."""
        try:
            start_thread(action, self._make_ticker)
        except NOT_STARTED:
            return False
        return True

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
        """Forget the thread, which a forked child does not have."""
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._ticker = None
        self._claims = {}

    def _tick_holding(
        self, ticking: threading.Lock, tick: Callable[[Ticker], object], ticker: Ticker
    ) -> None:
        if not self._claims:
            # The release of the last claim was interrupted.
            ticker.stop(0.0)
        with ticking:
            tick(ticker)
