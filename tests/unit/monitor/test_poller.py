"""How long the poller lives, and how often it ticks: rarely where spans have many edges."""

import threading
from collections.abc import Callable
from queue import Queue
from unittest.mock import Mock

import pytest

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.tick import PACES, SURE_TICKS
from hfmem_widget.monitor.ticker import Poller, Ticker, done_within
from hfmem_widget.options import INTERVAL, WatchOptions
from hfmem_widget.session import Session
from tests.scenes import FakeClock
from tests.unit.monitor.conftest import Bench

LONG = 300.0
"""Seconds for what comes at once, on however busy a machine."""


def with_tickers(tick: Callable[[], object] = bool) -> tuple[Poller, list[Ticker]]:
    """Return a poller, and the tickers that it will have made."""
    tickers: list[Ticker] = []

    def make(tick: Callable[[], object], interval: float) -> Ticker:
        tickers.append(Ticker(tick, interval))
        return tickers[-1]

    return Poller(lambda: lambda _ticker: tick(), make), tickers


def test_a_hung_tick_does_not_hold_up_the_next_poller() -> None:
    """After a driver call hung, the next claim of the poller is served."""
    release = threading.Event()
    ticks: list[int] = []

    def tick(_ticker: Ticker) -> None:
        ticks.append(1)
        if len(ticks) == 1:
            release.wait(LONG)

    poller = Poller(lambda: tick, Ticker)
    try:
        poller.claim("x", 0.01)
        poller.release("x")
        poller.claim("x", 0.01)
        poller.poll_now()
        assert len(ticks) >= 2
    finally:
        poller.release("x")
        release.set()


def test_a_claim_can_become_slower() -> None:
    """The shortest claimed interval counts; a change without a claim does nothing."""
    poller, tickers = with_tickers()
    poller.repace("one", 5.0)
    poller.claim("one", 3600.0)
    intervals = []
    for by, interval in [("one", 7200.0), ("nobody", 1.0), ("one", 60.0)]:
        poller.repace(by, interval)
        intervals.append(tickers[0].interval)
    poller.claim("another", 30.0)
    poller.repace("one", 120.0)
    intervals.append(tickers[0].interval)
    poller.release("one")
    poller.release("another")

    assert intervals == [7200.0, 7200.0, 60.0, 30.0]


def test_an_action_aside_runs_once() -> None:
    """An action aside runs on a thread of its own, which then ends."""
    done: Queue[str] = Queue()
    poller = Poller(lambda: lambda _ticker: None, Ticker)

    assert poller.aside(lambda: done.put(threading.current_thread().name))
    assert done.get(timeout=LONG) == "hfmem-poller"
    assert not poller.alive


def test_a_fork_does_not_wait_for_a_tick_that_hangs() -> None:
    """Holding the poller for a fork gives up on a driver call, and releases only what it held."""
    release = threading.Event()
    poller = Poller(lambda: lambda _ticker: release.wait(LONG), Ticker)
    poller.claim("x", 0.01)
    try:
        poller.before_fork()
        poller.after_fork_in_parent()
    finally:
        poller.release("x")
        release.set()


def test_an_inner_claim_leaves_the_interval_as_it_was() -> None:
    """An inner claim has its own interval and ticks at once; after it the interval is as before."""
    ticked = threading.Event()
    poller, tickers = with_tickers(ticked.set)
    poller.claim("outer", 3600.0)
    ticked.clear()
    poller.claim("inner", 60.0)
    assert ticked.wait(LONG)
    assert tickers[0].interval == 60.0
    poller.release("inner")
    assert tickers[0].interval == 3600.0
    poller.release("outer")


@pytest.mark.parametrize(("slowed_to", "pace"), [(0.05, 0.1), (0.4, 0.4)])
def test_a_ticker_that_was_slowed_down_stays_so(slowed_to: float, pace: float) -> None:
    """A slow ticker stays slow when a faster claim ends, but is never faster than the claims left."""
    poller, tickers = with_tickers()
    poller.claim("outer", 0.1)
    poller.claim("inner", 0.01)
    tickers[0].least = slowed_to
    poller.release("inner")
    assert tickers[0].pace == pace
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
    poller = Poller(lambda: lambda _ticker: None, Refused)
    done: list[int] = []

    assert not poller.claim("x", 0.01)
    assert not poller.aside(lambda: done.append(1))
    assert done == []
    poller.release("x")
    monkeypatch.setattr(Refused, "refusing", False)
    assert poller.claim("x", 3600.0)
    assert poller.alive
    poller.release("x")
    assert not poller.alive


@pytest.mark.parametrize(
    ("duration", "pause", "interval", "delay", "missed"),
    [
        pytest.param(0.03, 0.07, 0.1, 0.07, 0, id="a tick that takes time shortens the wait"),
        pytest.param(0.0, 0.55, 0.1, 0.05, 4, id="late ticks are skipped and counted"),
        pytest.param(0.0, 0.1, 0.4, 0.4, 0, id="a new interval counts from the next wait on"),
    ],
)
def test_the_schedule_is_absolute(
    duration: float, pause: float, interval: float, delay: float, missed: int
) -> None:
    """The next tick is due a whole number of intervals after the first."""
    clock = FakeClock()
    ticker = Ticker(lambda: clock.advance(duration), 0.1, clock=clock)
    ticker.step()
    ticker.interval = interval
    clock.advance(pause)

    assert ticker.step() == pytest.approx(delay)
    assert ticker.missed == missed


def test_an_error_ends_the_thread() -> None:
    """A tick that raises stops the ticker, and nobody else sees the error."""
    ticker = Ticker(Mock(side_effect=LookupError("no")), 0.01)
    ticker.start()

    assert ticker.stop(timeout=LONG)


def test_tick_now_waits_for_a_tick_that_began_after_it() -> None:
    """Asking for a tick returns once one was made, long before it was due."""
    ticks: list[int] = []
    ticker = Ticker(lambda: ticks.append(1), 3600.0)
    ticker.start()
    try:
        assert ticker.tick_now(timeout=LONG)
        count = len(ticks)
        assert ticker.tick_now(timeout=LONG)
        assert len(ticks) == count + 1
    finally:
        assert ticker.stop(timeout=LONG)


def test_tick_now_does_not_wait_for_a_ticker_that_has_stopped_itself() -> None:
    """A ticker that ticks once and stops is not awaited, although it ticked before the request."""
    ticker = Ticker(lambda: ticker.stop(0.0), 60.0)
    ticker.step()
    waits = []
    ticker._served.wait_for = lambda done, _timeout: waits.append(done())  # type: ignore[assignment,method-assign,misc]

    assert not ticker.tick_now(timeout=LONG)
    assert waits == [True]


def test_tick_now_gives_up_on_a_tick_that_hangs() -> None:
    """A driver call that does not return cannot block the caller."""
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
    """The caller learns whether an action was done in time, and gets no error of it."""
    release, thread_ids = threading.Event(), []

    assert done_within(LONG, lambda: thread_ids.append(threading.get_ident()))
    assert thread_ids != [threading.get_ident()]
    assert done_within(LONG, [].pop)
    assert not done_within(0.01, lambda: release.wait(LONG))
    release.set()


def test_without_a_new_thread_it_runs_on_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has a limited number of threads, and each needs memory for its stack."""
    thread_ids: list[int] = []
    monkeypatch.setattr(Ticker, "start", Mock(side_effect=RuntimeError("can't start new thread")))

    assert done_within(LONG, lambda: thread_ids.append(threading.get_ident()))
    assert done_within(LONG, [].pop)
    assert thread_ids == [threading.get_ident()]


_, RARER, RAREST = (pace for _, pace in PACES)


class Training:
    """A watched cell in which steps go by, on a fake GPU that is in use."""

    def __init__(self, interval: float | None = None, *, has_gpu: bool = True) -> None:
        self.bench = Bench()
        if has_gpu:
            self.bench.allocator.alloc(1 << 20)
        self.monitor: Monitor = self.bench.monitor
        self.session: Session = self.monitor.begin(WatchOptions(interval=interval))
        self.monitor.open_span(self.session, "cell")

    @property
    def pace(self) -> float:
        """Seconds to the next tick."""
        return self.bench.tickers[-1].pace

    def pass_ticks(self, ticks: int, steps: float) -> None:
        """Let some ticks pass, with a number of steps in every 0.1 s."""
        due = 0.0
        for _ in range(ticks):
            due += steps * self.pace / INTERVAL
            while due >= 1.0:
                due -= 1.0
                step = self.monitor.open_span(self.session, "step", "step")
                self.monitor.close_span(self.session, step.id)
            self.bench.pass_time(self.pace)


@pytest.mark.parametrize(
    ("moments", "pace"),
    [
        pytest.param([(20, 0.8)], INTERVAL, id="steps of 125 ms"),
        pytest.param([(20, 1.2)], RARER, id="steps of 83 ms, 24 samples a second"),
        pytest.param([(20, 3)], RAREST, id="steps of 33 ms"),
        pytest.param([(20, 3), (2, 0)], INTERVAL, id="longer ones after short ones"),
        pytest.param([(SURE_TICKS - 1, 3), (1, 0)] * 5, INTERVAL, id="moments with many edges"),
        pytest.param(
            [(20, 3), (20, 1.5)], RAREST, id="somewhat longer ones, which would alternate"
        ),
        pytest.param(
            [(20, 1.5), (20, 0.75)], RARER, id="somewhat longer ones at the next threshold"
        ),
    ],
)
def test_short_steps_make_ticks_rarer(moments: list[tuple[int, float]], pace: float) -> None:
    """The pace follows the length of the steps; the session says at what pace it is polled."""
    training = Training()
    for ticks, steps in moments:
        training.pass_ticks(ticks, steps)

    assert training.pace == pace
    assert training.session.polling.current_interval == pace


def test_where_steps_share_spans_ticks_are_rarest() -> None:
    """Where steps share spans on a GPU, ticks are rarest; peaks of the host need the usual pace."""
    paces = {}
    for has_gpu in (True, False):
        training = Training(has_gpu=has_gpu)
        training.session.polling.short_steps = True
        training.pass_ticks(20, steps=0)
        paces[has_gpu] = training.pace

    assert paces == {True: RAREST, False: INTERVAL}


def test_ticks_that_cost_too_much_stay_rare() -> None:
    """Ticks that have backed off to 0.4 s stay rare, and two notes say so."""
    training = Training()
    training.bench.host.meanwhile = lambda: training.bench.cpu.advance(0.06)
    training.pass_ticks(60, steps=0)

    assert training.pace == RARER
    assert sum("now taken every" in note for note in training.session.notes) == 2


def test_a_nested_watch_leaves_the_pace_as_it_was() -> None:
    """A nested watch with its own interval leaves the outer pace as it was."""
    training = Training()
    for interval in (0.7, 0.01):
        inner = training.monitor.begin(WatchOptions(interval=interval))
        training.monitor.open_span(inner, "cell")
        training.monitor.end(inner)
        training.pass_ticks(2, steps=0)
        assert training.pace == INTERVAL


@pytest.mark.parametrize("interval", [INTERVAL, 0.05, RARER])
def test_a_requested_interval_is_kept(interval: float) -> None:
    """A requested interval is kept, also if it is the usual one."""
    training = Training(interval)
    training.pass_ticks(20, steps=8)

    assert training.pace == interval


def test_an_interval_that_is_set_for_all_is_kept() -> None:
    """An interval set in JupyterLab is kept, also if it is that of short steps."""
    training = Training()
    training.monitor.prefer(RARER)
    training.pass_ticks(5, steps=5)
    training.pass_ticks(5, steps=0)

    assert training.pace == RARER


def test_rarer_ticks_are_not_a_gap() -> None:
    """Rarer ticks make no gap in the timeline."""
    training = Training()
    training.pass_ticks(20, steps=8)

    assert len(training.session.timeline.gaps) == 0
