"""How often phases are measured follows from what steps cost and how long they are, and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.monitor import governor
from hfmem_widget.monitor.governor import (
    LEAST_STEPS,
    RARITIES,
    RATIONS,
    RECENT,
    Costs,
    Deferred,
    Governor,
    Ration,
    decide,
)
from hfmem_widget.session import Polling
from hfmem_widget.session.model import MOST_SHARE

WHOLE = 1e-3
"""Seconds that a step with its phases costs in these tests; one without costs a third, or a sixth."""


@pytest.fixture(autouse=True)
def _all_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a step cost what these tests say, and nothing that no clock sees."""
    monkeypatch.setattr(governor, "seconds_of_an_event", lambda: 0.0)


def costs(length: float) -> Costs:
    return Costs(length, WHOLE, WHOLE / 3, WHOLE / 6)


class Training:
    """Steps that cost what they are told to, on a clock of their own."""

    def __init__(self, *, wants_all: bool = False) -> None:
        self.polling = Polling()
        self.deferred = Deferred()
        self.governor = Governor(self.polling, self.deferred, wants_all=wants_all)
        self.now = 100.0
        self.number = 0
        self.cost = {"whole": WHOLE, "looked": WHOLE / 3, "bare": WHOLE / 6}

    def steps(self, lengths: Iterable[float]) -> list[str]:
        """Make steps of so many seconds; return how each was measured."""
        made: list[str] = []
        for length in lengths:
            self.number += 1
            self.governor.begins(self.number, self.now)
            made.append(self.governor.how)
            self.governor.spent += self.cost[self.governor.how]
            self.governor.ended({"step": float(self.number)})
            self.now += length
        return made

    @property
    def every(self) -> int:
        return self.polling.phases_every


def test_long_steps_have_their_phases_measured_each() -> None:
    """Where measuring takes less than the limit, nothing is decided but that."""
    training = Training()

    assert training.steps([1.0] * 100) == ["whole"] * 100
    assert (training.polling.phases_every, training.polling.limited) == (1, "")


def test_short_steps_have_them_measured_on_some() -> None:
    """As many as are affordable: at 60 ms and 1 ms a step, on every fourth at most."""
    training = Training()
    made = training.steps([0.06] * 400)[-64:]
    taken = sum(training.cost[how] for how in made) / (0.06 * 64)

    assert training.every == 4
    assert [at % 4 for at, how in enumerate(made, 400 - 63) if how == "whole"] == [0] * 16
    assert taken <= MOST_SHARE
    assert training.polling.limited == "phases on every 4th step, to stay below 1 %"


def test_looks_thin_out_once_phases_have() -> None:
    """Where phases on every 64th step cost too much still, other steps are looked at more rarely, too."""
    training = Training()
    made = training.steps([0.025] * 3000)[-640:]

    assert training.every == RARITIES[-1]
    assert training.polling.looks_every > 1
    assert {"whole", "looked", "bare"} == set(made)
    assert sum(training.cost[how] for how in made) / (0.025 * 640) <= MOST_SHARE
    assert training.polling.limited.startswith("phases on every 64th step, parts on every ")


def test_nothing_is_decided_before_some_steps_were_seen() -> None:
    """A first step makes the optimizer's states and is like no other; two more make no difference."""
    training = Training()

    assert training.steps([1e-4] * LEAST_STEPS) == ["whole"] * LEAST_STEPS


def test_one_very_long_step_changes_nothing() -> None:
    """Nor do four in a row: a checkpoint or an evaluation makes no step longer."""
    training = Training()
    training.steps([0.06] * 200)
    training.steps([0.06, 900.0, 0.06, 30.0, 30.0, 30.0, *[0.06] * 20])

    assert training.every == 4


def test_one_very_expensive_step_changes_nothing() -> None:
    """Everything was counted at its edge, or the machine was busy."""
    training = Training()
    training.steps([1.0] * 20)
    training.cost["whole"] = 5.0
    training.steps([1.0])
    training.cost["whole"] = WHOLE

    assert training.steps([1.0] * 30) == ["whole"] * 30


def test_it_opens_up_when_steps_get_longer() -> None:
    """Within a few steps, however rarely phases were measured."""
    training = Training()
    training.steps([0.001] * 500)
    thinned = training.every
    training.steps([0.5] * (RECENT + 1))

    assert thinned == RARITIES[-1]
    assert training.every == 1
    assert training.steps([0.5] * 20) == ["whole"] * 20


def test_steps_of_ten_microseconds_are_measured_as_little_as_can_be() -> None:
    """What that takes is said, and no promise is made."""
    training = Training()
    made = training.steps([1e-5] * 1000)[-64:]

    assert made.count("bare") == 63
    assert training.polling.limited.startswith("phases and parts on every 64th step; ")
    assert "below 1 %" not in training.polling.limited


def test_steps_that_take_no_time_are_no_reason_to_fail() -> None:
    """A clock may stand still."""
    training = Training()

    assert training.steps([0.0] * 100) == ["whole"] * 100


def test_without_steps_nothing_is_said() -> None:
    """A watch of anything else has nothing of it."""
    assert Training().polling.limited == ""
    assert Polling().limited == ""


def test_all_means_all() -> None:
    """With `phases="all"` every step has them, whatever that takes."""
    training = Training(wants_all=True)

    assert training.steps([1e-4] * 200) == ["whole"] * 200
    assert training.polling.limited == ""


def test_afterwards_it_is_said_on_how_many_steps_there_were_phases() -> None:
    """A figure that lacks some must not pass for one of all."""
    training = Training()
    made = training.steps([0.06] * 400)
    training.governor.stops()

    assert training.polling.limited == (
        f"phases on {made.count('whole')} of 400 steps, to stay below 1 %"
    )


def test_a_group_of_steps_has_no_phases() -> None:
    """It counts for all of its steps."""
    training = Training()
    training.steps([1.0])
    training.governor.ended({"first": 1.0, "step": 99.0}, is_group=True)

    assert training.polling.limited == "phases on 1 of 100 steps, to stay below 1 %"


def test_what_the_poller_does_later_counts() -> None:
    """It takes the interpreter from the training as well."""
    training = Training()
    training.cost = dict.fromkeys(training.cost, 0.0)
    training.deferred.entered(10, 10 * 2e-4)
    for _ in range(100):
        training.steps([0.06])
        training.governor.edges += 7 if training.governor.how == "whole" else 2

    assert training.every > 1


def test_what_no_clock_sees_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways into our code, and hooks, in guards of an event: 0.6 ms of a step of 60 ms."""
    training = Training()
    training.cost = dict.fromkeys(training.cost, 0.0)
    monkeypatch.setattr(governor, "seconds_of_an_event", lambda: 1e-4)
    training.steps([0.06] * 100)

    assert training.polling.share == pytest.approx(0.01)


def test_ticks_are_told_and_decide_nothing() -> None:
    """Less measuring would make them no cheaper."""
    training = Training()
    training.deferred.ticked(2e-3, 0.1)
    training.steps([1.0] * 100)

    assert training.every == 1
    assert training.polling.share == pytest.approx(0.02 + WHOLE)


def test_what_ticks_take_of_the_time_follows_their_pace() -> None:
    """Five times as seldom, the same tick takes a fifth, at once."""
    deferred = Deferred()
    deferred.ticked(2e-3, 0.1)
    deferred.ticked(2e-3, 0.5)

    assert deferred.ticks == pytest.approx(0.004)


def test_the_pollers_work_fades() -> None:
    """An expensive tick of long ago counts for little."""
    deferred = Deferred()
    deferred.entered(1, 1.0)
    for _ in range(200):
        deferred.entered(5, 5e-4)

    assert deferred.per_edge == pytest.approx(1e-4, rel=0.01)
    assert Deferred().per_edge == 0.0


@pytest.mark.parametrize("every", RARITIES)
def test_the_steps_are_those_whose_number_divides(every: int) -> None:
    """All ranks measure the same ones, whenever each began to."""
    training = Training()
    training.governor._ration = Ration(every)
    made = training.steps([0.0] * 3 * every)

    assert [number for number, how in enumerate(made[1:], 2) if how == "whole"] == [
        number for number in range(2, 3 * every + 1) if number % every == 0
    ]


def test_numbers_may_be_missing_or_begin_anew() -> None:
    """Groups of steps lie between, or a second attempt is made: phases are measured all the same."""
    training = Training()
    training.governor._ration = Ration(8)
    seen = []
    for number in (1, 5, 13, 14, 27, 1, 2, 9):
        training.governor.begins(number, training.now)
        seen.append(training.governor.how == "whole")

    assert seen == [True, False, True, False, True, True, False, True]


@given(st.sampled_from(RATIONS), st.floats(1e-6, 1e3))
def test_a_decision_is_stable(now: Ration, length: float) -> None:
    """At the same costs the next decision is the same, so nothing goes back and forth."""
    decided = decide(now, costs(length))

    assert decide(decided, costs(length)) == decided


@given(st.floats(1e-6, 1e3), st.floats(0.9, 1.1))
def test_a_tenth_more_or_less_changes_nothing_back(length: float, factor: float) -> None:
    """What was thinned out for a cost is not opened again because that varies by a tenth."""
    thinned = decide(Ration(), costs(length))
    varied = decide(thinned, costs(length * factor))

    assert RATIONS.index(varied) >= RATIONS.index(thinned)


@given(st.sampled_from(RATIONS), st.floats(1e-6, 1e3))
def test_a_decision_keeps_the_limit_where_that_can_be_kept(now: Ration, length: float) -> None:
    """And measures the least where it cannot."""
    decided = decide(now, costs(length))

    assert costs(length).share(decided) <= MOST_SHARE or decided == RATIONS[-1]


def test_what_is_not_known_decides_nothing() -> None:
    """No step has ended, or none took time."""
    assert decide(Ration(4), Costs(math.nan, WHOLE)) == Ration(4)
    assert decide(Ration(4), Costs(0.0, WHOLE)) == Ration(4)
