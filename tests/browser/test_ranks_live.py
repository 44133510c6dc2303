"""All ranks of a run in a real JupyterLab: in the cell's output, in the panel, and on the card."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator

from tests.browser.lab import Lab
from tests.browser.panel import Panel
from tests.browser.shown import CARD, open_charts

# A simulated run through the real collector.
RUN = """
from hfmem_widget.ranks.collector import Collector
from tests.fakes.ranks import Script, SimulatedRun

run = SimulatedRun(Script(world=16, heavier={11: 1.2}, killed={4: 30.0, 5: 30.0}))
collector = Collector()

def play(seconds):
    for _ in range(seconds):
        for stream, data in run.advance(1.0):
            collector.feed(stream, data)
        collector.tick(run.began + run.now)

play(32)
session = collector.session
"""
MORE = "play(12)\npublisher.finish()"

PARTS = [
    f".hfmem-{name}" for name in ("bar", "head", "chart", "foot", "ranks-strip", "ranks-tables")
]
# Not on the page, which JupyterLab scrolls to the cell that runs.
BOXES = """(root, names) => [root, ...names.map(name => root.querySelector(name))].map(part => {
    const [outer, { x, y, width, height }] = [root, part].map(one => one.getBoundingClientRect());
    return [x - outer.x, Math.round(10 * (y - outer.y)), width, height];
})"""
COLOURS = """root => {
    const canvas = root.querySelector('canvas');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4) if (data[at + 3]) seen.add(data.slice(at, at + 3).join());
    return [...seen];
}"""
SILENT = "184,190,197"


def boxes(chart: Locator) -> Any:
    return chart.evaluate(BOXES, PARTS)


def test_all_ranks_are_seen_while_they_run_and_nothing_moves(lab: Lab) -> None:
    """The worst by name, the strip, the table; who falls silent is grey, and a reload keeps all of it."""
    charts = open_charts(lab, RUN, MORE, CARD)
    for chart in charts:
        chart.locator(".hfmem-plot .annotation", has_text="worst: rank 11").wait_for()
        assert chart.locator(".hfmem-tab").all_inner_texts()[0] == "ranks"
        assert chart.locator(".hfmem-ranks-worst").inner_text() == "11"
        assert len(chart.evaluate(COLOURS)) > 2
        assert SILENT not in chart.evaluate(COLOURS)
    before = [boxes(chart) for chart in charts]
    lab.screenshot("ranks-before")

    lab.run_cell(2)
    for chart in charts:
        chart.locator("td", has_text="silent for").first.wait_for()
        assert SILENT in chart.evaluate(COLOURS)
    assert [boxes(chart) for chart in charts] == before
    lab.theme("dark")
    lab.screenshot("ranks-dark")

    lab.run_cell(3)
    card = lab.cell(3).locator(".jp-OutputArea-output").last
    card.get_by_text("16 ranks on 2 nodes").wait_for()
    assert card.locator("image").count() == 1
    card.scroll_into_view_if_needed()
    lab.screenshot("ranks-card")

    lab.reload()
    chart = Panel(lab).element.locator(".hfmem-root")
    chart.locator("td", has_text="silent for").first.wait_for()
    assert SILENT in chart.evaluate(COLOURS)
    assert lab.errors == []
