"""The still chart of all ranks: each by itself where they are few, else a band."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hfmem_widget.session import Session
from hfmem_widget.session.series import TABLE
from hfmem_widget.text import GIB
from hfmem_widget.view import palette
from hfmem_widget.view.chart.figure import figure_dict
from hfmem_widget.view.chart.scene import BAND, Scene, build_scene
from hfmem_widget.view.chart.svg import chart_html
from tests.data.overviews import EIGHT, MANY, TWO, Plan, overview, shared_overview


def scene_of(session: Session) -> Scene:
    scene = build_scene(session, columns=240)
    assert scene is not None
    return scene


@pytest.mark.parametrize("plan", [TWO, EIGHT], ids=lambda plan: str(plan.world))
def test_a_few_ranks_have_a_line_each(plan: Plan) -> None:
    """Told apart by colour and dash, and no band."""
    curves = scene_of(shared_overview(plan)).line_curves

    ranked = sorted(curves, key=lambda curve: curve.rank)
    assert [curve.name for curve in ranked] == [f"rank {at}" for at in range(plan.world)]
    assert not any(curve.fill for curve in curves)
    strokes = [(curve.stroke.colour, curve.stroke.dash) for curve in ranked if curve.stroke]
    assert strokes == list(palette.DEVICES[: plan.world])


def test_many_ranks_have_a_band_with_the_median_and_the_highest() -> None:
    """The highest on top."""
    curves = scene_of(shared_overview(MANY)).line_curves

    assert [curve.name for curve in curves if curve.is_key] == [BAND, "median", "highest rank"]
    assert [curve.tip for curve in curves if curve.tip] == ["lowest rank", "median", "highest rank"]


def test_the_band_lies_between_the_lowest_and_the_highest() -> None:
    """From the one forwards, along the other back."""
    session = shared_overview(MANY)
    scene = scene_of(session)
    lowest, _, highest = scene.lines
    band = scene.line_curves[0]

    assert band.points == [*highest.points, *reversed(lowest.points)]
    assert all(low[1] <= high[1] for low, high in zip(lowest.points, highest.points, strict=False))


def test_a_gap_parts_the_band() -> None:
    """Nothing is drawn where nothing was sampled."""
    session = overview(MANY)
    session.timeline.add_gap(300.2, 340.2)
    band = scene_of(session).line_curves[0]

    assert len(band.runs) == 2
    html = chart_html(session)
    filled = html.index(f'fill="{TABLE["lowest"].color}"')
    assert html[html.rindex("<path", 0, filled) : filled].count("z") == 2


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (TWO, "worst: rank 1, 7.41 GiB exact, backward"),
        (MANY, "worst: rank 417, 68.8 GiB exact, backward"),
    ],
    ids=["2", "1024"],
)
def test_the_peak_has_the_name_of_the_worst_rank(plan: Plan, text: str) -> None:
    """In both forms of the chart."""
    session = shared_overview(plan)

    assert text in chart_html(session)
    assert f"<b>{text}</b>" in [
        note["text"] for note in figure_dict(session)["layout"]["annotations"]
    ]


def test_the_capacity_is_that_of_the_smallest_device() -> None:
    """As the device of all ranks has it."""
    session = shared_overview(replace(MANY, total=75 * GIB))

    assert scene_of(session).capacity == 75 * GIB


def test_ranks_of_their_own_are_not_lines_of_the_chart() -> None:
    """They have tabs in the live chart; here they would stand twice."""
    scene = scene_of(shared_overview(EIGHT))

    assert scene.devices == ("ranks",)
    assert scene.layers == ()


def test_a_silent_rank_has_no_line_while_it_is_silent() -> None:
    """Its line ends."""
    scene = scene_of(shared_overview(EIGHT))
    silent = next(line.points for line in scene.lines if line.metric == "rank3")

    assert max(time for time, value in silent if not math.isnan(value)) < 0.88 * scene.duration
