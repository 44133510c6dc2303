"""Steps fold into groups, and spans into phases of each cell, without losing what matters."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.session import (
    DeviceSteps,
    Peak,
    Recorder,
    Sample,
    Span,
    SpanKind,
    StepGroup,
    Steps,
)
from hfmem_widget.session.model import ROLES
from hfmem_widget.session.series import HELD
from hfmem_widget.session.spans import MOST_PHASES, MOST_ROOTS, Phases
from tests.data.recorders import GPU, KEY, recorder_of
from tests.scenes.groups import add_group


def one_step(number: int, peak: float = 1.0, *, parent: int = 1, tokens: float = 8.0) -> StepGroup:
    device = DeviceSteps(peak, "exact", peak, number, tokens, peak / 2, {"forward": peak})
    edges = parent, number, number, float(number), number + 0.5
    return StepGroup(*edges, 2.0, 4.0, tokens, math.nan, {GPU: device})


def many(peaks: list[float], most: int = 16, parents: list[int] | None = None) -> Steps:
    steps = Steps(most)
    for at, peak in enumerate(peaks):
        add_group(steps, one_step(at + 1, peak, parent=parents[at] if parents else 1, tokens=peak))
    return steps


@given(st.lists(st.floats(1, 1e12), min_size=1, max_size=200), st.integers(2, 20))
def test_the_worst_step_stays_exact(peaks: list[float], most: int) -> None:
    """Folding keeps the highest peak to the bit, with its step and its tokens, and the lowest."""
    groups = list(many(peaks, most))
    worst = max(groups, key=lambda group: group.devices[GPU].peak).devices[GPU]

    assert worst.peak == max(peaks)
    assert peaks[worst.worst - 1] == max(peaks)
    assert worst.worst_tokens == max(peaks)
    assert min(group.devices[GPU].lowest for group in groups) == min(peaks)
    assert math.isclose(sum(group.tokens for group in groups), sum(peaks))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200))
def test_steps_of_different_trainings_never_fold_together(parents: list[int]) -> None:
    """A group is within one parent, and groups stay in order."""
    parents.sort()
    groups = list(many([1.0] * len(parents), 8, parents))

    for group in groups:
        assert {parents[n - 1] for n in range(group.first, group.last + 1)} == {group.parent}
    assert [group.first for group in groups] == sorted(group.first for group in groups)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=120), st.integers(1, 40))
def test_steps_added_at_once_fold_like_single_ones(parents: list[int], together: int) -> None:
    """Rows of a table are added like steps, however many come at once."""
    parents.sort()
    alone, table = many([1.0] * len(parents), 8, parents), Steps(len(parents))
    for at, parent in enumerate(parents):
        add_group(table, one_step(at + 1, parent=parent, tokens=1.0))
    steps = Steps(8)
    steps.widen(alone.devices)

    for first in range(0, len(parents), together):
        steps.extend(table.table[first : first + together])

    assert steps == alone


def test_a_row_replaces_those_within_it() -> None:
    """A group that is read again once it has grown takes the place of its steps, and they count once."""
    single, grown = many([1.0, 5.0, 2.0, 3.0]), Steps()
    add_group(grown, replace(one_step(2, 5.0), last=4, stop=4.5))
    grown.extend(single.table[3:])
    assert grown.count == 4

    single.extend(grown.table[:1])

    assert [(one.first, one.last) for one in single] == [(1, 1), (2, 4)]
    assert single.count == 4


def test_folded_has_the_groups_after_an_instant() -> None:
    """Groups that ended later are returned, in about as many rows as requested."""
    steps = many([1.0] * 16, 64)

    later = steps.folded(100, after=10.5)[:, steps.columns.index("first")]
    assert later.tolist() == [11, 12, 13, 14, 15, 16]
    assert len(steps.folded(4)) <= 4


def test_a_device_that_appears_later_adds_columns() -> None:
    """Its earlier figures are NaN, and those of other devices stay."""
    steps = many([2.0])
    group = one_step(2, 3.0)
    add_group(steps, replace(group, devices={**group.devices, "cuda:1": group.devices[GPU]}))

    assert steps.devices == (GPU, "cuda:1")
    assert math.isnan(steps.table[0, steps.columns.index("cuda:1/peak")])
    assert steps.table[0, steps.columns.index("cuda:0/peak")] == 2.0


def test_steps_say_how_many_they_are() -> None:
    """Their repr has the number of steps, the rows of the table, and the devices."""
    assert repr(many([1.0] * 40)) == "<Steps: 40 steps in 10 rows; devices: cuda:0>"
    assert repr(Steps()) == "<Steps: 0 steps in 0 rows; devices: none>"


def test_the_table_becomes_a_data_frame() -> None:
    """The frame has a row for each group and a column for each figure."""
    frame = many([2.0, 5.0]).to_pandas()

    assert list(frame["cuda:0/peak_allocated"]) == [2.0, 5.0]
    assert list(frame["first"]) == [1, 2]
    assert list(frame["cuda:0/certainty"]) == ["exact", "exact"]
    assert np.isnan(frame["content_tokens"]).all()


def test_a_data_frames_names_are_not_those_of_series() -> None:
    """No column of the steps' frame means something else in the session's frame."""
    metrics = (*ROLES, *HELD, "activations")
    session = recorder_of((1.0,) * 2 * len(metrics), keys=(GPU, "cpu"), metrics=metrics).session
    session_frame, steps_frame = session.to_pandas(), many([2.0]).to_pandas()

    assert not set(session_frame.columns) & set(steps_frame.columns)
    assert {"cpu/resident_peak", "cuda:0/allocator_peak"} < set(session_frame.columns)
    assert {"cuda:0/peak_allocated", "cuda:0/optimizer_phase_peak"} < set(steps_frame.columns)
    assert session.peak("cuda:0/peak") == 1.0


def stepped(counts: dict[str, float], *heights: float) -> StepGroup:
    """Return the row of a step from one height of allocated memory to another."""
    before, after = heights or (1.0, 9.0)
    recorder = recorder_of(before)
    session = recorder.session
    span = recorder.open_span("step", "step", session.last_sample)
    recorder.count(span.id, {"step": 3.0, **counts})
    recorder.append(Sample(2.0, (after,)))
    recorder.close_span(span.id, session.last_sample, {})
    (step,) = session.steps
    return step


@pytest.mark.parametrize(
    ("counts", "worst"),
    [({}, math.nan), ({"tokens": 8.0}, 8.0), ({"tokens": 8.0, "largest_batch": 4.0}, 4.0)],
)
def test_a_steps_worst_batch_is_its_largest(counts: dict[str, float], worst: float) -> None:
    """A step's worst batch is its largest, or the step's only one."""
    step = stepped(counts)

    assert step.devices[GPU].worst_tokens == pytest.approx(worst, nan_ok=True)
    assert step.tokens == pytest.approx(counts.get("tokens", math.nan), nan_ok=True)


def test_steps_that_cannot_be_merged_are_dropped_from_the_oldest_on() -> None:
    """If each has its own parent, half of them are dropped to make room."""
    steps = many([1.0] * 9, most=8, parents=[*range(1, 10)])

    assert [(one.first, one.last) for one in steps] == [(at, at) for at in range(5, 10)]
    assert steps.count == 9


def test_of_steps_that_cannot_be_merged_the_newest_are_returned() -> None:
    """Of steps that cannot be merged, the newest are returned, as many as requested."""
    steps = many([1.0] * 6, most=8, parents=[*range(1, 7)])

    assert steps.folded(3)[:, 1].tolist() == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("count", "rows"),
    [
        (8, [(at, at) for at in range(1, 9)]),
        (9, [(1, 2), (3, 4), (5, 6), (7, 8), (9, 9)]),
        (17, [(1, 4), (5, 8), (9, 12), (13, 16), (17, 17)]),
    ],
)
def test_steps_are_merged_by_twos_and_fours(count: int, rows: list[tuple[int, int]]) -> None:
    """A row has twice as many steps after each fold; the newest row fills up first."""
    assert [(one.first, one.last) for one in many([1.0] * count, most=8)] == rows


def test_before_the_first_step_none_has_ended() -> None:
    """Any time is later than the end of the newest step."""
    assert many([]).ended_at == -math.inf
    assert many([1.0, 1.0]).ended_at == 2.5


@pytest.mark.parametrize(("most", "rows"), [(8, 8), (7, 5), (2, 2)])
def test_steps_are_folded_no_further_than_they_must_be(most: int, rows: int) -> None:
    """As many steps as fit stay single, and the newest is never merged."""
    folded = many([1.0] * 8, most=8).folded(most)

    assert len(folded) == rows
    assert folded[-1, 1:3].tolist() == [8.0, 8.0]


def test_a_step_of_no_span_has_no_parent() -> None:
    """A step without an outer span has no parent, and figures that were not counted are NaN."""
    step = stepped({})

    assert (step.parent, step.first, step.last, step.start, step.stop) == (0, 3, 3, 0.0, 2.0)
    assert all(map(math.isnan, (step.samples, step.longest, step.tokens, step.content_tokens)))


@pytest.mark.parametrize(("heights", "used"), [((0.0, 0.0), False), ((0.0, 0.5), True)])
def test_a_step_has_figures_of_devices_it_used(heights: tuple[float, ...], *, used: bool) -> None:
    """A device without allocations has none; a single byte is enough."""
    assert (GPU in stepped({}, *heights).devices) is used


def open_at(recorder: Recorder, kind: SpanKind, time: float, label: str = "") -> int:
    return recorder.open_span(kind, label, recorder.append(Sample(time, (1.0,)))).id


def close_at(recorder: Recorder, span_id: int, time: float, peak: float) -> None:
    recorder.close_span(span_id, recorder.append(Sample(time, (1.0,))), {KEY: Peak(peak, "exact")})


def test_phases_add_up_by_kind() -> None:
    """Count and seconds are summed, and the span with the highest peak is kept."""
    recorder = recorder_of()
    cell = open_at(recorder, "cell", 0)
    for number, peak in enumerate((5.0, 9.0, 7.0)):
        close_at(recorder, open_at(recorder, "step", number, f"step {number}"), number + 0.5, peak)
    close_at(recorder, cell, 4, 9.0)
    steps, whole = recorder.session.phases(cell)

    assert (steps.kind, steps.count, steps.seconds) == ("step", 3, 1.5)
    assert steps.highest[KEY].label == "step 1"
    assert (whole.kind, whole.count) == ("cell", 1)


def test_each_outermost_span_has_its_own_phases() -> None:
    """The phases of two cells in one session are separate."""
    recorder = recorder_of()
    for time in (0.0, 10.0):
        cell = open_at(recorder, "cell", time)
        close_at(recorder, open_at(recorder, "step", time + 1), time + 2, 3.0)
        close_at(recorder, cell, time + 3, 3.0)

        assert [phase.count for phase in recorder.session.phases(cell)] == [1, 1]


def test_phases_outlive_their_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps are counted, even those whose spans were dropped."""
    monkeypatch.setattr("hfmem_widget.session.spans.MOST_READINGS", 400)
    recorder = recorder_of()
    cell = open_at(recorder, "cell", 0)
    for number in range(450):
        close_at(recorder, open_at(recorder, "step", number), number, float(number == 123))
    steps = recorder.session.phases(cell)[0]

    assert steps.count == 450
    assert len(recorder.session.spans) < 410
    assert recorder.session.spans[0].id == cell
    assert steps.highest[KEY].id == 125


def test_a_step_knows_the_peaks_of_its_phases() -> None:
    """Its row has forward, backward and optimizer, also with several batches."""
    recorder = recorder_of()
    step = open_at(recorder, "step", 0)
    for time in (1.0, 2.0):
        batch = open_at(recorder, "substep", time)
        close_at(recorder, open_at(recorder, "forward", time), time + 0.2, 10 * time)
        close_at(recorder, open_at(recorder, "backward", time + 0.2), time + 0.4, 30.0)
        close_at(recorder, batch, time + 0.5, 30.0)
    close_at(recorder, open_at(recorder, "optimizer", 3), 4, 5.0)
    recorder.count(step, {"step": 17.0, "tokens": 64.0, "largest_batch": 40.0})
    close_at(recorder, step, 5, 30.0)
    (group,) = recorder.session.steps

    assert (group.first, group.tokens) == (17, 64.0)
    assert group.devices["cuda:0"].phases == {"forward": 20.0, "backward": 30.0, "optimizer": 5.0}
    assert group.devices["cuda:0"].worst_tokens == 40.0


def test_steps_without_a_number_are_counted() -> None:
    """The steps of a plain loop are numbered from 1, in the table and on their spans."""
    recorder = recorder_of()
    for time in range(3):
        close_at(recorder, open_at(recorder, "step", time), time + 0.5, 2.0)

    assert [group.first for group in recorder.session.steps] == [1, 2, 3]
    assert [span.counts["step"] for span in recorder.session.spans] == [1, 2, 3]


def test_open_spans_within_a_span_are_known() -> None:
    """Open spans within a span are listed, innermost first."""
    recorder = recorder_of()
    outer = open_at(recorder, "cell", 0)
    inner = open_at(recorder, "train", 1)
    innermost = open_at(recorder, "step", 2)

    assert [span.id for span in recorder.session.open_within(outer)] == [innermost, inner]
    assert recorder.session.open_within(innermost) == ()


def test_counting_in_a_span_that_has_ended_does_nothing() -> None:
    """A late count does not change an ended span."""
    recorder = recorder_of()
    span = open_at(recorder, "step", 0)
    close_at(recorder, span, 1, 1.0)
    recorder.count(span, {"tokens": 5.0})

    assert "tokens" not in recorder.session.span(span).counts


def test_a_block_within_one_of_its_name_counts_its_seconds_once() -> None:
    """A block within a block of its name counts its seconds once; blocks of other names count apart."""
    recorder = recorder_of()
    cell = open_at(recorder, "cell", 0)
    outer = open_at(recorder, "block", 0, "load")
    close_at(recorder, open_at(recorder, "block", 1, "load"), 2, 3.0)
    close_at(recorder, open_at(recorder, "block", 3, "warm up"), 5, 3.0)
    close_at(recorder, outer, 6, 3.0)
    close_at(recorder, cell, 7, 3.0)

    assert {(one.label, one.count, one.seconds) for one in recorder.session.phases(cell)} == {
        ("load", 1, 6.0),
        ("warm up", 1, 2.0),
        ("", 1, 7.0),
    }


def block(label: str) -> Span:
    sample = Sample(0.0, (0.0,))
    return Span(1, "block", label, 0.0, sample, stop=2.0, after=sample)


def test_a_limited_number_of_block_names_is_kept() -> None:
    """The first names are kept, and still counted."""
    phases = Phases()
    for name in [*range(MOST_PHASES), "one too many", 0]:
        phases.add(1, block(f"block {name}"))
    blocks = phases.within(1)

    assert [one.label for one in blocks] == [f"block {at}" for at in range(MOST_PHASES)]
    assert [one.count for one in blocks] == [2, *[1] * (MOST_PHASES - 1)]
    assert (blocks[0].seconds, blocks[1].seconds) == (4.0, 2.0)


def test_the_oldest_cells_lose_their_phases() -> None:
    """The number of cells with phases is limited."""
    phases = Phases()
    for root in range(MOST_ROOTS + 2):
        phases.add(root, block("x"))

    assert [root for root in range(MOST_ROOTS + 2) if not phases.within(root)] == [0, 1]
