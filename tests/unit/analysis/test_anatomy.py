"""The anatomy at a moment: which reading it is taken from, and what it admits not to know."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.analysis.anatomy import anatomy, end_of, peak_of
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.errors import OptionError
from hfmem_widget.session import DeviceSteps, Peak, Session, SpanKind, StepGroup
from hfmem_widget.text import GIB, MIB
from tests.data.parted import NAN, Script, training
from tests.data.recorders import read, recorder_of
from tests.scenes import SCRIPTED_RUNS, scripted_run, shared_run
from tests.scenes.groups import add_group

WEIGHTS, STATES, GRADIENTS = 1.25 * GIB, 2.5 * GIB, 1.25 * GIB


@pytest.fixture
def script() -> Script:
    return Script()


def read_in_step(script: Script, **values: float) -> None:
    """Read a device that has weights, within a step that began with 1 MiB unexplained."""
    readings = {"weights": GIB, "unattributed": MIB, **values}
    script.read(reserved=20 * GIB, requested=NAN, **readings)


def test_now_is_the_newest_reading(script: Script) -> None:
    """The anatomy of now is taken from the last sample, and says that it was sampled."""
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
    """The backward pass has the cell's peak, and is the only span whose parts are known."""
    session = training()
    phases = [span for span in session.spans if span.kind == "backward"]
    backward = max(phases, key=lambda span: span.peaks["cuda:0/allocated"].value)
    peak = anatomy(session, "peak")
    assert (peak.time, peak.moment, peak.certainty) == (backward.start, "at the peak", "exact")
    assert peak.allocated == session.peak("cuda:0/allocated")
    assert (peak.bytes("weights"), peak.bytes("optimizer")) == (WEIGHTS, STATES)


COMPUTED = "Up to {} of the activations are gradients that were being computed."
CREATED = "Up to {} of the temporaries are optimizer states that were being created."
NO_NOTES: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("kind", "before", "made", "held", "notes"),
    [
        ("backward", {"gradients": 0.25 * GIB}, {"gradients": GIB}, {"gradients": 0.25 * GIB},
         (COMPUTED.format("768.0 MiB"),)),
        ("backward", {}, {"gradients": GIB}, {"gradients": NAN}, (COMPUTED.format("1.00 GiB"),)),
        ("optimizer", {"gradients": GIB}, {"optimizer": 2 * GIB}, {"optimizer": NAN, "gradients": GIB},
         (CREATED.format("2.00 GiB"),)),
        ("optimizer", {"optimizer": 2 * GIB}, {}, {"optimizer": 2 * GIB}, NO_NOTES),
        ("forward", {"weights": NAN}, {"weights": 2 * GIB}, {"weights": 2 * GIB}, NO_NOTES),
    ],
    ids=["gradients", "the first gradients", "the first states", "states", "a model found within"],
)  # fmt: skip
def test_what_a_phase_makes_is_held_only_as_far_as_it_was_there_before(
    kind: SpanKind,
    before: dict[str, float],
    made: dict[str, float],
    held: dict[str, float],
    notes: tuple[str, ...],
) -> None:
    """The rest may have been temporaries at that instant, and a note says how much."""
    script = Script()
    read_in_step(script, **{"allocated": 5 * GIB, **before})
    with script.span(kind, peak=9 * GIB, **made):  # type: ignore[arg-type]  # none is another's
        pass
    peak = anatomy(script.session, "peak")

    assert {part: peak.bytes(part) for part in held} == pytest.approx(held, nan_ok=True)
    assert peak.notes == notes


@pytest.mark.parametrize(
    ("peak", "label"),
    [(6 * GIB, "temporaries and new optimizer states"), (13 * GIB, "activations and temporaries")],
)
def test_what_may_be_half_new_states_is_called_so(peak: float, label: str, script: Script) -> None:
    """The rest is activations and temporaries only where these are more than half of it."""
    read_in_step(script, allocated=5 * GIB, gradients=GIB)
    with script.span("optimizer", peak=peak, optimizer=2 * GIB):
        pass
    parts = anatomy(script.session, "peak")

    assert [part.label for part in parts.parts if part.name == "activations"] == [label]
    assert parts.made == {"optimizer": 2 * GIB}


def test_a_peak_outside_of_phases_has_the_parts_of_its_highest_sample(script: Script) -> None:
    """The difference between sample and peak is counted as activations, and a note says how much it is."""
    with script.span("block", peak=9 * GIB):
        read_in_step(script, allocated=5 * GIB)
        read_in_step(script, allocated=8 * GIB, gradients=3 * GIB)
        read_in_step(script, allocated=6 * GIB)
    peak = anatomy(script.session, "peak")
    assert (peak.allocated, peak.certainty) == (9 * GIB, "exact")
    assert peak.time == pytest.approx(0.3)
    assert peak.bytes("gradients") == 3 * GIB
    assert peak.bytes("activations") == 5 * GIB - MIB
    (note,) = peak.notes
    assert note.startswith("The parts are those of the highest sample, 1.00 GiB below the peak; ")
    assert note.endswith('the difference is counted as "activations and temporaries".')


@pytest.mark.parametrize(
    ("rest", "ends"), [(GIB, ['counted as "not attributed".']), (512, [])], ids=["much", "little"]
)
def test_outside_of_steps_a_rest_is_unknown(script: Script, rest: float, ends: list[str]) -> None:
    """Outside of steps nothing is called activations; a difference that reads as 0.00 MiB has no note."""
    with script.span("block", peak=8 * GIB + rest):
        script.read(allocated=8 * GIB, reserved=9 * GIB, weights=2 * GIB)
    peak = anatomy(script.session, "peak")

    assert peak.bytes("unattributed") == 6 * GIB + rest
    assert len(peak.notes) == len(ends)
    assert all(note.endswith(end) for note, end in zip(peak.notes, ends, strict=True))


def test_a_span_that_is_still_open_has_the_peak_it_has_so_far(script: Script) -> None:
    """While a cell runs, its anatomy is that of the exact peak up to now."""
    with script.span("cell") as cell:
        script.read(allocated=2 * GIB, reserved=2 * GIB, weights=GIB)
        script.recorder.progress(cell.id, {"cuda:0/allocated": Peak(3 * GIB, "exact")})
        peak = anatomy(script.session, "peak")
    assert (peak.allocated, peak.certainty, peak.bytes("weights")) == (3 * GIB, "exact", GIB)


def test_without_any_span_the_peak_is_the_highest_sample(script: Script) -> None:
    """A session without spans has a sampled peak, with that sample's parts."""
    for allocated in (GIB, 3 * GIB, 2 * GIB):
        script.read(allocated=allocated, weights=allocated / 2)
    peak = anatomy(script.session, "peak")
    assert (peak.allocated, peak.bytes("weights")) == (3 * GIB, 1.5 * GIB)
    assert peak.certainty == "sampled"


def test_a_sample_above_every_span_is_the_peak(script: Script) -> None:
    """The highest sample outside of all spans is the session's peak."""
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
    assert (peak.reserved, peak.bytes("free")) == (9 * GIB, 28 * GIB)
    assert peak.bytes("unexplained") == 3 * GIB


def test_a_step_has_the_parts_of_its_own_peak() -> None:
    """An anatomy at a step's number is that of the step's exact peak."""
    session = training()
    step = next(span for span in session.spans if span.counts.get("step") == 4)
    parts = anatomy(session, 4)
    assert (parts.moment, parts.allocated) == ("at step 4", step.peaks["cuda:0/allocated"].value)
    assert parts.bytes("weights") == WEIGHTS
    assert anatomy(session, 1).allocated < parts.allocated


def test_a_step_whose_spans_are_gone_is_the_worst_of_those_it_was_kept_with() -> None:
    """In a long run a step stands for its group, and the note says which step it is."""
    session = scripted_run("100,000 steps")
    group = next(one for one in session.steps if one.first <= 61_330 <= one.last)
    assert group.first < group.last
    worst = group.devices["cuda:0"]
    parts = anatomy(session, 61_330, "cuda:0")
    assert (parts.moment, parts.allocated) == (f"at step {worst.worst}", worst.peak)
    merged = f"Steps {group.first} to {group.last} were merged; "
    assert parts.notes[0] == f"{merged}this is the worst of them, step {worst.worst}."


def test_of_two_trainings_a_step_is_the_newer_ones(script: Script) -> None:
    """A step's number is that of the newer training: each training counts its steps from one."""
    script.read(allocated=GIB)
    for parent, peak in ((1, 2 * GIB), (2, 3 * GIB)):
        device = DeviceSteps(peak, "exact", peak, 5, NAN, NAN, {})
        figures: dict[str, Any] = dict.fromkeys(
            ("samples", "longest", "tokens", "content_tokens"), NAN
        )
        common = {"parent": parent, "first": 5, "last": 5, "start": 0, "stop": 1}
        add_group(script.session.steps, StepGroup(devices={"cuda:0": device}, **common, **figures))
    assert anatomy(script.session, 5).allocated == 3 * GIB


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        *((training, {"at": at}, rf"no step {at} on cuda:0; it has steps 1 to 6") for at in (0, 7, -1)),
        (lambda: shared_run("short"), {"at": 3}, "no step 3 on cuda:0; it has none"),
        *(
            (training, {"at": at}, "at is 'now', 'peak' or the number of a step")
            for at in ("end", "Peak", True, 1.5, None)
        ),
        (
            lambda: shared_run("two gpus"),
            {"device": "cuda:9"},
            r"no device 'cuda:9'; available: cuda:0, cuda:1, cuda:2",
        ),
        (lambda: Session("nothing"), {}, "no samples yet"),
    ],
)  # fmt: skip
def test_bad_moments_fail(make: Callable[[], Session], options: dict[str, Any], text: str) -> None:
    """The error for an unknown step, moment or device names those that there are."""
    with pytest.raises(OptionError, match=text):
        anatomy(make(), **options)


def test_a_session_with_devices_and_no_reading_has_no_parts() -> None:
    """Before the first sample an anatomy is empty, and no error."""
    session = recorder_of().session
    assert anatomy(session).parts == ()
    assert anatomy(session, "peak").parts == ()


@pytest.mark.parametrize(
    ("session", "key"),
    [
        (recorder_of((1.0, 2.0, 9.0), keys=("cuda:0", "cuda:1", "cpu")).session, "cuda:1"),
        (training(key="cpu"), "cpu"),
        (shared_run("idle gpu"), "cpu"),
    ],
    ids=["two GPUs", "no GPU", "an idle GPU"],
)
def test_the_device_is_the_gpu_in_most_use(session: Session, key: str) -> None:
    """The anatomy is that of the host only where no GPU has allocated anything."""
    assert anatomy(session).device.key == key


def test_the_hosts_peak_is_sampled_and_needs_no_context() -> None:
    """The host has no exact peak and no CUDA context: its process is its resident memory."""
    peak = anatomy(training(key="cpu", nvml=False), "peak")
    assert (peak.certainty, peak.bytes("weights")) == ("sampled", WEIGHTS)
    assert math.isnan(peak.bytes("context"))
    assert peak.process == peak.reserved


def test_weights_that_are_mapped_from_a_file_are_told_to_lie_outside_of_the_heap() -> None:
    """Where more was found than is allocated, a note says how much and why."""
    script = Script("cpu")
    script.read(allocated=GIB, reserved=4 * GIB, weights=3 * GIB)
    assert anatomy(script.session).notes == (
        ("2.00 GiB of these tensors is not allocated memory, such as weights mapped from a file."),
    )


def test_rows_that_were_folded_together_hold_what_was_there_all_the_time(script: Script) -> None:
    """A row's highest gradients and its highest allocated need not be of one instant."""
    for _ in range(5000):  # more than the timeline's rows
        script.read(allocated=9 * GIB, gradients=0.0, weights=GIB)
        script.read(allocated=4 * GIB, gradients=2 * GIB)
    peak = anatomy(script.session, "peak")
    assert script.session.timeline.bucket > 1
    assert math.isnan(peak.bytes("gradients"))
    assert peak.notes == (
        "Up to 2.00 GiB of the activations are gradients that were being computed.",
    )


def test_a_span_has_a_peak_and_an_end_of_its_own(script: Script) -> None:
    """A session of several cells has one card for each."""
    with script.span("cell", allocated=GIB) as first:
        script.read(allocated=7 * GIB, reserved=7 * GIB, weights=GIB)
    with script.span("cell"):
        script.read(allocated=9 * GIB, reserved=9 * GIB)
    first = script.session.span(first.id)
    assert peak_of(script.session, first, script.device).allocated == 7 * GIB
    assert end_of(script.session, first, script.device).allocated == GIB


def test_a_peak_at_a_spans_end_has_the_parts_of_that_end(script: Script) -> None:
    """A model that is found only then is not called memory that is not attributed."""
    with script.span("cell", allocated=5 * GIB, weights=4 * GIB) as cell:
        script.read(allocated=5 * GIB, weights=GIB)
    cell = script.session.span(cell.id)

    peak, end = (moment(script.session, cell, script.device) for moment in (peak_of, end_of))
    assert peak.parts == end.parts
    assert peak.bytes("weights") == 4 * GIB


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
@pytest.mark.parametrize("at", ["now", "peak"])
def test_every_run_has_an_anatomy_on_every_device(name: str, at: str) -> None:
    """In all scripted runs the parts are positive and account for all that is allocated."""
    session = shared_run(name)
    assert session.devices
    for device in session.devices:
        memory = anatomy(session, at, device.key)
        parts = sum(memory.bytes(one) for one in OF_ALLOCATED if memory.bytes(one) > 0)
        assert not memory.allocated > parts
        assert all(part.bytes > 0 for part in memory.parts)


PHASES = st.sampled_from(["forward", "backward", "optimizer", "block", "step"])
HOLDINGS = st.fixed_dictionaries(
    {
        metric: st.integers(0, 4).map(lambda gib: gib * GIB) | st.just(NAN)
        for metric in ("weights", "gradients", "optimizer", "unattributed")
    }
)


@given(st.lists(st.tuples(PHASES, HOLDINGS, HOLDINGS, st.integers(1, 30)), min_size=1, max_size=6))
def test_parts_add_up_to_the_peak(
    phases: list[tuple[str, dict[str, float], dict[str, float], int]],
) -> None:
    """The parts add up to the peak, unless more was found than was allocated, which a note says."""
    script = Script()
    for kind, before, after, peak in phases:
        script.read(allocated=0.0, reserved=40 * GIB, requested=NAN, **before)
        with script.span(kind, peak=peak * GIB, **after):  # type: ignore[arg-type]  # one of them
            pass
    at_peak = anatomy(script.session, "peak")
    parts = sum(at_peak.bytes(one) for one in OF_ALLOCATED if at_peak.bytes(one) > 0)
    has_note = any("not allocated memory" in note for note in at_peak.notes)
    assert at_peak.allocated == max(peak for *_, peak in phases) * GIB
    assert parts >= at_peak.allocated
    assert (parts > at_peak.allocated) == has_note


def test_a_peak_that_is_only_bounded_says_so() -> None:
    """A peak known as a lower bound has an anatomy that is "at least" as much."""
    session = training()
    cell = session.spans[0]
    session._spans.add(replace(cell, peaks={"cuda:0/allocated": Peak(20 * GIB, "at least")}))
    peak = anatomy(session, "peak")
    assert (peak.allocated, peak.certainty) == (20 * GIB, "at least")


def test_free_memory_of_private_pools_is_no_cache_for_others() -> None:
    """A note says how much of the cache only a graph can use, and no more than there is of it."""
    recorder = recorder_of(metrics=("allocated", "reserved", "private_pools"))
    notes: list[str] = []
    for pools in (0.0, 2 * GIB, 9 * GIB):
        read(recorder, 1.0, (GIB, 4 * GIB, pools))
        notes.append(" ".join(anatomy(recorder.session, "now").notes))

    assert ["private pools" in one for one in notes] == [False, True, True]
    assert "2.00 GiB" in notes[1]
    assert "3.00 GiB" in notes[2]


def test_pinned_memory_is_told_beside_the_parts_of_the_host() -> None:
    """Pinned memory is in no part, since it is not in the heap."""
    recorder = recorder_of((GIB, 2 * GIB), keys=["cpu"], metrics=("allocated", "pinned"))
    now = anatomy(recorder.session, "now")

    assert "2.00 GiB" in now.notes[0]
    assert [part.bytes for part in now.parts] == [GIB]


def test_a_steps_peak_is_looked_for_as_deep_as_its_spans_lie(script: Script) -> None:
    """The peak of a step may be that of a pass within a batch within it."""
    script.read(allocated=2 * GIB, reserved=4 * GIB, weights=GIB)
    with script.span("train"), script.span("step", counts={"step": 1}):
        script.read()
        with script.span("substep"):
            script.read()
            with script.span("forward", peak=6 * GIB) as forward:
                script.read()
    step = script.session.anatomy(at=1)

    assert step.time == forward.start
    assert step.allocated == 6 * GIB
