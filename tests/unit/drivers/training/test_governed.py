"""Where measuring costs too much, some steps go by without their phases; all else stays as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.drivers.training import loop as following
from hfmem_widget.drivers.training.loop import rests, resume_steps, wakes, yield_steps
from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.guard import is_deferring
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Peak, Session, Span
from hfmem_widget.session.model import same
from tests.unit.monitor.conftest import Bench

KEY = "cuda:0/allocated"
PAGE = 512
OF_A_READING = 1e-4
"""Seconds that pass from one look at the clock to the next: an event takes as much."""

SHAPE = {"samples": 2.0, "longest": 8.0, "tokens": 16.0}

Phases = Literal["auto", "all"]
TraceFunction = Callable[[FrameType, str, Any], Any]


@dataclass
class Training:
    """A training on a fake GPU, on a clock that goes on whenever it is looked at."""

    phases: Phases = "auto"
    accumulates: bool = False
    bench: Bench = field(default_factory=Bench)
    blocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench.allocator.alloc(PAGE)
        monitor = self.bench.monitor
        self.session: Session = monitor.begin(WatchOptions(interval=60.0, phases=self.phases))
        monitor.open_span(self.session, "cell")
        self.run = TrainingRun(
            monitor, self.session, accumulates=self.accumulates, clock=self.clock
        )
        self.run.train_begins("train", {})
        self.number = 0

    def clock(self) -> float:
        self.bench.clock.advance(OF_A_READING)
        return self.bench.clock()

    def act(self, action: str) -> None:
        """Do something that a step, or what lies between two, consists of."""
        name, *figure = action.split()
        getattr(self, name)(*map(float, figure))

    def step(self) -> None:
        self.number += 1
        self.run.step_begins(self.number)

    def forward(self) -> None:
        self.run.forward_begins(SHAPE)
        self.run.forward_ended()

    def backward(self) -> None:
        self.run.backward_begins()

    def backward_ended(self) -> None:
        self.run.backward_ended("done")

    def optimizer(self) -> None:
        self.run.optimizer_begins()

    def optimizer_ended(self) -> None:
        self.run.optimizer_ended()

    def step_ended(self) -> None:
        self.run.step_ended()

    def alloc(self, pages: float) -> None:
        self.blocks.append(self.bench.allocator.alloc(PAGE * int(pages)))

    def free(self) -> None:
        if self.blocks:
            self.bench.allocator.free(self.blocks.pop(0))

    def comes_and_goes(self, pages: float) -> None:
        self.alloc(pages)
        self.bench.allocator.free(self.blocks.pop())

    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    def tick(self) -> None:
        self.bench.tickers[0].step()

    def look(self) -> None:
        assert self.session.spans

    def reset(self) -> None:
        self.bench.allocator.user_reset(0)

    def evaluate(self, pages: float) -> None:
        with self.run.aside("evaluate", "evaluate"):
            self.comes_and_goes(pages)

    def by_hand(self, pages: float) -> None:
        with self.bench.monitor.span(self.session, "forward", "mine"):
            self.comes_and_goes(pages)

    def one_step(self, seconds: float, pages: int = 3) -> None:
        """Make a step that rises by some pages in its backward pass."""
        for action in (
            *("step", "forward", "backward", f"alloc {pages}", "free", "backward_ended"),
            *("optimizer", "optimizer_ended", f"wait {seconds}", "step_ended"),
        ):
            self.act(action)

    def ends(self) -> Session:
        """End it all."""
        self.run.ended()
        self.bench.monitor.end(self.session)
        return self.session


def known(session: Session) -> list[tuple[str, str, Peak]]:
    """Return the peaks of all that is no phase of a step, in order."""
    return [
        (span.kind, span.label, span.peaks[KEY])
        for span in session.spans
        if span.kind in {"cell", "train", "step", "evaluate"} or span.label == "mine"
    ]


def of_kind(session: Session, kind: str) -> list[Span]:
    return [span for span in session.spans if span.kind == kind]


PAUSES = [0.0, 1e-4, 0.01, 0.3, 5.0, 60.0]
ACTIONS = [
    *["step", "forward", "backward", "backward_ended", "optimizer", "optimizer_ended"] * 4,
    *["step_ended"] * 6,
    *[f"alloc {pages}" for pages in (1, 2, 5, 11, 23)] * 2,
    *["free"] * 8,
    *["tick", "look", "reset", "evaluate 17", "by_hand 13"],
    *[f"wait {seconds}" for seconds in PAUSES],
]
WHOLE_STEPS = st.lists(
    st.tuples(st.sampled_from(PAUSES), st.lists(st.sampled_from(ACTIONS), max_size=6)),
    max_size=12,
)


def script_of(steps: list[tuple[float, list[str]]]) -> list[str]:
    """Return whole steps of some length, with other things in the middle of them."""
    made = []
    for at, (seconds, between) in enumerate(steps):
        made += ["step", "forward", f"alloc {1 + at % 7}", "backward", *between, "free"]
        made += ["backward_ended", "optimizer", f"alloc {1 + at % 5}", "optimizer_ended"]
        made += [f"wait {seconds}", "step_ended", "free"]
    return made


@settings(max_examples=25)
@given(WHOLE_STEPS, st.booleans())
def test_no_peak_of_a_step_depends_on_whether_its_phases_are_measured(
    steps: list[tuple[float, list[str]]], accumulates: bool
) -> None:
    """However steps of any length, allocations, evaluations, spans by hand and the poller interleave."""
    governed, whole = Training("auto", accumulates), Training("all", accumulates)
    # Short ones before: these are thinned out, so what follows meets all there is.
    script = script_of([(1e-4, [])] * 12 + steps)
    for action in script:
        governed.act(action)
        whole.act(action)
    governed.ends()
    whole.ends()

    assert known(governed.session) == known(whole.session)
    assert all(peak.certainty == "exact" for *_, peak in known(governed.session))
    assert [group.devices["cuda:0"].peak for group in governed.session.steps] == [
        group.devices["cuda:0"].peak for group in whole.session.steps
    ]
    assert same(
        [group.tokens for group in governed.session.steps],
        [group.tokens for group in whole.session.steps],
    )


def test_short_steps_go_by_without_their_phases() -> None:
    """Some have them, each has its peak, and the run says on how many."""
    training = Training()
    training.bench.monitor._deferred.entered(1, 2e-3)
    for _ in range(100):
        training.one_step(0.8)
    now = training.session.polling.limited
    session = training.ends()
    steps, with_phases = (
        of_kind(session, "step"),
        {one.parent for one in of_kind(session, "forward")},
    )

    assert len(steps) == 100
    assert 1 <= len(with_phases) < 50
    assert now.startswith("phases on every ")
    assert session.polling.limited == (
        f"phases on {len(with_phases)} of 100 steps, to stay below 1 %"
    )


def test_a_step_without_phases_resets_the_counter_once() -> None:
    """At its beginning: its end is a reading, and that is all that it leaves to the poller, too."""
    training = Training()
    resets: dict[str, set[int]] = {}
    for _ in range(100):
        before = training.bench.allocator.resets
        training.one_step(1e-4)
        made = training.bench.allocator.resets - before
        resets.setdefault(training.run.governor.how, set()).add(made)

    assert resets == {"whole": {4}, "bare": {1}}


def test_an_interrupt_leaves_no_half_of_an_end() -> None:
    """Wherever in the end of a step without phases it comes: the step ends once, with its exact peak."""
    lines = 0
    while True:
        training = Training()
        while training.run.governor.how != "bare":
            training.one_step(1e-4)
        training.step()
        training.comes_and_goes(50)
        assert training.run.governor.how == "bare"
        came = interrupted_at(lines, training.run.step_ended)
        training.run.ended("interrupted")
        session = training.ends()
        steps = [span for span in session.spans if span.counts.get("step") == training.number]

        assert [span.peaks[KEY] for span in steps] == [Peak(51 * PAGE, "exact")], lines
        assert steps[0].outcome in {"done", "interrupted"}
        assert not session.broken_off
        if not came:
            break
        lines += 1
    assert lines > 20


def test_an_interrupt_leaves_no_half_of_a_begin() -> None:
    """Wherever in the begin of a step without phases it comes: all peaks stay exact, those around it too."""
    lines = 0
    while True:
        training = Training()
        training.comes_and_goes(80)
        while training.run.governor.how != "bare":
            training.one_step(1e-4)
        came = interrupted_at(lines, training.step)
        training.comes_and_goes(50)
        training.run.ended("interrupted")
        session = training.ends()
        peaks = {(span.kind, span.peaks[KEY]) for span in session.spans if span.kind != "step"}
        newest = [span for span in session.spans if span.counts.get("step") == training.number]

        assert ("cell", Peak(81 * PAGE, "exact")) in peaks, lines
        assert all(peak.certainty == "exact" for _, peak in peaks), lines
        assert [span.peaks[KEY] for span in newest] in ([], [Peak(51 * PAGE, "exact")]), lines
        assert not session.broken_off
        if not came:
            break
        lines += 1
    assert lines > 20


def interrupted_at(line: int, action: Callable[[], None]) -> bool:
    """Do something with an interrupt after so many lines; return whether it came to that many."""
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal left
        is_ours = "hfmem_widget" in frame.f_code.co_filename
        if event == "line" and is_ours and not is_deferring():
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(usual)
    return False


def test_long_steps_have_all_their_phases() -> None:
    """Where measuring is cheap nothing is left out, and nothing is said."""
    training = Training()
    for _ in range(30):
        training.one_step(5.0)
    session = training.ends()

    assert len(of_kind(session, "optimizer")) == 30
    assert session.polling.limited == ""


def test_phases_come_back_when_steps_get_longer() -> None:
    """And nothing is said any more of now, but of what there was."""
    training = Training()
    for _ in range(60):
        training.one_step(1e-4)
    for _ in range(30):
        training.one_step(5.0)
    session = training.session
    newest = [span.id for span in of_kind(session, "step")[-10:]]

    assert {span.parent for span in of_kind(session, "backward")} >= set(newest)
    assert "of 90 steps" in session.polling.limited


def test_with_all_phases_wanted_nothing_is_left_out() -> None:
    """Whatever it costs."""
    training = Training("all")
    for _ in range(100):
        training.one_step(0.0)
    session = training.ends()

    assert len(of_kind(session, "forward")) == 100
    assert session.polling.limited == ""


def test_spans_by_hand_stay_in_a_step_without_phases() -> None:
    """They were asked for, and are exact."""
    training = Training()
    for _ in range(50):
        training.one_step(1e-4)
    training.act("step")
    training.act("by_hand 40")
    training.act("step_ended")
    mine = next(span for span in training.session.spans if span.label == "mine")

    assert training.run.governor.how != "whole"
    assert mine.peaks[KEY] == Peak(PAGE * 41, "exact")


def test_what_steps_without_phases_held_is_counted_afterwards() -> None:
    """Nothing rests once the step has ended, however it did."""
    training = Training()
    for _ in range(50):
        training.one_step(1e-4)
    training.act("step")
    training.bench.monitor.attribution.rests = True
    training.run.ended("raised ValueError")

    assert not training.bench.monitor.attribution.rests


@pytest.mark.parametrize("ends", ["step_ended", "ended"])
def test_events_are_left_out_where_somebody_else_tells_the_steps(ends: str) -> None:
    """Of a step of a Trainer's without phases, torch's own events are not passed on until it ends."""
    training = Training()
    yield_steps(training.run)
    seen = []
    for _ in range(100):
        training.act("step")
        seen.append((training.run.governor.how, rests()))
        training.act("wait 0.0001")
        training.act("step_ended")
        assert not rests()
    training.act("step")
    was_quiet = rests()
    getattr(training.run, ends)()

    assert set(seen) == {("whole", False), ("bare", True)}
    assert (was_quiet, rests(), wakes()) == (True, False, False)


def test_without_a_counter_a_step_is_read_where_its_backward_pass_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its peak is the highest sample, and the activations are highest there."""
    training = Training()
    monkeypatch.setattr(training.bench.allocator, "devices", lambda: range(0))
    yield_steps(training.run)
    for _ in range(50):
        training.one_step(1e-4)
    training.act("step")
    was_quiet = rests()
    training.bench.clock.advance(1.0)
    training.bench.host.values[0] = 777.0
    training.act("backward")
    training.bench.clock.advance(1.0)
    training.bench.host.values[0] = 10.0
    training.act("step_ended")
    step = of_kind(training.session, "step")[-1]

    assert (training.run.governor.how, was_quiet) == ("bare", False)
    assert step.peaks["cpu/allocated"] == Peak(777.0, "sampled")


def test_a_loops_own_events_are_always_needed() -> None:
    """By them its steps are told."""
    training = Training()
    for _ in range(50):
        training.one_step(1e-4)
    training.act("step")

    assert training.run.governor.how == "bare"
    assert not rests()


def test_a_group_whose_watch_has_ended_rests_no_more() -> None:
    """Whatever has kept its loop from ending it: else nothing would be followed on this thread again."""
    ended = Training()
    ended.ends()
    loop = following.Loop(ended.bench.monitor, ended.session)
    following.rest.begin(loop, until=1e9, optimizers_per_step=1)

    assert not rests()


def test_a_training_that_is_left_in_a_step_leaves_nothing_quiet() -> None:
    """Its class has a `train` of its own, which told nothing of an error: the watch ends what is left."""
    training = Training()
    yield_steps(training.run)
    for _ in range(50):
        training.one_step(1e-4)
    training.act("step")
    resume_steps(training.run)

    assert not rests()


def test_the_highest_step_says_nothing_of_a_phase_it_was_not_measured_in() -> None:
    """Phases say the highest of the steps on which they were measured, and on how many that was."""
    training = Training()
    for _ in range(50):
        training.one_step(1e-4)
    training.one_step(1e-4, pages=1000)
    assert training.run.governor.how != "whole"
    session = training.ends()
    phases = {phase.kind: phase for phase in session.phases(session.spans[0].id)}
    highest = max(session.steps, key=lambda group: group.devices["cuda:0"].peak)

    assert highest.first == 51
    assert highest.devices["cuda:0"].phases == {}
    assert phases["step"].highest[KEY].counts["step"] == 51
    assert phases["backward"].highest[KEY].peaks[KEY].value < 1000 * PAGE
    assert phases["backward"].steps == phases["backward"].count < phases["step"].count


@pytest.mark.parametrize("accumulates", [False, True])
def test_how_many_steps_had_phases_is_kept(accumulates: bool) -> None:
    """A step of several batches counts once."""
    training = Training("all", accumulates)
    for _ in range(5):
        for action in ("step", *["forward", "backward", "backward_ended"] * 3, "optimizer"):
            training.act(action)
        training.act("step_ended")
    session = training.ends()

    assert {phase.kind: phase.steps for phase in session.phases(session.spans[0].id)} == {
        "cell": 0,
        "train": 0,
        "step": 5,
        "forward": 5,
        "backward": 5,
        "optimizer": 5,
        **({"substep": 5} if accumulates else {}),
    }
