"""The only place that makes a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
        begun(noted)
    except NOT_STARTED:
        with suppress(Exception):  # as on a thread
            noted()
    return done.wait(seconds)


def begun(action: Callable[[], object], make: MakeTicker | None = None) -> Ticker:
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
    meanwhile. An exception out of `tick` ends the ticker, and is kept in `failure`. A ticker runs once.
    """

    def __init__(
        self,
        tick: Callable[[], object],
        interval: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval = interval
        self.missed = 0
        self.failure: BaseException | None = None
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

    def hasten(self, interval: float) -> None:
        """Tick at least every `interval` seconds from now on, where it has been less often."""
        if interval < self.interval:
            self.interval = interval
            self._wake.set()

    def step(self) -> float:
        """Make one tick and return the seconds to wait for the next."""
        serving = self._asked_for
        now = self._clock()
        if now >= self._due:
            late = int((now - self._due) // self.interval)
            self.missed += late
            self._due += (late + 1) * self.interval
        self._tick()
        with self._served:
            self._served_up_to = serving
            self._served.notify_all()
        return max(0.0, min(self._due - self._clock(), self.interval))

    def _run(self) -> None:
        try:
            while not self.stopping:
                delay = self.step()
                self._wake.wait(delay)
                self._wake.clear()
        except BaseException as error:  # noqa: BLE001  (nothing above a thread could catch it)
            self.failure = error


MakeTicker = Callable[[Callable[[], object], float], Ticker]
"""Takes what to call, and the interval in seconds."""
