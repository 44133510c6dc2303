"""Where measuring costs too much, neighbouring steps share one exact peak; all else stays as it was."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.drivers.training import loop as following
from hfmem_widget.drivers.training import run as running
from hfmem_widget.drivers.training.loop import end_loop, in_group, resume_steps, yield_steps
from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.guard import is_deferring
from hfmem_widget.monitor import grouping
from hfmem_widget.session import Peak
from hfmem_widget.session.steps import size_of
from tests.fakes.training import KEY, PAGE, Training, of_kind

TraceFunction = Callable[[FrameType, str, Any], Any]


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the guard take as long as on an idle machine: how groups end depends on it."""
    for module in (grouping, running):
        monkeypatch.setattr(module, "seconds_of_an_event", lambda: 1e-5)


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
    st.tuples(st.sampled_from(PAUSES), st.lists(st.sampled_from(ACTIONS), max_size=6)), max_size=12
)


def script_of(steps: list[tuple[float, list[str]]]) -> list[str]:
    """Return whole steps of some length, with other things in the middle of them."""
    actions = []
    for at, (seconds, between) in enumerate(steps):
        actions += ["step", "forward", f"alloc {1 + at % 7}", "backward", *between, "free"]
        actions += ["backward_ended", "optimizer", f"alloc {1 + at % 5}", "optimizer_ended"]
        actions += [f"wait {seconds}", "step_ended", "free"]
    return actions


def trained(count: int, seconds: float, **options: Any) -> Training:
    """Return a training after some steps of so many seconds."""
    training = Training(**options)
    for _ in range(count):
        training.one_step(seconds)
    return training


def test_a_watch_that_ends_within_a_training_has_all_its_steps() -> None:
    """The steps of an open group count when its watch ends."""
    training = Training()
    yield_steps(training.run)
    training.short_steps()
    for _ in range(10):
        training.one_step(1e-4)
    end_loop(training.session, "interrupted")
    training.bench.monitor.end(training.session)
    steps = of_kind(training.session, "step")

    assert sum(size_of(step.counts) for step in steps) == training.number
    assert training.session.steps.count == training.number


@settings(max_examples=25)
@given(WHOLE_STEPS, st.booleans(), st.booleans())
def test_every_peak_is_that_of_the_trace(
    steps: list[tuple[float, list[str]]], accumulates: bool, each: bool
) -> None:
    """Every peak is exact, however steps, allocations, evaluations, spans by hand and ticks interleave."""
    training = Training(accumulates=accumulates, steps="each" if each else "auto")
    # Short ones before: these share spans, so what follows meets all there is.
    for action in script_of([(1e-4, [])] * 12 + steps):
        training.act(action)
    session = training.ends()
    step_spans = of_kind(session, "step")
    numbers = [
        (step.counts.get("first", step.counts["step"]), step.counts["step"]) for step in step_spans
    ]

    for span in session.spans:
        assert span.peaks[KEY] == Peak(training.replayed(span), "exact"), span
    assert [first for first, _ in numbers] == [1, *(last + 1 for _, last in numbers[:-1])]
    assert numbers[-1][1] == training.number
    assert not each or all(first == last for first, last in numbers)


def test_short_steps_share_spans() -> None:
    """Some short steps are measured alone; the run says on how many, and for how many a peak stands."""
    session = trained(1000, 1e-3).ends()
    steps = of_kind(session, "step")
    with_phases = {one.parent for one in of_kind(session, "forward")}
    alone = [step for step in steps if "first" not in step.counts]
    polling = session.polling

    assert with_phases == {step.id for step in alone}
    assert 10 <= len(alone) < 200
    assert polling.steps == 1000
    assert polling.steps_with_phases == len(alone)
    assert polling.groups == len(steps) - len(alone)
    assert polling.limited.startswith(f"phases on {len(alone)} of 1,000 steps, one peak for")
    assert all(step.counts["tokens"] == 16.0 * size_of(step.counts) for step in steps)


def test_what_each_step_of_a_group_takes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run says that it stays below 1 % only where hooks and callbacks in every step allow it."""
    monkeypatch.setattr(grouping, "ALLOWANCE", 0.0)
    limited = []
    for seconds in (0.0, 1e-4):
        monkeypatch.setattr(running, "seconds_of_an_event", lambda seconds=seconds: seconds)
        limited.append(trained(2000, 1e-2).ends().polling.limited)

    assert "to stay below 1 %" in limited[0]
    assert "measuring takes" in limited[1]


def test_groups_of_ranks_end_at_the_same_steps() -> None:
    """Groups of ranks mostly end at the same steps, though measuring takes more in one rank."""
    ends = []
    for seconds, reading_seconds in ((5e-3, 1e-4), (5.1e-3, 1.1e-4), (5e-3, 1.2e-4)):
        session = trained(2000, seconds, of_a_reading=reading_seconds).ends()
        ends.append({step.counts["step"] for step in of_kind(session, "step")})

    assert len(set.intersection(*ends)) > 0.5 * max(map(len, ends))


def test_each_step_has_its_peak_where_that_is_wanted() -> None:
    """With `steps="each"` each step has a peak, and some have phases."""
    session = trained(200, 1e-3, steps="each").ends()

    assert len(of_kind(session, "step")) == 200
    assert 1 <= len(of_kind(session, "forward")) < 100
    assert "at a time" not in session.polling.limited


def test_long_steps_share_no_span_for_longer_than_pays() -> None:
    """A group is as short as measuring phases on some steps allows."""
    steps = of_kind(trained(300, 0.06).ends(), "step")

    assert 60 < len(steps) < 300
    assert max(size_of(step.counts) for step in steps) <= 1.5 / 0.06 + 1


def test_long_steps_have_spans_of_their_own() -> None:
    """Long steps have their own spans, and some have phases, where there is no time for all."""
    training = Training()
    training.one_step(0.2)
    for _ in range(400):
        training.run.grouping.spend(1.0)
        training.one_step(0.2)
    session = training.ends()

    assert len(of_kind(session, "step")) == 401
    assert 401 / 51 <= len(of_kind(session, "forward")) < 20
    assert "at a time" not in session.polling.limited


@pytest.mark.parametrize("action", ["evaluate 17", "log", "epoch", "block 17"])
def test_what_lies_between_steps_is_in_no_group(action: str) -> None:
    """An evaluation, a log of peaks, the end of an epoch and a block end the group that goes on."""
    training = Training()
    training.run.epoch_begins("epoch 1")
    training.short_steps()
    training.act(action)
    training.one_step(1e-4)
    last, newest = of_kind(training.ends(), "step")[-2:]

    assert last.counts["step"] == training.number - 1
    assert newest.counts.get("first", training.number) == training.number
    assert last.peaks[KEY].value < 17 * PAGE


def test_an_error_in_a_group_is_that_of_its_newest_step() -> None:
    """A group's outcome is the error, with the newest step's number and all tokens."""
    training = Training()
    training.short_steps()
    training.step()
    training.forward()
    training.run.ended("raised ValueError")
    failed = of_kind(training.ends(), "step")[-1]

    assert failed.outcome == "raised ValueError"
    assert failed.counts["step"] == training.number
    assert failed.counts["tokens"] == 16.0 * size_of(failed.counts)


@pytest.mark.parametrize("method", ["step", "step_ended"])
def test_an_interrupt_leaves_no_half_of_an_edge(method: str) -> None:
    """An interrupt at any line of a step's begin or end leaves all peaks exact."""
    for begins in (0, 12):
        lines = 0
        while True:
            training = trained(begins, 0.02)
            if method == "step_ended":
                training.step()
            training.wait(0.3)
            was_interrupted = interrupted_at(lines, getattr(training, method))
            training.comes_and_goes(50)
            training.run.ended("interrupted")
            session = training.ends()

            assert not session.broken_off
            for span in session.spans:
                assert span.peaks[KEY] == Peak(training.replayed(span), "exact"), (lines, span)
            if not was_interrupted:
                break
            lines += 1
        assert lines > 3


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


@pytest.mark.parametrize(("phases", "seconds"), [("auto", 5.0), ("all", 0.0)])
def test_long_steps_have_all_their_phases(phases: Any, seconds: float) -> None:
    """Where measuring is cheap, or all phases are wanted, nothing is left out, and nothing is said."""
    session = trained(100, seconds, phases=phases).ends()

    assert len(of_kind(session, "optimizer")) == len(of_kind(session, "forward")) == 100
    assert session.polling.limited == ""


def test_phases_come_back_when_steps_get_longer() -> None:
    """Longer steps have phases again, and the session still says on how many steps there were any."""
    training = trained(60, 1e-4)
    for _ in range(30):
        training.one_step(5.0)
    session = training.session
    newest = [span.id for span in of_kind(session, "step")[-10:]]

    assert {span.parent for span in of_kind(session, "backward")} >= set(newest)
    assert "of 90 steps" in session.polling.limited


def test_spans_by_hand_stay_in_a_group() -> None:
    """Spans by hand in a group have exact peaks."""
    training = Training()
    training.short_steps()
    training.act("step")
    training.act("by_hand 40")
    training.act("step_ended")
    mine = next(span for span in training.session.spans if span.label == "mine")

    assert training.run.in_group
    assert mine.peaks[KEY] == Peak(PAGE * 41, "exact")


def test_a_block_within_a_step_of_a_group_is_in_it() -> None:
    """A block within a step does not end the group, and no step is lost."""
    training = Training()
    training.short_steps()
    first = training.number
    for action in ("step", "forward", "block 40", "step_ended"):
        training.act(action)
    training.one_step(1e-4)
    group = of_kind(training.ends(), "step")[-1]

    assert group.counts["first"] <= first
    assert group.counts["step"] == training.number
    assert group.peaks[KEY].value == PAGE * 41


def test_what_a_group_held_is_counted_afterwards() -> None:
    """Counting rests in a group, and goes on once it has ended, however it did."""
    training = Training()
    training.short_steps()
    attribution = training.bench.monitor.attribution

    assert attribution.rests
    training.run.ended("raised ValueError")
    assert not attribution.rests


@pytest.mark.parametrize("ends", [TrainingRun.ended, resume_steps])
def test_torchs_events_are_not_in_a_trainers_groups(ends: Callable[[TrainingRun], None]) -> None:
    """Its callbacks tell of its steps; after the group or its watch, loops need the events again."""
    loop, training = Training(), Training()
    loop.short_steps()
    assert not in_group()
    yield_steps(training.run)
    training.short_steps()

    assert (in_group(), following.step_counter.count(None)) == (True, False)
    ends(training.run)
    assert not in_group()


def test_without_a_counter_a_group_is_read_before_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a counter a group's peak is a sample at a backward pass, where activations are highest."""
    training = Training()
    monkeypatch.setattr(training.bench.allocator, "devices", lambda: range(0))
    yield_steps(training.run)
    training.short_steps()
    training.act("step")
    was_quiet = in_group()
    training.bench.clock.advance(1.0)
    training.bench.host.values[0] = 777.0
    training.act("backward")
    training.bench.clock.advance(1.0)
    training.bench.host.values[0] = 10.0
    training.act("step_ended")
    training.run.ended()
    step = of_kind(training.session, "step")[-1]

    assert not was_quiet
    assert step.peaks["cpu/allocated"] == Peak(777.0, "sampled")


def test_a_group_whose_watch_has_ended_rests_no_more() -> None:
    """A loop whose watch has ended no longer keeps others on its thread from being followed."""
    ended = Training()
    ended.ends()
    loop = following.Loop(ended.bench.monitor, ended.session)
    following.step_counter.begin(loop, usual=1)

    assert not in_group()


def test_the_highest_group_says_nothing_of_a_phase_it_was_not_measured_in() -> None:
    """Phases say the highest of the steps on which they were measured, and on how many that was."""
    training = Training()
    training.short_steps()
    training.one_step(1e-4, pages=1000)
    session = training.ends()
    phases = {phase.kind: phase for phase in session.phases(session.spans[0].id)}
    highest = max(session.steps, key=lambda group: group.devices["cuda:0"].peak)

    assert highest.last == training.number
    assert highest.devices["cuda:0"].phases == {}
    assert highest.devices["cuda:0"].worst == 0
    assert phases["step"].highest[KEY].counts["step"] == training.number
    assert phases["backward"].highest[KEY].peaks[KEY].value < 1000 * PAGE
    assert phases["backward"].steps == phases["backward"].count < phases["step"].count


@pytest.mark.parametrize("accumulates", [False, True])
def test_how_many_steps_had_phases_is_kept(accumulates: bool) -> None:
    """A step of several batches counts once among the steps with phases."""
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
