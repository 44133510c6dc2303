"""The picture before it is drawn: where its labels stand, which way they turn, and how far its axes reach."""

import math
import re
from dataclasses import replace

import pytest

from hfmem_widget.analysis.curve import LEAST_SAMPLES, runs_of
from hfmem_widget.session import Device, Finding, Guide, Peak, Session
from hfmem_widget.text import GIB
from hfmem_widget.view.chart.figure import chart_bundle, figure_dict
from hfmem_widget.view.chart.guides import DrawnGuide
from hfmem_widget.view.chart.scene import DEVICE_USED_UP_TO, PeakMark, Scene, build_scene
from hfmem_widget.view.chart.shapes import Curve
from hfmem_widget.view.chart.svg import chart_html, curves_svg, word_svg
from tests.data.recorders import KEY, read, recorder_of
from tests.data.svg import Drawing
from tests.scenes import shared_run
from tests.scenes.stage import STARTED_AT, Stage
from tests.unit.view.chart.test_guides import budget, peak_of, run, scene, scene_of
from tests.unit.view.chart.test_layers import session_of

HIGHEST = scene(run()).ceiling / GIB
"""GiB, of what is drawn of the run that the budgets here are for."""

EMPTY = Scene(100.0, Device("cuda:0", "", total=80.0), (), None, None, 90.0, 100.0, (), ())
"""A hundred seconds wide and as many bytes high."""


def marked(*marks: tuple[float, float]) -> Scene:
    """Return a scene in which memory ran out at these seconds and bytes."""
    return replace(
        EMPTY,
        guides=tuple(DrawnGuide("cuda:0", "oom", f"at {at:g}", at, at, y, y) for at, y in marks),
    )


def budget_at(height: float) -> DrawnGuide:
    return DrawnGuide("cuda:0", "budget", f"budget {height:g}", 0.0, 100.0, height, height)


@pytest.mark.parametrize(
    ("share", "is_above", "top"),
    [
        (None, False, 1 / 0.86),
        (0.7, False, 1 / 0.86),
        (1.02, True, 1.02 / 0.86),
        (1.22, True, 1.22 / 0.86),
        (1.25, False, 1.25 / 0.89),
        (1.27, False, 1.27 / 0.89),
        (1.4, False, 1.4 / 0.89),
    ],
)
def test_the_peaks_label_has_its_place(share: float | None, top: float, *, is_above: bool) -> None:
    """It stands below a line that is far enough away, else above it; the axis is no higher than needed."""
    built = scene(run(*([] if share is None else [budget(share * HIGHEST)])))
    foot = share if is_above and share is not None else 1.0

    assert built.ceiling == pytest.approx(HIGHEST * GIB)
    assert built.top == pytest.approx(top * built.ceiling)
    assert peak_of(built).label_at == pytest.approx(foot * built.ceiling + 0.03 * built.top)


def test_on_a_plateau_the_peak_is_where_it_was_reached() -> None:
    """A later cell that only stays as high does not get the peak, though its samples are a little higher."""
    stage = Stage("notebook", gpus=1, interval=0.5)
    for label, size in (("model = load()", 1.0), ("time.sleep(2)", 1.004)):
        with stage.span("cell", label):
            stage.hold({"cuda:0": size * GIB}, 1.0)
            stage.hold({"cuda:0": size * GIB}, 1.0)
    session = stage.finish()
    whole, last = (peak_of(scene_of(session, span)) for span in (None, session.spans[1]))

    assert whole.time == 1.0
    assert whole.peak.value == pytest.approx(1.004 * GIB)
    assert last.time < 0.6


@pytest.mark.parametrize(("time", "at_left"), [(49.0, False), (50.0, False), (51.0, True)])
def test_lines_are_named_at_the_end_away_from_the_peak(time: float, *, at_left: bool) -> None:
    """Names stand at the left where the peak is in the right half."""
    peak = PeakMark(time, Peak(90.0, "exact"), "peak 90 B", 93.0)
    (budget, _) = replace(EMPTY, peak=peak, guides=(budget_at(50.0),)).words

    assert (budget.side == "right") is at_left


@pytest.mark.parametrize(
    ("duration", "unit"),
    [
        (7200.0, "h"),
        (7199.0, "min"),
        (120.0, "min"),
        (119.0, "s"),
        (2.0, "s"),
        (1.99, "ms"),
        (0.002, "ms"),
        (0.0001, "ms"),
    ],
)
def test_the_time_axis_has_the_largest_unit_of_which_two_fit(duration: float, unit: str) -> None:
    """The unit is hours from two hours on, and so forth down to milliseconds."""
    assert replace(EMPTY, duration=duration).frame.across[1] == unit


@pytest.mark.parametrize(
    ("marks", "at", "is_above"),
    [
        ([(50.0, 80.0)], 80.0, False),
        ([(50.0, 25.0)], 25.0, False),
        ([(50.0, 24.0)], 24.0, True),
        ([(50.0, 80.0), (90.0, 85.0)], 80.0, False),
        ([(20.0, 30.0), (90.0, 85.0)], 30.0, False),
        ([(19.0, 30.0), (90.0, 85.0)], 85.0, False),
        ([(50.0, 10.0), (90.0, 85.0)], 85.0, True),
        ([(90.0, 85.0), (50.0, 80.0)], 80.0, False),
    ],
)
def test_a_marks_word_is_clear_of_the_marks_near_it(
    marks: list[tuple[float, float]], at: float, *, is_above: bool
) -> None:
    """A word stands below the lowest mark that it may reach, or above the highest where there is no room."""
    (word,) = marked(*marks).words

    assert (word.level, word.is_above) == (at, is_above)
    assert word.at == max(time for time, _ in marks)


@pytest.mark.parametrize(
    ("capacity", "budgets", "named"),
    [
        (None, (), False),
        (None, (80.0,), False),
        (80.0, (), True),
        (80.0, (68.0,), True),
        (80.0, (70.0,), False),
        (80.0, (90.0,), False),
        (80.0, (92.0,), True),
        (80.0, (60.0, 79.0), False),
    ],
)
def test_the_capacity_is_named_where_no_budgets_word_is_near(
    capacity: float | None, budgets: tuple[float, ...], *, named: bool
) -> None:
    """Nearer than a label is high, above or below, its own word gives way."""
    built = replace(EMPTY, capacity=capacity, guides=tuple(budget_at(one) for one in budgets))

    assert ("capacity" in [word.text for word in built.words]) is named


@pytest.mark.parametrize(
    ("capacity", "height", "below"),
    [
        (None, 70.0, False),
        (80.0, 60.0, False),
        (80.0, 75.0, True),
        (80.0, 80.0, False),
        (80.0, 85.0, False),
    ],
)
def test_a_budgets_word_may_be_below(capacity: float | None, height: float, *, below: bool) -> None:
    """Just above it, at it or far below it, or where none is drawn, it stands on its line."""
    built = replace(EMPTY, capacity=capacity, guides=(budget_at(height),))
    words = [word_svg(one, built.frame, 100) for one in built.words]
    word = Drawing(f'<svg height="100">{"".join(words)}</svg>').words()[-1]

    assert word.y == pytest.approx(100 - height - 4 + (15 if below else 0))


@pytest.mark.parametrize(("last", "reaches"), [(50.0, 50.0), (100.0, 100.0), (130.0, 100.0)])
def test_a_trend_does_not_leave_the_plot(last: float, reaches: float) -> None:
    """What would stand above its upper edge is drawn along that."""
    built = replace(
        EMPTY, guides=(DrawnGuide("cuda:0", "trend", "+1 a step", 0.0, 100.0, 20.0, last),)
    )
    drawn = curves_svg(built.guide_curves, built.frame, 200)
    shapes = f'<svg viewBox="0 0 1000 200" height="200">{drawn}</svg>'
    (frame,) = Drawing(f'<svg height="200">{shapes}</svg>').frames()

    corners = {corner for one in frame for run in one.runs for corner in run}
    assert corners == {(0.0, 160.0), (1000.0, 200 - 2 * reaches)}


def test_a_lines_runs_are_what_lies_between_its_breaks() -> None:
    """Breaks at the ends, or several together, make no empty run."""
    nan = float("nan")
    points = [(0.0, nan), (1.0, 1.0), (2.0, 2.0), (3.0, nan), (4.0, nan), (5.0, 3.0), (6.0, nan)]

    assert Curve(points).runs == [[(1.0, 1.0), (2.0, 2.0)], [(5.0, 3.0)]]


@pytest.mark.parametrize("name", ["training", "hour with gaps", "eight gpus"])
def test_a_coarser_scene_keeps_all_that_is_highest(name: str) -> None:
    """It has fewer points, from the same first to the same last, and the extremes of all lines and layers."""
    session = shared_run(name)
    fine, coarse = (scene_of(session, session.spans[0], columns=at) for at in (360, 60))
    assert fine.lines

    for one, other in zip(fine.lines, coarse.lines, strict=True):
        runs, fewer = runs_of(one.points), runs_of(other.points)
        assert set(fewer[0]) <= set(runs[0])
        assert len(other.points) <= max(len(runs), 2 * 60 + 4 * len(runs))
        for whole, rest in zip(runs, fewer, strict=True):
            assert (whole[0], whole[-1]) == (rest[0], rest[-1])
            heights, rest_heights = ([height for _, height in part] for part in (whole, rest))
            assert (min(heights), max(heights)) == (min(rest_heights), max(rest_heights))
    for layer in coarse.layers:
        assert sum(map(len, layer.runs)) == len(layer.heights)


def test_the_axis_of_a_gpu_that_holds_nothing_can_be_read() -> None:
    """The axis of an empty GPU ends at a MiB, and not at a byte."""
    stage = Stage("idle", gpus=1)
    with stage.span("cell", "idle"):
        stage.hold({}, 2.0)
    session = stage.finish()
    session.devices = session.devices[:1]

    assert scene_of(session).frame.levels.texts[-1] == "1.0 MiB"


@pytest.mark.parametrize(("samples", "drawn"), [(LEAST_SAMPLES - 1, False), (LEAST_SAMPLES, True)])
def test_a_chart_needs_some_samples(samples: int, *, drawn: bool) -> None:
    """With too few samples, or missing readings alone, there is no chart in any form."""
    session = session_of([(float(at + 1),) for at in range(samples)], metrics=["allocated"])
    missing = session_of([(math.nan,)] * samples, metrics=["allocated"])

    assert (build_scene(session, columns=100) is not None) is drawn
    assert bool(chart_html(session)) is drawn
    assert bool(figure_dict(session)["data"]) is drawn
    assert build_scene(missing, columns=100) is None


@pytest.mark.parametrize(
    ("used", "shown"), [(1.9, True), (DEVICE_USED_UP_TO, True), (2.1, False), (2.9, False)]
)
def test_what_the_device_uses_is_drawn_if_not_far_above(used: float, *, shown: bool) -> None:
    """It is drawn up to twice what this process has; more would press the curves down."""
    rows = [(10 * GIB, used * 10 * GIB)] * 5
    built = scene_of(session_of(rows, metrics=("allocated", "device_used")))

    assert ("device_used" in [one.metric for one in built.lines]) is shown


CELLS = ((5.0, 15.0, 4.0), (3615.0, 3625.0, 9.0))
"""When two cells began and ended, an hour apart, and the GiB of their peaks."""


def notebook(*cells: tuple[float, float, float]) -> Session:
    recorder = recorder_of(total=20 * GIB)
    recorder.session.started_at = STARTED_AT
    for start, stop, peak in cells:
        cell = recorder.open_span("cell", f"[{start:g}]", read(recorder, start, GIB))
        for tenth in range(1, 100):
            height = peak if tenth == 50 else 1 + tenth / 100
            read(recorder, start + tenth * (stop - start) / 100, height * GIB)
        after = read(recorder, stop, 2 * GIB)
        recorder.close_span(cell.id, after, {KEY: Peak(peak * GIB, "exact")}, "done")
    return recorder.session


def test_cells_are_as_wide_as_they_are_long_and_what_is_between_them_is_narrow() -> None:
    """The peak and the lines lie in the cell that they are of."""
    drawn = scene_of(notebook(*CELLS), columns=700)
    first, second = drawn.bars

    assert [bar.stop - bar.start for bar in drawn.bars] == pytest.approx([10.0, 10.0])
    assert second.start - first.stop < 1
    assert drawn.duration < 22
    assert peak_of(drawn).time == pytest.approx(second.start + 5, abs=0.1)
    (line,) = drawn.lines
    assert max(line.points, key=lambda point: point[1])[0] == pytest.approx(
        peak_of(drawn).time, abs=0.1
    )


def test_the_axis_has_the_time_of_day() -> None:
    """The axis of a notebook has the time of day, and names each second once."""
    session = notebook(*CELLS)
    named = [text for text in figure_dict(session)["layout"]["xaxis"]["ticktext"] if text]

    assert named[0] == "00:00:00 UTC"
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d( UTC)?", text) for text in named)
    assert len({*named}) == len(named)
    assert named[-1].startswith("01:00:")
    bundle = chart_bundle(session)
    assert bundle is not None
    assert "over 1 h" in bundle["text/plain"]


@pytest.mark.parametrize("began", [-(2.0**59), 2.0**59])
def test_a_recording_may_have_begun_in_any_year(began: float) -> None:
    """Whatever year a file from outside begins in, the axis has a time of day."""
    session = notebook(*CELLS)
    session.started_at = began
    first, *_ = figure_dict(session)["layout"]["xaxis"]["ticktext"]

    assert re.fullmatch(r"\d\d:\d\d:\d\d UTC", first)


def test_a_budget_is_crossed_where_that_is_drawn() -> None:
    """The crossing is drawn in the second cell, an hour after the session began."""
    session = notebook(*CELLS)
    session.guides.append(Guide("cuda:0", "budget", "budget", 0.0, math.inf, 8 * GIB, 8 * GIB))
    evidence = {"device": "cuda:0", "time": 3620.0}
    session.findings.append(Finding("budget", "warn", "crossed", evidence=evidence))
    drawn = scene_of(session, columns=700)
    (guide,) = drawn.guides

    assert guide.crossed_at == pytest.approx(drawn.bars[1].start + 5, abs=0.01)


@pytest.mark.parametrize("cells", [CELLS[:1], ((0.0, 10.0, 4.0), (14.0, 20.0, 9.0))])
def test_short_pauses_are_drawn_over_seconds(cells: tuple[tuple[float, float, float], ...]) -> None:
    """Cells with short pauses are drawn over seconds, as a single cell is."""
    drawn = scene_of(notebook(*cells), columns=700)

    assert drawn.times is None
    assert drawn.duration == cells[-1][1]
