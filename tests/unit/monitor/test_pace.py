"""How often the poller ticks where edges of spans come far more often than ticks."""

from __future__ import annotations

import pytest

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.tick import PACES, SURE_TICKS
from hfmem_widget.options import INTERVAL, WatchOptions
from hfmem_widget.session import Session
from tests.unit.monitor.conftest import Bench

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
        return self.bench.tickers[-1].interval

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


@pytest.mark.parametrize(("steps", "pace"), [(0.8, INTERVAL), (1.2, RARER), (3, RAREST)])
def test_short_steps_make_ticks_rarer(steps: float, pace: float) -> None:
    """Steps of 83 ms make 24 samples a second; the session says at what pace it is polled."""
    training = Training()
    training.pass_ticks(20, steps)

    assert training.pace == pace
    assert training.session.polling.current_interval == pace


def test_where_steps_share_spans_ticks_are_rarest() -> None:
    """Few edges come of them; not where peaks are those of ticks."""
    paces = {}
    for has_gpu in (True, False):
        training = Training(has_gpu=has_gpu)
        training.session.polling.short_steps = True
        training.pass_ticks(20, steps=0)
        paces[has_gpu] = training.pace

    assert paces == {True: RAREST, False: INTERVAL}


def test_the_usual_pace_comes_back_with_longer_steps() -> None:
    """Such as an evaluation, after which it is rarer again."""
    training = Training()
    training.pass_ticks(20, steps=3)
    training.pass_ticks(2, steps=0)

    assert training.pace == INTERVAL


def test_ticks_that_cost_too_much_stay_rare() -> None:
    """Though 0.4 s, to which they have backed off, is a pace of short steps, too; and few notes say so."""
    training = Training()
    training.bench.host.meanwhile = lambda: training.bench.cpu.advance(0.06)
    training.pass_ticks(60, steps=0)

    assert training.pace == RARER
    assert sum("now taken every" in note for note in training.session.notes) == 2


def test_a_nested_watch_leaves_the_pace_as_it_was() -> None:
    """With an interval of its own, which no pace is."""
    training = Training()
    for interval in (0.7, 0.01):
        inner = training.monitor.begin(WatchOptions(interval=interval))
        training.monitor.open_span(inner, "cell")
        training.monitor.end(inner)
        training.pass_ticks(2, steps=0)
        assert training.pace == INTERVAL


def test_a_moment_with_many_edges_changes_nothing() -> None:
    """Nor do several of them, with longer steps in between."""
    training = Training()
    for _ in range(5):
        training.pass_ticks(SURE_TICKS - 1, steps=3)
        training.pass_ticks(1, steps=0)

    assert training.pace == INTERVAL


@pytest.mark.parametrize(("before", "steps"), [(3, 1.5), (1.5, 0.75)])
def test_somewhat_longer_steps_keep_their_pace(before: float, steps: float) -> None:
    """It would otherwise alternate if steps are near the threshold."""
    training = Training()
    training.pass_ticks(20, before)
    pace = training.pace
    training.pass_ticks(20, steps)

    assert training.pace == pace != INTERVAL


@pytest.mark.parametrize("interval", [INTERVAL, 0.05, RARER])
def test_a_requested_interval_is_kept(interval: float) -> None:
    """Also if it is the usual one."""
    training = Training(interval)
    training.pass_ticks(20, steps=8)

    assert training.pace == interval


def test_an_interval_that_is_set_for_all_is_kept() -> None:
    """By JupyterLab's setting, also if it is that of short steps."""
    training = Training()
    training.monitor.prefer(RARER)
    training.pass_ticks(5, steps=5)
    training.pass_ticks(5, steps=0)

    assert training.pace == RARER


def test_rarer_ticks_are_not_a_gap() -> None:
    """The timeline continues without one."""
    training = Training()
    training.pass_ticks(20, steps=8)

    assert len(training.session.timeline.gaps) == 0
