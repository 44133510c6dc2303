"""The chart that stays, at every width: nothing of ours runs in it, so its figure alone must hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.lab import Lab

CHART = ".jp-RenderedPlotly"
COLUMNS = (447, 848, 1500)
"""Pixels of the notebook's outputs: beside the panel on a small screen, on a usual one, on a wide one."""

DRAWN = """%load_ext hfmem_widget
from IPython.display import display
from hfmem_widget.testing import scripted_run
from hfmem_widget.view.figure import chart_bundle
for name in {names}:
    session = scripted_run(name)
    display(chart_bundle(session, session.spans[0]), raw=True)
"""

WATCHED = """%%memwatch
import time
kept = []
for _ in range(30):
    kept.append(bytearray(2_000_000))
    time.sleep(0.05)
"""

BOXES = """chart => {
    const box = selector => {
        const found = chart.querySelector(selector)?.getBoundingClientRect();
        return found && [found.left, found.top, found.right, found.bottom];
    };
    const names = { legend: ".legend", times: ".xaxislayer-above", values: ".yaxislayer-above",
        plot: ".draglayer .xy .nsewdrag", svg: ".main-svg" };
    return Object.fromEntries(Object.entries(names).map(([name, selector]) => [name, box(selector)]));
}"""


def resize(lab: Lab, width: int, height: int = 800) -> None:
    """Make the window so large that the notebook's outputs are so wide, and wait until charts follow."""
    outputs = lab.cell(0).locator(".jp-OutputArea-output").first
    page_width = lab.page.viewport_size["width"]
    beside = page_width - outputs.bounding_box()["width"]
    lab.page.set_viewport_size({"width": round(width + beside), "height": height})
    lab.page.wait_for_timeout(1200)


def boxes(lab: Lab) -> list[dict[str, Any]]:
    """Return where the parts of each chart are, in pixels of the page."""
    return [chart.evaluate(BOXES) for chart in lab.cell(0).locator(CHART).all()]


def overlap(one: list[float], two: list[float]) -> bool:
    """Whether two boxes share more than an edge."""
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


@pytest.fixture
def charts(lab: Lab) -> Lab:
    """Return a page of 1280 by 800 with the charts of some runs."""
    lab.page.set_viewport_size({"width": 1280, "height": 800})
    lab.open(DRAWN.format(names=["training", "cpu", "eight gpus"]))
    lab.run_all()
    lab.cell(0).locator(f"{CHART} .legend").nth(2).wait_for()
    return lab


def test_a_higher_window_leaves_the_chart_as_high(lab: Lab) -> None:
    """One pixel more of the window's height, after a run, changes no chart's height."""
    lab.page.set_viewport_size({"width": 1280, "height": 800})
    lab.open("%load_ext hfmem_widget", WATCHED)
    lab.run_all()
    chart = lab.cell(1).locator(CHART)
    chart.locator(".legend").wait_for()
    lab.page.wait_for_timeout(1000)
    heights = [chart.bounding_box()["height"]]
    for height in (801, 802, 700):
        lab.page.set_viewport_size({"width": 1280, "height": height})
        lab.page.wait_for_timeout(1200)
        heights.append(chart.bounding_box()["height"])
    assert heights[0] > 200
    assert heights[1:] == heights[:1] * 3


def test_no_width_lays_the_legend_over_anything(charts: Lab) -> None:
    """Narrow, usual, wide, and back: the legend keeps off both axes and the data, and within the chart."""
    for width in (*COLUMNS, *COLUMNS[::-1]):
        resize(charts, width)
        charts.screenshot(f"still-{width}")
        for box in boxes(charts):
            assert not overlap(box["legend"], box["times"]), (width, box)
            assert not overlap(box["legend"], box["values"]), (width, box)
            assert not overlap(box["legend"], box["plot"]), (width, box)
            assert box["svg"][1] <= box["legend"][1] < box["legend"][3] <= box["svg"][3], (
                width,
                box,
            )
            assert box["legend"][2] <= box["svg"][2], (width, box)
