"""How well the ticks come: which were missed, how long nothing came, what one costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.monitor.watched import GAP
from hfmem_widget.session import Polling, Session

BUSY_FRACTION = 0.2
"""Of an interval: what a tick may cost before the poller slows down."""

CLOCK_STEP = 2.0
"""Seconds by which the wall clock must leave the monotonic one before it is told."""


class Rhythm:
    """What is kept from one tick to the next.

    Parameters
    ----------
    wall : callable
        Seconds since the epoch.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ticker: Ticker | None = None
        self._missed_before = 0
        self._last_tick = -math.inf
        self._ahead = math.nan

    def tick(self, ticker: Ticker, now: float, polled: Iterable[Polling]) -> bool:
        """Count a tick made at `now`; return whether the machine's clock was set since the one before."""
        if ticker is not self._ticker:
            self._ticker, self._missed_before = ticker, 0
            self._last_tick, self._ahead = -math.inf, math.nan
        since, missed = now - self._last_tick, ticker.missed - self._missed_before
        for polling in polled:
            polling.ticks += 1
            polling.missed += missed
            polling.current_interval = ticker.interval
            if since > GAP * ticker.interval and math.isfinite(since):
                polling.longest_gap = max(polling.longest_gap, since)
        self._last_tick, self._missed_before = now, ticker.missed
        before, self._ahead = self._ahead, self._wall() - now
        return abs(self._ahead - before) > CLOCK_STEP


def back_off(sessions: Iterable[Session], ticker: Ticker, cost: float) -> None:
    """Take in what a tick cost in CPU seconds, and slow down where ticks cost too much of their interval."""
    for session in sessions:
        polling = session.polling
        polling.cost = cost if math.isnan(polling.cost) else 0.9 * polling.cost + 0.1 * cost
        if polling.ticks >= 3 and polling.cost > BUSY_FRACTION * ticker.interval:
            ticker.interval *= 2
            session.notes.append(
                f"A sample took {polling.cost * 1000:.0f} ms, so samples are now taken every "
                f"{ticker.interval:g} s. Exact peaks are not affected."
            )
            break
