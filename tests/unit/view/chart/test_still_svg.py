"""The still chart as SVG, read back: what is drawn stands where the figures say, and says what they are."""

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from hfmem_widget.analysis.curve import runs_of
from hfmem_widget.session import Session
from hfmem_widget.text import GIB
from hfmem_widget.view import palette
from hfmem_widget.view.chart.svg import chart_columns, chart_html
from tests.data.parted import NAN
from tests.data.svg import Drawing, Path, Point
from tests.scenes import shared_run
from tests.unit.view.chart.test_figure import CHARTED
from tests.unit.view.chart.test_guides import budget, oom, run, scene_of, trend
from tests.unit.view.chart.test_layers import session_of

PLOT = 170.0
"""Pixels from the axis to the top."""

FINE = 0.11
"""Pixels: what is written is rounded to tenths."""


class Shown:
    """A chart, and the scene it was drawn from."""

    def __init__(self, session: Session) -> None:
        span = session.spans[0]
        self.drawing = Drawing(chart_html(session, span))
        self.scene = scene_of(session, span, columns=chart_columns(session))
        self.foot = self.drawing.height - 20
        self.frames = self.drawing.frames()
        self.paths = self.frames[-1]

    def x(self, time: float) -> float:
        return self.drawing.width * time / self.scene.duration

    def y(self, value: float) -> float:
        return self.foot - PLOT * value / self.scene.top

    def at(self, points: list[Point]) -> list[Point]:
        return [(self.x(time), self.y(value)) for time, value in points]


@cache
def drawn_once(name: str) -> Shown:
    """Return the chart of a scripted run, drawn once for all tests, none of which changes it."""
    return Shown(shared_run(name))


def shown(session: Session | str) -> Shown:
    return drawn_once(session) if isinstance(session, str) else Shown(session)


def distance(point: Point, start: Point, stop: Point) -> float:
    """Return how far a point is from a straight line between two others."""
    wide, high = stop[0] - start[0], stop[1] - start[1]
    projection = (point[0] - start[0]) * wide + (point[1] - start[1]) * high
    share = min(max(projection / (wide**2 + high**2 or 1), 0.0), 1.0)
    return math.dist(point, (start[0] + share * wide, start[1] + share * high))


def check_run(points: list[Point], drawn: tuple[Point, ...]) -> None:
    """Check that what is drawn has corners at these points alone, and goes through all of them."""
    assert [one for one in drawn if min(math.dist(one, each) for each in points) > 3 * FINE] == []
    sides = list(pairwise([drawn[0], *drawn]))
    assert [one for one in points if min(distance(one, *ends) for ends in sides) >= 4 * FINE] == []


def strokes(shown: Shown) -> list[Path]:
    guides = {(palette.CASING, ""), (palette.PEAK, "6 4")}
    return [
        one
        for one in shown.paths
        if one.stroke != "none" and not one.title and (one.stroke, one.dash) not in guides
    ]


@pytest.mark.parametrize("name", CHARTED)
def test_every_line_goes_through_its_readings(name: str) -> None:
    """Each unbroken run of a series is a line, through all of its points and no other."""
    chart = shown(name)
    shown_lines = (one for one in chart.scene.lines if not one.is_aside)
    lines = [one for one in shown_lines if one.metric != "device_used"]
    drawn = strokes(chart)

    assert len(drawn) == len(lines) > 0
    for line, path in zip(lines, drawn, strict=True):
        runs = runs_of(line.points)
        assert len(path.runs) == len(runs) > 0
        for points, corners in zip(runs, path.runs, strict=True):
            check_run(chart.at(points), corners)


@pytest.mark.parametrize("name", CHARTED)
def test_every_area_stands_on_the_axis(name: str) -> None:
    """Used, allocated or the parts of it: each area goes from the axis up to the readings and back."""
    chart = shown(name)
    areas = [one for one in chart.paths if one.stroke == "none" and one.fill != palette.PEAK]
    used = [runs_of(one.points) for one in chart.scene.lines if one.metric == "device_used"]
    parts = [one.runs for one in reversed(chart.scene.layers)]
    own = [
        runs_of(one.points)
        for one in chart.scene.lines
        if (one.metric, one.device) == ("allocated", chart.scene.device.key)
    ]
    expected = [*used, *(parts or own)]

    assert len(areas) == len(expected) > 0
    for area, runs in zip(areas, expected, strict=True):
        assert area.closed
        assert len(area.runs) == len(runs)
        for points, corners in zip(runs, area.runs, strict=True):
            assert corners[0] == pytest.approx((chart.x(points[0][0]), chart.foot), abs=FINE)
            assert corners[-1] == pytest.approx((chart.x(points[-1][0]), chart.foot), abs=2 * FINE)
            check_run([*chart.at([(points[0][0], 0.0), *points, (points[-1][0], 0.0)])], corners)


def test_no_two_lines_look_alike() -> None:
    """Of eight GPUs each line has a colour or a dash of its own; what is reserved is dashed and fainter."""
    styles = [one.style for one in strokes(shown("eight gpus"))]
    allocated, reserved = strokes(shown("two gpus"))[:2]

    assert len({(stroke, dash) for stroke, _, dash, _ in styles}) == len(styles) == 9
    assert (allocated.dash, reserved.dash != "") == ("", True)
    assert reserved.opacity < allocated.opacity
    assert reserved.width < allocated.width


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("training", "cuda:0 memory over 11.6 s, peak 6.99 GiB exact"),
        ("at least", "cuda:0 memory over 11.6 s, peak ≥ 6.99 GiB"),
    ],
)
def test_the_picture_has_a_label_for_screen_readers(name: str, label: str) -> None:
    """The label has device, time and peak, and the budgets and shortages in the picture."""
    assert shown(name).drawing.label == label
    full_label = shown(run(budget(6.0), oom(4.0), oom(5.0, label="second"))).drawing.label
    assert full_label.endswith(", budget 6.0 GiB, second")


def test_a_budget_lies_at_its_bytes_and_a_trend_along_its_ends() -> None:
    """The budget is dashed and level; the trend has its casing, and its band about it."""
    chart = shown(run(budget(6.0), trend()))
    level = chart.y(6 * GIB)
    dashed = [one for one in chart.paths if one.dash == "6 4" and one.stroke == palette.PEAK]
    (line,) = [one for one in chart.paths if one.title == "+1 a step"]
    (band,) = [one for one in chart.paths if one.fill == palette.PEAK]
    casing = chart.paths[chart.paths.index(line) - 1]
    ends = chart.at([(2.0, GIB), (10.0, 5 * GIB)])

    assert np.allclose(dashed[0].runs[0], [(0.0, level), (1000.0, level)], rtol=0, atol=2 * FINE)
    assert np.allclose(line.runs[0], ends, rtol=0, atol=2 * FINE)
    assert casing.runs == line.runs
    assert casing.width > line.width
    corners = [(2.0, 1.5 * GIB), (10.0, 6 * GIB), (10.0, 4 * GIB), (2.0, 0.5 * GIB)]
    assert np.allclose(band.runs[0], chart.at(corners), rtol=0, atol=2 * FINE)
    assert band.closed


def test_the_peak_is_marked_at_a_reading_where_some_are_missing() -> None:
    """The mark stands at the highest reading that there is."""
    heights = [1.0, 2.0, NAN, 5.0, NAN, 3.0, 1.0]
    session = session_of([(one * GIB, *[NAN] * 5) for one in heights])
    ((x, _),) = Drawing(chart_html(session)).dots()

    assert x == pytest.approx(1000 * 3 / 6, abs=0.1)
