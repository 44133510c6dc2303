"""The chart that stays, at every width: nothing of ours runs in it, so its figure alone must hold."""

import re
from typing import Any

from tests.browser.lab import THEMES, Lab
from tests.scenes.contrast import contrast

CHART = ".jp-RenderedPlotly"
COLUMNS = (447, 848, 1920)
"""Pixels of the notebook's outputs: beside the panel on a small screen, on a usual one, on a wide one."""

PAGES = {"light": "#ffffff", "dark": "#111111"}

DRAWN = """%load_ext hfmem_widget
from IPython.display import display
from tests.scenes import scripted_run
from hfmem_widget.view.chart.figure import chart_bundle
for name in {names!r}:
    session = scripted_run(name)
    display(chart_bundle(session, session.spans[0]), raw=True)
"""
RUNS = ["training", "cpu", "eight gpus", "hour with gaps"]

LONG_LEGENDS = """from IPython.display import display
from hfmem_widget.view.chart.figure import chart_bundle
from tests.scenes.stage import Stage
stage = Stage("host", gpus=0, interval=0.5)
parts = ("weights", "buffers", "optimizer", "gradients", "unattributed")
with stage.span("cell", "cell"):
    stage.hold({"cpu": 1 << 30}, 4.0, dict.fromkeys(parts, 100 << 20))
session = stage.finish()
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
        plot: ".draglayer .xy .nsewdrag", lanes: ".draglayer .xy2 .nsewdrag", svg: ".main-svg" };
    return Object.fromEntries(Object.entries(names).map(([name, selector]) => [name, box(selector)]));
}"""

INKS = """chart => [...chart.querySelectorAll(":is(.infolayer, .xtick, .ytick) text")]
    .map(one => one.querySelector("tspan") ?? one)
    .map(one => getComputedStyle(one).fill)"""

WIDTH = "() => document.querySelector('.jp-OutputArea-output').getBoundingClientRect().width"


def resize(lab: Lab, width: int) -> None:
    """Make the window so wide that the notebook's outputs have a width."""
    page = lab.page
    beside = page.evaluate("() => window.innerWidth") - page.evaluate(WIDTH)
    page.set_viewport_size({"width": round(width + beside), "height": 1600})
    lab.wait_until_still(CHART)


def boxes(lab: Lab) -> list[dict[str, Any]]:
    """Return where the parts of each chart are, in pixels of the page."""
    return [chart.evaluate(BOXES) for chart in lab.cell(0).locator(CHART).all()]


def overlap(one: list[float], two: list[float]) -> bool:
    """Whether two boxes share more than an edge."""
    (left, top, right, bottom), slack = one, 2
    return (
        left < two[2] - slack
        and two[0] < right - slack
        and top < two[3] - slack
        and two[1] < bottom - slack
    )


def test_a_higher_window_leaves_the_chart_as_high(lab: Lab) -> None:
    """One pixel more of the window's height, after a run, changes no chart's height."""
    lab.page.set_viewport_size({"width": 1280, "height": 800})
    lab.open("%load_ext hfmem_widget", WATCHED)
    lab.run_all()
    chart = lab.cell(1).locator(CHART)
    chart.locator(".legend").wait_for()
    heights = []
    for height in (800, 801, 802, 700):
        lab.page.set_viewport_size({"width": 1280, "height": height})
        lab.wait_until_still(CHART)
        heights.append(chart.evaluate("chart => chart.offsetHeight"))
        lab.screenshot(f"still-window-{height}")
    assert heights[0] > 200
    assert len(set(heights)) == 1, heights


def test_no_width_lays_the_legend_over_anything(lab: Lab) -> None:
    """Narrow, usual, wide, and back: the legend keeps off both axes and the data, and within the chart."""
    lab.open(DRAWN.format(names=RUNS))
    lab.run_all()
    lab.cell(0).locator(f"{CHART} .legend").nth(len(RUNS) - 1).wait_for()
    for width in (*COLUMNS, *COLUMNS[-2::-1]):
        resize(lab, width)
        drawn = boxes(lab)
        assert drawn
        for box in drawn:
            for other in ("times", "values", "plot", "lanes"):
                assert not overlap(box["legend"], box[other]), (width, other, box)
            (left, top, right, bottom), whole = box["legend"], box["svg"]
            assert whole[0] <= left, (width, box)
            assert whole[1] <= top, (width, box)
            assert right <= whole[2], (width, box)
            assert bottom <= whole[3], (width, box)


def test_no_name_of_a_long_legend_is_cut_off(lab: Lab) -> None:
    """Of a training on the host, in a window of 560 pixels."""
    lab.open(LONG_LEGENDS)
    lab.run_all()
    lab.cell(0).locator(f"{CHART} .legend").first.wait_for()
    lab.resize(560, 1600)
    lab.page.evaluate("() => jupyterapp.shell.collapseLeft()")
    lab.wait_until_still(CHART)
    lab.screenshot("still-long-legends", lab.cell(0))
    names = lab.cell(0).locator(f"{CHART} .legend .legendtext")
    cut_off = """all => {
        const bottom = it => it.getBoundingClientRect().bottom;
        return all.filter(it => bottom(it) > bottom(it.closest('svg'))).map(it => it.textContent);
    }"""

    assert names.count() > 6
    assert names.evaluate_all(cut_off) == []


def on(page: str, colour: str) -> str:
    """Return a colour as it looks on a page, such as #767676 for rgba(0, 0, 0, 0.54) on white."""
    *channels, alpha = (float(one) for one in [*re.findall(r"[\d.]+", colour), "1"][:4])
    under = [int(page[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = (alpha * one + (1 - alpha) * two for one, two in zip(channels, under, strict=True))
    return "#" + "".join(f"{round(one):02x}" for one in mixed)


def test_the_chart_is_as_wide_as_the_card_and_its_text_is_the_pages(lab: Lab) -> None:
    """At most 860 px, and every word has a contrast of at least 4.5, in both themes."""
    lab.open(DRAWN.format(names=RUNS[:1]))
    lab.run_all()
    lab.cell(0).locator(f"{CHART} .legend").wait_for()
    for theme in THEMES:
        lab.theme(theme)
        for width in COLUMNS:
            resize(lab, width)
            lab.screenshot(f"still-{width}-{theme}")
            chart, page = lab.cell(0).locator(CHART).first, PAGES[theme]
            assert chart.evaluate("chart => chart.offsetWidth") <= 860
            inks = {on(page, colour) for colour in chart.evaluate(INKS)}
            assert all(contrast(ink, page) >= 4.5 for ink in inks), inks
