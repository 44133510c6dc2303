"""A budget and a leak on the chart of a real JupyterLab: in the cell's output, in the panel, in the card."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator

from tests.browser.lab import THEMES, Lab
from tests.browser.panel import Panel
from tests.browser.shown import CARD, SCRIPTED, open_charts

# What was found of the budget is told later.
LEAK = f"""{SCRIPTED.format("leak")}
told = [one for one in session.findings if one.kind == "budget"]
session.findings = [one for one in session.findings if one not in told]
"""
WARN = "session.findings[:0] = told\npublisher.finish()"
RAN_OUT = """
from hfmem_widget.session import Guide
for at in (6.0, 9.4):
    session.guides.append(Guide("cuda:0", "oom", "out of memory: asked 2.00 GiB", at, at, 5e9, 5e9))
publisher.finish()
"""
OVER = "cuda:0 exceeded its budget of 6.00 GiB"
GROWS = "Allocated memory grows by"
ORANGE = "rgb(213, 94, 0)"

PARTS = [f".hfmem-{name}" for name in ("bar", "head", "figures", "capacity", "chart", "foot")]
BOXES = """(root, names) => names.map(name => root.querySelector(name).getBoundingClientRect().toJSON())"""
STROKES = """root => [...root.querySelectorAll('.hfmem-plot path')].filter(path => path.style.stroke === '%s')
    .map(path => path.style.strokeDasharray || 'solid')"""


def boxes(chart: Locator) -> Any:
    return chart.evaluate(BOXES, PARTS)


def test_a_budget_and_a_trend_lie_over_the_data(lab: Lab) -> None:
    """In the cell and in the panel: a dashed line with its name, and a solid one; the pointer reads both."""
    charts = open_charts(lab, LEAK)
    for theme in THEMES:
        lab.theme(theme)
        look_at_judgements(charts)
        lab.screenshot(f"judged-{theme}")
    assert lab.errors == []


def look_at_judgements(charts: list[Locator]) -> None:
    """Check the lines over the data of each chart, and what the pointer is told of them."""
    for chart in charts:
        strokes = chart.evaluate(STROKES % ORANGE)
        assert "6px, 4px" in strokes
        assert "solid" in strokes
        assert chart.locator(".hfmem-plot .annotation", has_text="budget 6.00 GiB").count() == 1
        plot = chart.locator(".hfmem-plot")
        box = plot.bounding_box()
        assert box is not None
        plot.hover(position={"x": 0.6 * box["width"], "y": 0.7 * box["height"]})
        tip = chart.locator(".hfmem-tip:visible")
        tip.wait_for()
        assert "a step" in tip.inner_text()
        assert "budget" in tip.inner_text()


def test_a_warning_moves_nothing_and_is_read_in_the_panel_too(lab: Lab) -> None:
    """It takes the place of figures that the chart tells as well; the cell has it below its line."""
    charts = open_charts(lab, LEAK, WARN, CARD)
    before = [boxes(chart) for chart in charts]
    for chart in charts:
        notice = chart.locator(".hfmem-notice:visible")
        notice.wait_for()
        assert GROWS in notice.inner_text()
    lab.run_cell(2)
    for chart in charts:
        notice = chart.locator(".hfmem-notice:visible", has_text=OVER)
        notice.wait_for()
        assert GROWS in (notice.get_attribute("title") or "")
    assert [boxes(chart) for chart in charts] == before
    found = Panel(lab).element.locator(".hfmem-cell-found")
    assert found.count() == 1
    found.filter(has_text=OVER).wait_for()

    lab.run_cell(3)
    card = lab.cell(3).locator(".jp-OutputArea-output").last
    assert OVER in card.inner_text()
    lab.page.set_viewport_size({"width": 1400, "height": 1300})
    lab.screenshot("judged-warned")
    assert lab.errors == []


def test_where_memory_ran_out_there_is_a_mark_and_nothing_moves(lab: Lab) -> None:
    """In the cell and in the panel: a cross for each, and a word at the newest."""
    charts = open_charts(lab, LEAK, RAN_OUT)
    before = [boxes(chart) for chart in charts]
    lab.run_cell(2)
    for chart in charts:
        plot = chart.locator(".hfmem-plot")
        plot.locator(".annotation", has_text="out of memory: asked 2.00 GiB").wait_for()
        crosses = plot.locator(".scatterlayer .trace").filter(has=lab.page.locator("path.point"))
        counts = [one.locator("path.point").count() for one in crosses.all()]
        assert counts.count(2) >= 1
    assert [boxes(chart) for chart in charts] == before
    lab.screenshot("judged-ran-out")
    assert lab.errors == []
