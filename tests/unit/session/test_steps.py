"""Steps fold into groups without losing what matters."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.session import DeviceSteps, Sample, StepGroup, Steps
from hfmem_widget.session.model import ROLES
from hfmem_widget.session.series import HELD
from tests.data.recorders import GPU, recorder_of
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
    steps = Steps.from_table(alone.devices, [], 0, 8)

    for first in range(0, len(parents), together):
        steps.extend(table.table[first : first + together])

    assert steps == alone


def test_folded_has_the_groups_after_an_instant() -> None:
    """Only groups that ended later, in about as many rows as requested."""
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
    """One row for each group, one column for each figure."""
    frame = many([2.0, 5.0]).to_pandas()

    assert list(frame["cuda:0/peak_allocated"]) == [2.0, 5.0]
    assert list(frame["first"]) == [1, 2]
    assert list(frame["cuda:0/certainty"]) == ["exact", "exact"]
    assert np.isnan(frame["content_tokens"]).all()


def test_a_data_frames_names_are_not_those_of_series() -> None:
    """No column of the steps' frame means something else in the session's frame."""
    metrics = (*ROLES, *HELD, "activations")
    session = recorder_of((1.0,) * 2 * len(metrics), keys=(GPU, "cpu"), metrics=metrics).session
    of_session, of_steps = session.to_pandas(), many([2.0]).to_pandas()

    assert not set(of_session.columns) & set(of_steps.columns)
    assert {"cpu/resident_peak", "cuda:0/allocator_peak"} < set(of_session.columns)
    assert {"cuda:0/peak_allocated", "cuda:0/optimizer_phase_peak"} < set(of_steps.columns)
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
    """All of its tokens, if it has one batch."""
    step = stepped(counts)

    assert step.devices[GPU].worst_tokens == pytest.approx(worst, nan_ok=True)
    assert step.tokens == pytest.approx(counts.get("tokens", math.nan), nan_ok=True)


def test_steps_that_cannot_be_merged_are_dropped_from_the_oldest_on() -> None:
    """If each has its own parent, half of them are dropped to make room."""
    steps = many([1.0] * 9, most=8, parents=[*range(1, 10)])

    assert [(one.first, one.last) for one in steps] == [(at, at) for at in range(5, 10)]
    assert steps.count == 9


def test_of_steps_that_cannot_be_merged_the_newest_are_returned() -> None:
    """As many as were requested."""
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
    """As many as fit stay single; the newest is never merged."""
    steps = many([1.0] * 8, most=8)
    folded = steps.folded(most)

    assert len(folded) == rows
    assert folded[-1, 1:3].tolist() == [8.0, 8.0]


def test_a_step_of_no_span_has_no_parent() -> None:
    """Figures that were not counted are unknown."""
    step = stepped({})

    assert (step.parent, step.first, step.last, step.start, step.stop) == (0, 3, 3, 0.0, 2.0)
    assert all(map(math.isnan, (step.samples, step.longest, step.tokens, step.content_tokens)))


@pytest.mark.parametrize(("heights", "there"), [((0.0, 0.0), False), ((0.0, 0.5), True)])
def test_a_step_has_figures_of_the_devices_it_used(
    heights: tuple[float, ...], *, there: bool
) -> None:
    """A device without allocations has none; a single byte is enough."""
    assert (GPU in stepped({}, *heights).devices) is there
