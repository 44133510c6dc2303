"""Watched cells side by side: figures, repeats, differences, and runs laid over each other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.analysis.record import DeviceRecord, Floats, Pace, Record, record_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.api import MOST_CELLS, by_step, by_time, of_runs, steps_a_point
from hfmem_widget.features.compare.model import FIGURES, Comparison, percent_of
from hfmem_widget.features.compare.text import figure_columns, part_columns, verdicts
from hfmem_widget.session import Certainty, DeviceSteps, Peak, StepGroup, Steps
from hfmem_widget.text import GIB, MIB
from tests.scenes.groups import add_group
from tests.scenes.stage import Stage

GPU = "cuda:0"
NAN = math.nan


def device(
    peak: float,
    *,
    key: str = GPU,
    certainty: Certainty = "exact",
    steps: Sequence[float] = (),
    before: float = 1.0,
    at_start: Mapping[str, float] = MappingProxyType({}),
    made: Mapping[str, float] = MappingProxyType({}),
    **parts: float,
) -> DeviceRecord:
    rows = [[at, at, one, one, at] for at, one in enumerate(steps, 1)]
    return DeviceRecord(
        key=key,
        name="NVIDIA H200",
        allocated_label="allocated",
        reserved_label="reserved",
        peak=Peak(peak, certainty),
        before=before,
        after=3.0,
        reserved_peak=peak + 1,
        headroom=999 - peak,
        at_peak=parts,
        made=made,
        at_start=at_start,
        curve=np.array([[0.0, 1.0, 2.0], [1.0, peak, 3.0]], dtype=np.float32),
        steps=np.array(rows, dtype=float).reshape(-1, 5),
    )


def record(label: str, *devices: DeviceRecord, number: int = 1, duration: float = 2.0) -> Record:
    return Record(
        label=label,
        title=f"cell [{number}]",
        number=number,
        identity=label,
        duration=duration,
        devices=devices,
    )


def folded(peaks: Sequence[float], most: int) -> Floats:
    """Return a table of steps that are in groups if there are more than `most`."""
    steps = Steps(most)
    for at, peak in enumerate(peaks, 1):
        one = DeviceSteps(peak, "exact", peak, at, math.nan, peak, {})
        nan = math.nan
        add_group(steps, StepGroup(1, at, at, float(at), at + 0.5, nan, nan, nan, nan, {GPU: one}))
    names = ("first", "last", f"{GPU}/lowest", f"{GPU}/peak", f"{GPU}/worst")
    return steps.table[:, [steps.columns.index(name) for name in names]]


@pytest.mark.parametrize(
    ("peaks", "expected"), [([8.0], (8.0, 8.0, 8.0, 1)), ([9.0, 7.0, 8.0], (8.0, 7.0, 9.0, 3))]
)
def test_runs_are_a_median_and_a_range(
    peaks: list[float], expected: tuple[float, float, float, int]
) -> None:
    """The median stands for them, with the lowest and the highest beside it; one run has no spread."""
    (cell,) = of_runs({"a": [record("a", device(peak)) for peak in peaks]}).cells
    figure = cell.figures["peak"]

    assert (figure.middle, figure.low, figure.high, figure.runs) == expected
    assert set(cell.figures) == set(FIGURES)


def test_parts_are_those_of_the_run_that_has_the_median() -> None:
    """Parts of one run add up to the peak that is shown."""
    runs = [record("a", device(peak, weights=peak)) for peak in (9.0, 7.0, 8.0)]
    assert of_runs({"a": runs}).cells[0].usual.at_peak == {"weights": 8.0}


@pytest.mark.parametrize(
    ("known", "weakest"),
    [
        (("exact", "exact"), "exact"),
        (("exact", "at least"), "at least"),
        (("at least", "sampled"), "sampled"),
    ],
)
def test_the_least_certain_run_counts(known: tuple[Certainty, ...], weakest: Certainty) -> None:
    """One sampled run among exact ones makes the median a sampled one."""
    runs = [record("a", device(8.0, certainty=one)) for one in known]
    assert of_runs({"a": runs}).cells[0].certainty == weakest


def test_a_difference_has_its_sign_and_its_percent() -> None:
    """Less than the baseline is negative; the baseline itself is zero, and may be any cell."""
    runs = {"a": [record("a", device(8.0))], "b": [record("b", device(6.0))]}
    differences = [
        of_runs(runs, baseline=baseline).to_pandas()["peak/difference"].tolist()
        for baseline in "ab"
    ]

    assert differences == [[0.0, -2.0], [2.0, 0.0]]
    assert percent_of(6.0, 8.0) == -25.0


def in_mib(peak: float, *, before: float = 0.0, made: float = 0.0, **parts: float) -> DeviceRecord:
    """Return a device of so many MiB; parts whose names end with `_at_start` were there at the start."""
    sizes = {name: size * MIB for name, size in parts.items()}
    at_start = {name[:-9]: sizes.pop(name) for name in parts if name.endswith("_at_start")}
    known = {"gradients": made * MIB} if made else {}
    return device(peak * MIB, before=before * MIB, at_start=at_start, made=known, **sizes)  # type: ignore[arg-type]  # parts are the rest


EARLIER_MODEL = (
    in_mib(340, before=150, weights=40, activations=100),
    in_mib(300, before=210, weights_at_start=40, weights=80, activations=10),
)
"""A cell, and one that needs less but began with what the first left."""


def with_an_earlier_model() -> Comparison:
    first, second = EARLIER_MODEL
    return of_runs({"base": [record("base", first)], "ckpt": [record("ckpt", second)]})


def test_what_was_there_before_is_not_charged_to_a_cell() -> None:
    """The first column is the peak above the start, and a note has what was there before."""
    comparison = with_an_earlier_model()
    above, peak = figure_columns(comparison)[:2]

    assert (above.title, peak.title) == ("above the start", "allocated, peak")
    assert [cell[2] for cell in above.cells] == ["", "\u2212100.0 MiB · \u221253 %"]
    assert [cell[2] for cell in peak.cells] == ["", "\u221240.0 MiB · \u221212 %"]
    (note,) = comparison.notes
    assert note.startswith("ckpt began with 60.0 MiB more allocated than base.")
    assert comparison.to_pandas().loc["ckpt", "above_start/difference"] == -100 * MIB


HELD = in_mib(300, gradients=80, activations=90)
SMALL = in_mib(300, weights=30, activations=10)


@pytest.mark.parametrize(
    ("base", "other", "verdict"),
    [
        (
            *EARLIER_MODEL,
            "100.0 MiB less memory above its start (\u221253 %) than a: activations \u221290.0 MiB.",
        ),
        (SMALL, in_mib(300.5, weights=30, activations=10), "as much memory at its peak as a."),
        (
            SMALL,
            in_mib(400, weights=60, activations=10),
            "100.0 MiB more memory at its peak (+33 %) than a.",
        ),
        (
            in_mib(200, before=100, optimizer=2, activations=90),
            in_mib(450, before=110, optimizer_at_start=2, optimizer=202, activations=120),
            "240.0 MiB more memory above its start (+240 %) than a: optimizer +198.0 MiB.",
        ),
        (
            *(HELD, in_mib(180, activations=170)),
            "120.0 MiB less memory at its peak (\u221240 %) than a: gradients \u221280.0 MiB.",
        ),
        (
            HELD,
            in_mib(180, made=80, activations=170),
            "120.0 MiB less memory at its peak (\u221240 %) than a.",
        ),
    ],
    ids=[
        *("a part of most of it", "as much", "a part of less than half"),
        *("a part that began with more", "a part that one lacks", "a part that was being made"),
    ],
)
def test_a_cells_need_is_a_sentence(base: DeviceRecord, other: DeviceRecord, verdict: str) -> None:
    """What was there when the cell began is left out, as is what may have been among the activations."""
    comparison = of_runs({"a": [record("a", base)], "b": [record("b", other)]})
    assert verdicts(comparison) == [f"b needs {verdict}"]


def test_parts_that_were_there_before_are_no_difference() -> None:
    """The earlier model's weights have no percentage; the table shows how much of them was there."""
    weights, activations = part_columns(with_an_earlier_model())

    assert weights.cells == (("40.0 MiB", "", ""), ("80.0 MiB", "40.0 MiB at the start", ""))
    assert activations.cells[1] == ("10.0 MiB", "", "\u221290.0 MiB · \u221290 %")


@pytest.mark.parametrize("before", [150 * MIB, 151 * MIB, math.nan])
def test_cells_that_began_alike_have_no_note(before: float) -> None:
    """A difference of a MiB, which a heap makes by itself, does not count, nor does an unknown start."""
    first, second = device(340 * MIB, before=150 * MIB), device(300 * MIB, before=before)
    assert of_runs({"a": [record("a", first)], "b": [record("b", second)]}).notes == ()


def test_from_an_empty_device_the_peak_is_one_column() -> None:
    """The peak above the start would be the same."""
    comparison = of_runs({"a": [record("a", device(8.0 * MIB))]})
    assert figure_columns(comparison)[0].title == "allocated, peak"


def test_the_device_is_the_one_that_most_cells_used() -> None:
    """An accelerator comes before the host; `device` chooses another."""
    host = device(90.0, key="cpu")
    runs = {
        "a": [record("a", device(8.0), device(9.0, key="cuda:1"))],
        "b": [record("b", device(7.0), host)],
    }
    assert of_runs(runs).device == GPU
    assert of_runs(runs, device="cuda:1").device == "cuda:1"


def test_a_cell_that_did_not_use_the_device_is_still_there() -> None:
    """It has its duration and no figures of memory, and a note says so."""
    runs = {"a": [record("a", device(8.0))], "b": [record("b", device(7.0, key="cpu"))]}
    comparison = of_runs(runs)
    other = comparison.cells[1]

    assert math.isnan(other.figures["peak"].middle)
    assert other.figures["duration"].middle == 2.0
    assert other.line is None
    assert comparison.notes == ("Also used: cpu.", "b did not use cuda:0.")


def test_a_note_counts_failed_runs() -> None:
    """A comparison with a cell that ran out of memory says that it did."""
    failed = replace(record("a", device(8.0)), outcome="raised OutOfMemoryError")
    comparison = of_runs({"a": [record("a", device(8.0)), failed]})
    assert comparison.notes == ("a: raised OutOfMemoryError in 1 of 2 runs.",)


def test_steps_align_only_where_all_have_some() -> None:
    """The default is by steps if every cell has two or more, else by time."""
    trained, loaded = device(8.0, steps=[1, 2, 8]), device(7.0)
    runs = {"a": [record("a", trained)], "b": [record("b", loaded)]}

    assert of_runs({"a": runs["a"]}).by == "step"
    assert of_runs(runs).by == "time"
    by_steps = of_runs(runs, by="step")
    assert [cell.line is None for cell in by_steps.cells] == [False, True]
    output = by_steps._repr_mimebundle_()
    assert "b has no data for the chart." in output["text/html"]
    assert "chart" not in output["text/plain"]


ONE = {"a": [record("a", device(8.0))]}


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        (ONE, {"by": "epoch"}, "by 'step' or by 'time', not by 'epoch'"),
        (ONE, {"by": "step"}, "none of these cells has steps"),
        (
            {"a": [record("a", device(8.0, steps=[8]))]},
            {"by": "step"},
            "none of these cells has steps",
        ),
        (ONE, {"device": "cuda:7"}, "did not use 'cuda:7'; they used cuda:0"),
        (ONE, {"baseline": "c"}, "'c' is not one of the compared cells: 'a'"),
        ({"a": [record("a")]}, {}, "no memory was read"),
        ({}, {}, "at least one cell"),
        (dict.fromkeys(map(str, range(MOST_CELLS + 1)), ONE["a"]), {}, "at most 8"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_an_error_that_says_why(
    runs: dict[str, list[Record]], options: dict[str, Any], message: str
) -> None:
    """An error names what there is: ways, devices, cells, and how many cells can be told apart."""
    with pytest.raises(OptionError, match=message):
        of_runs(runs, **options)


def test_a_data_frame_has_a_row_for_each_cell() -> None:
    """Medians, ranges, differences and parts are columns."""
    frame = of_runs(
        {
            "a": [record("a", device(8.0, weights=5.0))],
            "b": [record("b", device(6.0)), record("b", device(7.0))],
        }
    ).to_pandas()

    assert list(frame.index) == ["a", "b"]
    assert frame.loc["b", "peak"] == 6.5
    assert frame.loc["b", "peak/difference"] == -1.5
    assert frame.loc["b", "peak/highest"] == 7.0
    assert frame.loc["a", "at_peak/weights"] == 5.0
    assert frame.loc["a", "peak/certainty"] == "exact"
    assert list(frame["runs"]) == [1, 2]


def test_a_pace_that_one_run_lacks_is_that_of_the_others() -> None:
    """Runs in which a figure is unknown do not count for it."""
    known = replace(record("a", device(8.0)), pace=Pace(10, 2.0, 16.0, 256.0))
    figure = of_runs({"a": [known, record("a", device(8.0))]}).cells[0].figures
    assert (figure["tokens_per_second"].middle, figure["tokens_per_second"].runs) == (256.0, 1)


@pytest.mark.parametrize(
    ("runs", "before", "low", "middle", "high"),
    [
        (([1, 5, 3], [2, 4, 3], [3, 6, 3]), 0, [1, 4, 3], [2, 5, 3], [3, 6, 3]),
        (([1, 1], [3, 3, 3]), 0, [1, 1, 3], [2, 2, 3], [3, 3, 3]),
        (([1, 2, 3],), 500, [1, 2, 3], [1, 2, 3], [1, 2, 3]),
    ],
    ids=["several", "of different length", "resumed after 500 steps"],
)
def test_steps_of_several_runs_lie_over_each_other(
    runs: tuple[list[float], ...],
    before: int,
    low: list[float],
    middle: list[float],
    high: list[float],
) -> None:
    """Each step has the median, the lowest and the highest of the runs with a step of its number."""
    tables = [folded(peaks, 64) for peaks in runs]
    for table in tables:
        table[:, [0, 1, 4]] += before
    line = by_step(tables, 1)

    assert line.at.tolist() == [before + 1, before + 2, before + 3]
    assert [line.low.tolist(), line.middle.tolist(), line.high.tolist()] == [low, middle, high]


def test_a_row_that_lies_in_two_points_peaks_in_one() -> None:
    """The peak of steps 5 to 8 was at step 5, so steps 7 to 12 did not reach it."""
    table = np.array([[1, 4, 1, 2, 3], [5, 8, 3, 9, 5], [9, 12, 1, 4, 9]], dtype=float)
    line = by_step([table], 6)

    assert line.at.tolist() == [3.5, 9.5]
    assert line.middle.tolist() == [9.0, 4.0]


@given(
    st.lists(st.floats(1, 1e9), min_size=1, max_size=300), st.integers(2, 40), st.integers(1, 50)
)
def test_folding_never_moves_a_peak(peaks: list[float], rows: int, most: int) -> None:
    """A point has the highest of its steps, or less if a group of steps has its peak elsewhere."""
    table = folded(peaks, rows)
    width = steps_a_point([table], most)
    line = by_step([table], width)
    true = [max(peaks[at : at + width]) for at in range(0, len(peaks), width)]

    assert len(line.at) == len(true) <= most
    assert all(known <= high for known, high in zip(line.high.tolist(), true, strict=True))
    assert line.high.max() == max(peaks)
    assert line.high.argmax() == true.index(max(true))


@pytest.mark.parametrize(
    ("curves", "columns", "values"),
    [
        ([([0, 1, 2], [1, NAN, 3])], 10, ([0, 1, 2], *[[1, NAN, 3]] * 3)),
        (
            [([0, 0.9, 1, 1.1, 4], [1, 1, 9, 1, 1]), ([0, 2], [5, 5])],
            *(4, ([0.5, 1.5, 2.5, 3.5], [1, 5, 1, 1], [3, 7, 3, 1], [5, 9, 5, 1])),
        ),
        (
            [([0, 1, 7, 8], [1, 2, 8, 9]), ([0, 4], [3, 3])],
            *(4, ([1, 3, 5, 7], [2, 3, 3, 9], [2.5, 3.5, 4.5, 9], [3, 4, 6, 9])),
        ),
        ([([0, 1, 2], [1, 2, 3]), ([0, 1, 2], [NAN] * 3)], 2, ([0.5, 1.5], *[[1, 3]] * 3)),
    ],
    ids=[
        "one run with a break",
        "a peak and a shorter run",
        "far readings",
        "a run of breaks alone",
    ],
)
def test_runs_by_time_are_columns_at_their_middles(
    curves: list[tuple[list[float], list[float]]], columns: int, values: tuple[list[float], ...]
) -> None:
    """Peaks stay; a column without a reading lies between its neighbours; one run stays as it was."""
    line = by_time([np.array(curve) for curve in curves], columns)
    for drawn, known in zip((line.at, line.low, line.middle, line.high), values, strict=True):
        assert drawn.tolist() == pytest.approx(known, nan_ok=True)


@pytest.mark.parametrize(("width", "at"), [(1, [1.0, 2.0, 3.0, 4.0]), (2, [1.5, 3.5]), (4, [2.5])])
def test_steps_stand_in_the_middle_of_those_they_stand_for(width: int, at: list[float]) -> None:
    """A point of one step stands at its number."""
    table = np.array([[n, n, 1.0, float(n), n] for n in range(1, 5)])
    line = by_step([table], width)

    assert line.at.tolist() == at
    assert line.high.tolist() == [float(n * width) for n in range(1, len(at) + 1)]


def test_a_cell_of_one_step_has_no_pace_and_is_compared_by_time() -> None:
    """One step makes no line."""
    stage = Stage("cell", gpus=1)
    with stage.span("cell", "cell"), stage.span("step", "step 1") as span:
        stage.recorder.count(span.id, {"step": 1.0})
        stage.hold({"cuda:0": GIB}, 1.0)
    session = stage.finish()
    known = record_of(session, session.spans[0])

    assert known.pace == Pace(1)
    assert of_runs({"a": [known], "b": [known]}).by == "time"
