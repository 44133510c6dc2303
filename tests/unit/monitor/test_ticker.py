"""The ticker is the one place that makes a thread; these tests step it by hand, but for the last few."""

from __future__ import annotations

import threading

import pytest

from hfmem_widget.monitor.ticker import Ticker, done_within
from tests.scenes import FakeClock

LONG = 300.0
"""Seconds for what comes at once, on however busy a machine."""


def test_the_schedule_is_absolute() -> None:
    """A tick that takes time shortens the wait after it."""
    clock = FakeClock()
    ticker = Ticker(lambda: clock.advance(0.03), 0.1, clock=clock)

    assert ticker.step() == pytest.approx(0.07)


def test_late_ticks_are_skipped_and_counted() -> None:
    """After half a second away, the ticks that were due are not made up for."""
    clock = FakeClock()
    ticker = Ticker(lambda: None, 0.1, clock=clock)
    ticker.step()
    clock.advance(0.55)
    delay = ticker.step()

    assert ticker.missed == 4
    assert delay == pytest.approx(0.05)


def test_an_interval_may_change_while_it_runs() -> None:
    """The wait after a change follows the new interval."""
    clock = FakeClock()
    ticker = Ticker(lambda: None, 0.1, clock=clock)
    ticker.step()
    ticker.interval = 0.4
    clock.advance(0.1)

    assert ticker.step() == pytest.approx(0.4)


def test_an_error_ends_the_thread_and_is_kept() -> None:
    """A tick that raises stops the ticker and says why; it reaches nobody else."""

    def fail() -> None:
        message = "no"
        raise LookupError(message)

    ticker = Ticker(fail, 0.01)
    ticker.start()

    assert ticker.stop(timeout=LONG)
    assert isinstance(ticker.failure, LookupError)


def test_tick_now_waits_for_a_tick_that_began_after_it() -> None:
    """Asking for a tick returns once one was made, long before it was due."""
    ticks: list[int] = []
    ticker = Ticker(lambda: ticks.append(1), 3600.0)
    ticker.start()
    try:
        assert ticker.tick_now(timeout=LONG)
        made = len(ticks)
        assert ticker.tick_now(timeout=LONG)
        assert len(ticks) == made + 1
    finally:
        assert ticker.stop(timeout=LONG)


def test_tick_now_does_not_wait_for_a_ticker_that_has_stopped_itself() -> None:
    """What ticks once and stops is not waited for, although it ticked before it was asked."""
    ticker = Ticker(lambda: ticker.stop(0.0), 60.0)
    ticker.step()
    waits = []
    ticker._served.wait_for = lambda done, _timeout: waits.append(done())  # type: ignore[assignment,method-assign,misc]

    assert not ticker.tick_now(timeout=LONG)
    assert waits == [True]


def test_tick_now_gives_up_on_a_tick_that_hangs() -> None:
    """A driver call that does not return cannot hold up who asks for a tick."""
    release = threading.Event()
    ticker = Ticker(lambda: release.wait(LONG), 0.01)
    ticker.start()
    try:
        assert not ticker.tick_now(timeout=0.01)
        assert not ticker.stop(timeout=0.01)
    finally:
        release.set()
        assert ticker.stop(timeout=LONG)


def test_something_is_done_on_a_thread_of_its_own_or_not_in_time() -> None:
    """Who asks learns which, and never of an error in it."""
    release, where = threading.Event(), []

    assert done_within(LONG, lambda: where.append(threading.get_ident()))
    assert where != [threading.get_ident()]
    assert done_within(LONG, [].pop)
    assert not done_within(0.01, lambda: release.wait(LONG))
    release.set()


def test_where_no_thread_can_be_had_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has so many threads at most, and each needs memory for its stack."""
    where: list[int] = []

    def refuse(_ticker: Ticker) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(Ticker, "start", refuse)

    assert done_within(LONG, lambda: where.append(threading.get_ident()))
    assert done_within(LONG, [].pop)
    assert where == [threading.get_ident()]
