"""The anatomy at a moment: which reading it is taken from, and what it admits not to know."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.analysis.anatomy import anatomy, devices_with_parts, end_of, peak_of
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.errors import OptionError
from hfmem_widget.session import (
    Device,
    DeviceSteps,
    Peak,
    Recorder,
    Sample,
    Series,
    Session,
    StepGroup,
)
from hfmem_widget.text import GIB, MIB
from tests.data.parted import NAN, Script, training
from tests.scenes import SCRIPTED_RUNS, scripted_run

WEIGHTS, STATES, GRADIENTS = 1.25 * GIB, 2.5 * GIB, 1.25 * GIB


def in_a_step(script: Script, **values: float) -> None:
    """Read a device that has weights, within a step that began with 1 MiB unexplained."""
    script.read(reserved=20 * GIB, requested=NAN, weights=GIB, unattributed=MIB, **values)


def test_now_is_the_newest_reading() -> None:
    """The anatomy of now is taken from the last sample, and says that it was sampled."""
    script = Script()
    script.read(allocated=3 * GIB, reserved=4 * GIB, weights=2 * GIB, context=GIB, others=0.0)
    now = anatomy(script.session)
    assert (now.moment, now.time, now.certainty) == ("now", 0.1, "sampled")
    assert (now.allocated, now.reserved, now.process) == (3 * GIB, 4 * GIB, 5 * GIB)
    assert (now.bytes("weights"), now.bytes("unattributed")) == (2 * GIB, GIB)


def test_the_newest_reading_of_a_finished_session_is_its_end() -> None:
    """Once a session is over, its last sample is called the end."""
    session = training()
    assert anatomy(session).moment == "at the end"
    assert anatomy(session).bytes("optimizer") == STATES


def test_the_peak_is_that_of_the_innermost_span_that_has_it() -> None:
    """Of cell, training, step and backward it is the backward: only there its parts are known."""
    session = training()
    backward = max(
        (span for span in session.spans if span.kind == "backward"),
        key=lambda span: span.peaks["cuda:0/allocated"].value,
    )
    peak = anatomy(session, "peak")
    assert (peak.time, peak.moment, peak.certainty) == (backward.start, "at the peak", "exact")
    assert peak.allocated == session.peak("cuda:0/allocated")
    assert (peak.bytes("weights"), peak.bytes("optimizer")) == (WEIGHTS, STATES)


def test_gradients_made_in_a_backward_are_held_only_as_far_as_they_were_there_before_it() -> None:
    """The rest may have been activations at that instant, and a note says how much."""
    script = Script()
    in_a_step(script, allocated=5 * GIB, gradients=0.25 * GIB)
    with script.span("backward", peak=9 * GIB, gradients=GIB):
        pass
    peak = anatomy(script.session, "peak")
    assert peak.bytes("gradients") == 0.25 * GIB
    assert peak.bytes("activations") == 9 * GIB - 1.25 * GIB - MIB
    assert peak.notes == (
        "Up to 768.0 MiB of the activations are gradients that were being computed.",
    )


def test_gradients_that_were_not_known_before_a_backward_were_not_there() -> None:
    """The first backward of all: the column comes to be within it."""
    script = Script()
    in_a_step(script, allocated=5 * GIB)
    with script.span("backward", peak=9 * GIB, gradients=GIB):
        pass
    peak = anatomy(script.session, "peak")
    assert math.isnan(peak.bytes("gradients"))
    assert peak.notes == (
        "Up to 1.00 GiB of the activations are gradients that were being computed.",
    )


def test_the_first_optimizer_step_does_not_hold_the_states_it_makes() -> None:
    """States made in a step are its temporaries at the peak, and a note says how much."""
    script = Script()
    in_a_step(script, allocated=5 * GIB, gradients=GIB)
    with script.span("optimizer", peak=9 * GIB, optimizer=2 * GIB):
        pass
    peak = anatomy(script.session, "peak")
    assert math.isnan(peak.bytes("optimizer"))
    assert peak.bytes("gradients") == GIB
    assert peak.notes == (
        "Up to 2.00 GiB of the temporaries are optimizer states that were being created.",
    )


def test_a_later_optimizer_step_holds_its_states_and_needs_no_note() -> None:
    """States that were there before a step are told as states at its peak."""
    script = Script()
    in_a_step(script, allocated=5 * GIB, gradients=GIB, optimizer=2 * GIB)
    with script.span("optimizer", peak=9 * GIB):
        pass
    peak = anatomy(script.session, "peak")
    assert (peak.bytes("optimizer"), peak.notes) == (2 * GIB, ())


def test_a_model_that_was_found_within_the_first_forward_was_there_before_it() -> None:
    """Weights first counted within a forward are weights at the peak of that forward."""
    script = Script()
    script.read(allocated=5 * GIB, reserved=20 * GIB, unattributed=MIB)
    with script.span("forward", peak=9 * GIB, weights=2 * GIB):
        pass
    assert anatomy(script.session, "peak").bytes("weights") == 2 * GIB


def test_a_peak_outside_of_phases_has_the_parts_of_its_highest_sample() -> None:
    """What the samples missed of it stands under activations, and a note says how much."""
    script = Script()
    with script.span("block", peak=9 * GIB):
        in_a_step(script, allocated=5 * GIB)
        in_a_step(script, allocated=8 * GIB, gradients=3 * GIB)
        in_a_step(script, allocated=6 * GIB)
    peak = anatomy(script.session, "peak")
    assert (peak.allocated, peak.certainty) == (9 * GIB, "exact")
    assert peak.time == pytest.approx(0.3)
    assert peak.bytes("gradients") == 3 * GIB
    assert peak.bytes("activations") == 5 * GIB - MIB
    assert peak.notes == (
        (
            "The parts are those of the highest sample, 1.00 GiB below the peak; the difference is "
            'counted as "activations and temporaries".'
        ),
    )


def test_outside_of_steps_what_the_samples_missed_is_not_attributed() -> None:
    """Between the highest sample and the exact peak nothing is called activations."""
    script = Script()
    with script.span("block", peak=9 * GIB):
        script.read(allocated=8 * GIB, reserved=9 * GIB, weights=2 * GIB)
    peak = anatomy(script.session, "peak")
    assert peak.bytes("unattributed") == 7 * GIB
    assert peak.notes[0].endswith('counted as "not attributed".')


def test_a_difference_too_small_to_show_is_not_told() -> None:
    """No note says that the highest sample is 0.00 MiB below the peak."""
    script = Script()
    with script.span("block", peak=8 * GIB + 512):
        script.read(allocated=8 * GIB, reserved=9 * GIB, weights=2 * GIB)

    assert anatomy(script.session, "peak").notes == ()


def test_a_span_that_is_still_open_has_the_peak_it_has_so_far() -> None:
    """While a cell runs, its anatomy is that of the exact peak up to now."""
    script = Script()
    with script.span("cell") as cell:
        script.read(allocated=2 * GIB, reserved=2 * GIB, weights=GIB)
        script.recorder.progress(cell.id, {"cuda:0/allocated": Peak(3 * GIB, "exact")})
        peak = anatomy(script.session, "peak")
    assert (peak.allocated, peak.certainty, peak.bytes("weights")) == (3 * GIB, "exact", GIB)


def test_without_any_span_the_peak_is_the_highest_sample() -> None:
    """A session without spans has a sampled peak, with that sample's parts."""
    script = Script()
    for allocated in (GIB, 3 * GIB, 2 * GIB):
        script.read(allocated=allocated, weights=allocated / 2)
    peak = anatomy(script.session, "peak")
    assert (peak.allocated, peak.certainty, peak.bytes("weights")) == (
        3 * GIB,
        "sampled",
        1.5 * GIB,
    )


def test_a_sample_above_every_span_is_the_peak() -> None:
    """What was highest outside of all spans is still the session's peak."""
    script = Script()
    script.read(allocated=5 * GIB, weights=GIB)
    with script.span("cell", allocated=2 * GIB):
        script.read(allocated=2 * GIB)
    assert anatomy(script.session, "peak").allocated == 5 * GIB


def test_what_the_allocator_took_up_to_the_peak_is_taken_from_what_was_free() -> None:
    """The driver's figure is older than the peak; nobody else got those bytes."""
    script = Script(total=40 * GIB)
    script.read(allocated=GIB, reserved=2 * GIB, device_used=5 * GIB, weights=GIB)
    with script.span("forward", peak=9 * GIB):
        pass
    peak = anatomy(script.session, "peak")
    assert (peak.reserved, peak.bytes("unexplained"), peak.bytes("free")) == (
        9 * GIB,
        3 * GIB,
        28 * GIB,
    )


def test_a_step_has_the_parts_of_its_own_peak() -> None:
    """An anatomy at a step's number is that of the step's exact peak."""
    session = training()
    step = next(span for span in session.spans if span.counts.get("step") == 4)
    told = anatomy(session, 4)
    assert (told.moment, told.allocated) == ("at step 4", step.peaks["cuda:0/allocated"].value)
    assert told.bytes("weights") == WEIGHTS
    assert anatomy(session, 1).allocated < told.allocated


def test_a_step_whose_spans_are_gone_is_the_worst_of_those_it_was_kept_with() -> None:
    """In a long run a step stands for its group, and the note says which step it is."""
    session = scripted_run("100,000 steps")
    group = next(one for one in session.steps if one.first <= 61_330 <= one.last)
    assert group.first < group.last
    worst = group.devices["cuda:0"]
    told = anatomy(session, 61_330, "cuda:0")
    assert (told.moment, told.allocated) == (f"at step {worst.worst}", worst.peak)
    assert told.notes[0] == (
        f"Steps {group.first} to {group.last} were merged; this is the worst of them, "
        f"step {worst.worst}."
    )


def test_of_two_trainings_a_step_is_the_newer_ones() -> None:
    """Both are counted from one."""
    script = Script()
    script.read(allocated=GIB)
    for parent, peak in ((1, 2 * GIB), (2, 3 * GIB)):
        device = DeviceSteps(peak, "exact", peak, 5, NAN, NAN, {})
        figures = dict.fromkeys(("samples", "longest", "tokens", "content_tokens"), NAN)
        group = StepGroup(
            parent=parent, first=5, last=5, start=0, stop=1, devices={"cuda:0": device}, **figures
        )
        script.session.steps.append(group)
    assert anatomy(script.session, 5).allocated == 3 * GIB


@pytest.mark.parametrize("at", [0, 7, -1, 10**9])
def test_a_step_that_was_never_made_is_refused_with_those_that_were(at: int) -> None:
    """The error for an unknown step gives the range of the known ones."""
    with pytest.raises(OptionError, match=rf"no step {at} on cuda:0; it has steps 1 to 6"):
        anatomy(training(), at)


def test_a_session_without_steps_says_that_it_has_none() -> None:
    """Asking for a step where nothing was trained is an error that says so."""
    script = Script()
    script.read(allocated=GIB)
    with pytest.raises(OptionError, match="no step 3 on cuda:0; it has none"):
        anatomy(script.session, 3)


@pytest.mark.parametrize("at", ["end", "Peak", True, 1.5, None])
def test_a_moment_that_there_is_not_is_refused_with_those_that_there_are(at: object) -> None:
    """The error for an unknown moment lists what `at` may be."""
    with pytest.raises(OptionError, match="at is 'now', 'peak' or the number of a step"):
        anatomy(training(), at)  # type: ignore[arg-type]  # what a person may type


def test_a_device_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    """The error for an unknown device lists the session's devices."""
    session = scripted_run("two gpus")
    with pytest.raises(OptionError, match=r"no device 'cuda:9'; available: cuda:0, cuda:1, cuda:2"):
        anatomy(session, device="cuda:9")


def test_a_session_that_has_read_nothing_says_so() -> None:
    """Without devices there is no anatomy, and the error says why."""
    with pytest.raises(OptionError, match="no samples yet"):
        anatomy(Session("nothing"))


def test_a_session_with_devices_and_no_reading_has_no_parts() -> None:
    """Before the first sample an anatomy is empty, and no error."""
    recorder = Recorder("new")
    session = recorder.session
    recorder.adopt([Device("cuda:0", "GPU", total=GIB)], [Series("cuda:0", "allocated")])
    assert anatomy(session).parts == ()
    assert anatomy(session, "peak").parts == ()


def test_the_device_is_the_one_on_which_most_was_allocated() -> None:
    """Unless told otherwise, the anatomy is that of the GPU in most use, not of the host."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt(
        [Device(key, key) for key in ("cuda:0", "cuda:1", "cpu")],
        [Series(key, "allocated") for key in ("cuda:0", "cuda:1", "cpu")],
    )
    recorder.append(Sample(0.0, (1.0, 2.0, 9.0)))
    assert anatomy(session).device.key == "cuda:1"


def test_the_device_is_the_host_where_no_other_is_used() -> None:
    """Where no GPU has allocated anything, the anatomy is that of the host."""
    assert anatomy(training(key="cpu")).device.key == "cpu"
    assert anatomy(scripted_run("idle gpu")).device.key == "cpu"


def test_the_hosts_peak_is_sampled_and_needs_no_context() -> None:
    """The host has no exact peak and no CUDA context: its process is its resident memory."""
    peak = anatomy(training(key="cpu", nvml=False), "peak")
    assert (peak.certainty, peak.bytes("weights")) == ("sampled", WEIGHTS)
    assert math.isnan(peak.bytes("context"))
    assert peak.process == peak.reserved


def test_without_nvml_the_process_is_not_guessed() -> None:
    """With no reading of the driver, neither the process nor what lies around it is told."""
    peak = anatomy(training(nvml=False), "peak")
    assert math.isnan(peak.process)
    assert {part.name for part in peak.parts} & {"context", "others", "driver", "free"} == set()


def test_weights_that_are_mapped_from_a_file_are_told_to_lie_outside_of_the_heap() -> None:
    """Where more was found than is allocated, a note says how much and why."""
    script = Script("cpu")
    script.read(allocated=GIB, reserved=4 * GIB, weights=3 * GIB)
    assert anatomy(script.session).notes == (
        ("2.00 GiB of these tensors is not allocated memory, such as weights mapped from a file."),
    )


def test_rows_that_were_folded_together_hold_what_was_there_all_the_time() -> None:
    """A row's highest gradients and its highest allocated need not be of one instant."""
    script = Script()
    for _ in range(5000):  # more than the timeline's rows
        script.read(allocated=9 * GIB, gradients=0.0, weights=GIB)
        script.read(allocated=4 * GIB, gradients=2 * GIB)
    peak = anatomy(script.session, "peak")
    assert script.session.timeline.bucket > 1
    assert math.isnan(peak.bytes("gradients"))
    assert peak.notes == (
        "Up to 2.00 GiB of the activations are gradients that were being computed.",
    )


def test_a_span_has_a_peak_and_an_end_of_its_own() -> None:
    """A session of several cells has one card for each."""
    script = Script()
    with script.span("cell", allocated=GIB) as first:
        script.read(allocated=7 * GIB, reserved=7 * GIB, weights=GIB)
    with script.span("cell"):
        script.read(allocated=9 * GIB, reserved=9 * GIB)
    first = script.session.span(first.id)
    assert peak_of(script.session, first, script.device).allocated == 7 * GIB
    assert end_of(script.session, first, script.device).allocated == GIB


def test_devices_on_which_nothing_was_found_have_no_parts() -> None:
    """A device counts as one with parts from the first model that is found on it."""
    script = Script()
    script.read(allocated=GIB)
    assert devices_with_parts(script.session) == ()
    script.read(weights=GIB)
    assert devices_with_parts(script.session) == (script.device,)


def test_a_model_that_is_gone_was_there() -> None:
    """What a function trained and let go of is told on the card of its cell."""
    script = Script()
    script.read(allocated=GIB, weights=GIB)
    script.read(allocated=0.0, weights=0.0)
    assert devices_with_parts(script.session) == (script.device,)


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
@pytest.mark.parametrize("at", ["now", "peak"])
def test_every_run_has_an_anatomy_on_every_device(name: str, at: str) -> None:
    """In all scripted runs the parts are positive and account for all that is allocated."""
    session = scripted_run(name)
    assert session.devices
    for device in session.devices:
        told = anatomy(session, at, device.key)
        parts = sum(told.bytes(one) for one in OF_ALLOCATED if told.bytes(one) > 0)
        assert not told.allocated > parts
        assert all(part.bytes > 0 for part in told.parts)


PHASES = st.sampled_from(["forward", "backward", "optimizer", "block", "step"])
HOLDINGS = st.fixed_dictionaries(
    {
        metric: st.integers(0, 4).map(lambda gib: gib * GIB) | st.just(NAN)
        for metric in ("weights", "gradients", "optimizer", "unattributed")
    }
)


@given(st.lists(st.tuples(PHASES, HOLDINGS, HOLDINGS, st.integers(1, 30)), min_size=1, max_size=6))
def test_a_peaks_parts_add_up_to_it(
    phases: list[tuple[str, dict[str, float], dict[str, float], int]],
) -> None:
    """Whatever came and went, unless more was found than was allocated; then a note says so."""
    script = Script()
    for kind, before, after, peak in phases:
        script.read(allocated=0.0, reserved=40 * GIB, requested=NAN, **before)
        with script.span(kind, peak=peak * GIB, **after):  # type: ignore[arg-type]  # one of them
            pass
    told = anatomy(script.session, "peak")
    parts = sum(told.bytes(one) for one in OF_ALLOCATED if told.bytes(one) > 0)
    beyond = any("not allocated memory" in note for note in told.notes)
    assert told.allocated == max(peak for *_, peak in phases) * GIB
    assert parts >= told.allocated
    assert (parts > told.allocated) == beyond


def test_a_peak_that_is_only_bounded_says_so() -> None:
    """A peak known as a lower bound has an anatomy that is "at least" as much."""
    session = training()
    cell = session.spans[0]
    bound = {"cuda:0/allocated": Peak(20 * GIB, "at least")}
    session._spans.add(replace(cell, peaks=bound))
    assert (anatomy(session, "peak").allocated, anatomy(session, "peak").certainty) == (
        20 * GIB,
        "at least",
    )


def test_free_memory_of_private_pools_is_no_cache_for_others() -> None:
    """A note says how much of the cache only a graph can use, and no more than there is of it."""
    session = Recorder("run")
    notes: list[str] = []
    series = [Series("cuda:0", one) for one in ("allocated", "reserved", "private_pools")]
    session.adopt([Device("cuda:0", "GPU")], series)
    for pools in (0.0, 2 * GIB, 9 * GIB):
        session.append(Sample(1.0, (GIB, 4 * GIB, pools)))
        notes.append(" ".join(anatomy(session.session, "now").notes))

    assert ["private pools" in one for one in notes] == [False, True, True]
    assert "2.00 GiB" in notes[1]
    assert "3.00 GiB" in notes[2]


def test_pinned_memory_is_told_beside_the_parts_of_the_host() -> None:
    """It is in no part, since it is not in the heap."""
    session = Recorder("run")
    session.adopt([Device("cpu", "CPU")], [Series("cpu", one) for one in ("allocated", "pinned")])
    session.append(Sample(1.0, (GIB, 2 * GIB)))

    now = anatomy(session.session, "now")

    assert "2.00 GiB" in now.notes[0]
    assert [part.bytes for part in now.parts] == [GIB]


def test_a_steps_peak_is_looked_for_as_deep_as_its_spans_lie() -> None:
    """In the pass within a batch within the step, whose edges tell what was held."""
    script = Script()
    script.read(allocated=2 * GIB, reserved=4 * GIB, weights=GIB)
    with script.span("train"), script.span("step", counts={"step": 1}):
        script.read()
        with script.span("substep"):
            script.read()
            with script.span("forward", peak=6 * GIB) as forward:
                script.read()
    found = script.session.anatomy(at=1)

    assert found.time == forward.start
    assert found.allocated == 6 * GIB
