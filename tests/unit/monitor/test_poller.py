"""The poller lives as long as it is claimed, and never makes anyone wait for a call that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hfmem_widget.monitor.poller import Poller
from hfmem_widget.monitor.ticker import Ticker

LONG = 300.0
"""Seconds for what comes at once, on however busy a machine."""


def with_tickers(tick: Callable[[], object] = bool) -> tuple[Poller, list[Ticker]]:
    """Return a poller, and the tickers that it will have made."""
    made: list[Ticker] = []

    def make(tick: Callable[[], object], interval: float) -> Ticker:
        made.append(Ticker(tick, interval))
        return made[-1]

    return Poller(lambda _ticker: tick(), make), made


def test_a_hung_tick_does_not_hold_up_the_next_poller() -> None:
    """After a driver call hung, whoever claims the poller next is polled for."""
    release = threading.Event()
    ticks: list[int] = []

    def tick(_ticker: Ticker) -> None:
        ticks.append(1)
        if len(ticks) == 1:
            release.wait(LONG)

    poller = Poller(tick, Ticker)
    try:
        poller.claim("x", 0.01)
        poller.release("x")
        poller.claim("x", 0.01)
        poller.poll_now()
        assert len(ticks) >= 2
        assert not poller.join(0.0)
    finally:
        poller.release("x")
        release.set()
    assert poller.join(LONG)


def test_a_claim_can_become_slower() -> None:
    """The shortest interval of those that are claimed counts; who has no claim changes nothing."""
    poller, made = with_tickers()
    poller.repace("one", 5.0)
    poller.claim("one", 3600.0)
    intervals = []
    for by, interval in [("one", 7200.0), ("nobody", 1.0), ("one", 60.0)]:
        poller.repace(by, interval)
        intervals.append(made[0].interval)
    poller.claim("another", 30.0)
    poller.repace("one", 120.0)
    intervals.append(made[0].interval)
    poller.release("one")
    poller.release("another")

    assert intervals == [7200.0, 7200.0, 60.0, 30.0]


def test_what_is_done_aside_is_done_once() -> None:
    """An action on a thread of its own runs once, and its thread ends."""
    done: list[str] = []
    poller = Poller(lambda _ticker: None, Ticker)
    poller.aside(lambda: done.append(threading.current_thread().name), wait=True)

    assert done == ["hfmem-poller"]
    assert not poller.alive


def test_a_fork_does_not_wait_for_a_tick_that_hangs() -> None:
    """Holding the poller for a fork gives up on a driver call, and lets go only of what it held."""
    release = threading.Event()
    poller = Poller(lambda _ticker: release.wait(LONG), Ticker)
    poller.claim("x", 0.01)
    try:
        poller.before_fork()
        poller.after_fork_in_parent()
    finally:
        poller.release("x")
        release.set()
    assert poller.join(LONG)


def test_who_comes_for_a_while_leaves_the_pace_as_it_was() -> None:
    """A watch with an interval of its own, within another: its first tick comes at once."""
    ticked = threading.Event()
    poller, made = with_tickers(ticked.set)
    poller.claim("outer", 3600.0)
    ticked.clear()
    poller.claim("inner", 60.0)
    assert ticked.wait(LONG)
    assert made[0].interval == 60.0
    poller.release("inner")
    assert made[0].interval == 3600.0
    poller.release("outer")


@pytest.mark.parametrize(("slowed_to", "left"), [(0.05, 0.1), (0.4, 0.4)])
def test_a_ticker_that_was_slowed_down_stays_so(slowed_to: float, left: float) -> None:
    """Where somebody who wanted it quicker goes; but it is not quicker than those who stay want it."""
    poller, made = with_tickers()
    poller.claim("outer", 0.1)
    poller.claim("inner", 0.01)
    made[0].interval = slowed_to
    poller.release("inner")
    assert made[0].interval == left
    poller.release("outer")


class Refused(Ticker):
    """A ticker for which the system has no thread, while `refusing`."""

    refusing = True

    def start(self) -> None:
        if Refused.refusing:
            raise RuntimeError("can't start new thread")
        super().start()


def test_a_thread_that_cannot_be_started_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a container allows no more threads the poller says so, and polls as soon as it may."""
    poller = Poller(lambda _ticker: None, Refused)
    done: list[int] = []

    assert not poller.claim("x", 0.01)
    assert not poller.aside(lambda: done.append(1))
    assert done == []
    assert poller.aside(lambda: done.append(1), wait=True)  # here
    assert done == [1]
    poller.release("x")
    monkeypatch.setattr(Refused, "refusing", False)
    assert poller.claim("x", 3600.0)
    assert poller.alive
    poller.release("x")
    assert not poller.alive
