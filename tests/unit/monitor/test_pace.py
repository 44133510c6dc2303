"""How often the poller ticks where edges of spans come far more often than ticks."""

from __future__ import annotations

import pytest

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.tick import EASY_INTERVAL, SURE_TICKS
from hfmem_widget.options import INTERVAL, WatchOptions
from hfmem_widget.session import Session
from tests.unit.monitor.conftest import Bench


class Training:
    """A watched cell on a fake GPU that is in use, in which steps go by."""

    def __init__(self, interval: float | None = None) -> None:
        self.bench = Bench()
        self.bench.allocator.alloc(1 << 20)
        self.monitor: Monitor = self.bench.monitor
        self.session: Session = self.monitor.begin(WatchOptions(interval=interval))
        self.monitor.open_span(self.session, "cell")
        self.marker = self.monitor.marker(self.session)

    @property
    def pace(self) -> float:
        """Seconds to the next tick."""
        return self.bench.tickers[-1].interval

    def pass_ticks(self, ticks: int, steps: float) -> None:
        """Let some ticks pass, with so many steps in every 0.1 s."""
        for _ in range(ticks):
            for _ in range(round(steps * self.pace / INTERVAL)):
                step = self.marker.begin("step")
                assert step is not None
                assert self.marker.end(step, {})
            self.bench.pass_time(self.pace)


def test_short_steps_make_ticks_rarer() -> None:
    """Steps of 33 ms make 60 samples a second; the session says at what pace it is polled."""
    training = Training()
    training.pass_ticks(SURE_TICKS + 5, steps=3)

    assert training.pace == EASY_INTERVAL
    assert training.session.polling.current_interval == EASY_INTERVAL


def test_the_usual_pace_comes_back_with_longer_steps() -> None:
    """Such as an evaluation, after which it is rarer again."""
    training = Training()
    training.pass_ticks(SURE_TICKS + 1, steps=3)
    training.pass_ticks(2, steps=0)

    assert training.pace == INTERVAL


def test_a_moment_with_many_edges_changes_nothing() -> None:
    """Nor do steps of 100 ms without phases."""
    training = Training()
    training.pass_ticks(SURE_TICKS - 1, steps=3)
    training.pass_ticks(20, steps=1)

    assert training.pace == INTERVAL


def test_steps_of_sixty_milliseconds_keep_the_pace_they_have() -> None:
    """Else it would go back and forth where steps are as long as what makes the difference."""
    usual, easy = Training(), Training()
    easy.pass_ticks(SURE_TICKS + 1, steps=3)
    usual.pass_ticks(20, steps=1)
    easy.pass_ticks(20, steps=1.6)

    assert (usual.pace, easy.pace) == (INTERVAL, EASY_INTERVAL)


@pytest.mark.parametrize("interval", [INTERVAL, 0.05, EASY_INTERVAL])
def test_an_interval_that_was_asked_for_is_kept(interval: float) -> None:
    """Also where that is the usual one."""
    training = Training(interval)
    training.pass_ticks(20, steps=8)

    assert training.pace == interval


def test_an_interval_that_is_set_for_all_is_kept() -> None:
    """By JupyterLab's setting; also where it is the one of short steps."""
    training = Training()
    training.monitor.prefer(EASY_INTERVAL)
    training.pass_ticks(5, steps=5)
    training.pass_ticks(5, steps=0)

    assert training.pace == EASY_INTERVAL


def test_ticks_that_are_rarer_are_no_gap() -> None:
    """The timeline goes on without one."""
    training = Training()
    training.pass_ticks(20, steps=8)

    assert len(training.session.timeline.gaps) == 0
