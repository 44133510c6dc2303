"""The live chart in a cell's output and in the panel: what memory is for, budget and leak, all ranks."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator

from tests.browser.lab import THEMES, Lab
from tests.browser.panel import Panel
from tests.browser.shown import CARD, LOAD, SCRIPTED, draws, open_charts, wait_for_draws

PARTS = ["weights", "buffers", "optimizer", "gradients", "activations"]


def legend(chart: Locator) -> list[str]:
    return chart.locator(".hfmem-legend-part:visible").all_inner_texts()


def in_both_themes(lab: Lab, charts: list[Locator], shot: str) -> Iterator[Locator]:
    for theme in THEMES:
        lab.theme(theme)
        yield from charts
        lab.screenshot(f"{shot}-{theme}")


def tip_of(chart: Locator) -> str:
    """Point at the data of a chart, and return the text that it shows there."""
    plot, tip = chart.locator(".hfmem-plot"), chart.locator(".hfmem-tip:visible")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": 0.6 * box["width"], "y": 0.7 * box["height"]})
    tip.wait_for()
    return tip.inner_text()


def test_a_gpus_parts_stand_on_one_another_in_the_cell_and_in_the_panel(lab: Lab) -> None:
    """Named by the legend and by the bar of capacity, read by the pointer, and one switch hides them."""
    charts = open_charts(lab, SCRIPTED.format("training"))
    assert len(charts) == 2
    for chart in in_both_themes(lab, charts, "anatomy"):
        chart.locator(".hfmem-legend-part", has_text="activations").wait_for()
        names = [name for name in legend(chart) if name in PARTS]
        assert names == [name for name in PARTS if name in names]
        assert {"weights", "optimizer", "gradients", "activations"} <= set(names)
        assert chart.locator(".hfmem-plot .fills path.js-fill").count() >= 6
        capacity = chart.locator(".hfmem-capacity").get_attribute("aria-label") or ""
        for name in ("context", "weights", "optimizer states", "cache", "free"):
            assert name in capacity
        tip = tip_of(chart)
        assert "optimizer" in tip
        assert "GiB" in tip
    for chart in charts:
        # Its label as a whole would be clicked where the hidden checkbox is, a pixel above the legend.
        chart.locator(".hfmem-legend-part:visible").first.click()
        chart.locator(".hfmem-legend-word:visible").wait_for()
        assert legend(chart) == []


GENERATE = """
%%memwatch --label generate
import os, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_num_threads(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=99, hidden_size=512, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8,
    max_position_embeddings=1024, bos_token_id=1, eos_token_id=None, pad_token_id=0))
ids = torch.ones(16, 64, dtype=torch.long)
def enough(ids, scores):
    return torch.full((len(ids),), os.path.exists("enough"))
texts = model.generate(ids, max_new_tokens=900, do_sample=False, stopping_criteria=[enough])
"""


@pytest.mark.slow
def test_a_kv_cache_grows_in_the_chart_while_it_is_generated(lab: Lab, training: str) -> None:
    """A layer of its own, live; the card tells its bytes a token, and the phases of `generate`."""
    lab.open(LOAD, GENERATE, kernel=training)
    lab.run_all(wait=False)
    chart = lab.cell(1).locator(".hfmem-root")
    chart.locator(".hfmem-legend-part:visible", has_text="KV cache").wait_for()
    # So many that it has grown: a picture of it is taken.
    wait_for_draws(lab, draws(lab) + 8)
    for theme in THEMES:
        lab.theme(theme)
        lab.screenshot(f"kv-busy-{theme}")
    label = chart.locator(".hfmem-capacity").get_attribute("aria-label") or ""
    assert "KV cache" in label

    lab.let_end()
    for theme in THEMES[::-1]:
        lab.theme(theme)
        lab.screenshot(f"kv-done-{theme}", lab.cell(1))
    lab.unfold(1)
    card = lab.cell(1).inner_text()
    assert "each token takes 512.0 KiB (16 sequences, all layers)." in card
    assert "prefill" in card
    assert "decode" in card


EVERY_PART = """
from hfmem_widget.session import HELD
from tests.data.recorders import recorder_of
metrics = ("reserved", "device_used", "allocated", *HELD, "python", "before", "unattributed")
row = (2.0**33, 2.0**33, 2.0**33, *[2.0**29] * (len(metrics) - 3))
session = recorder_of(*[row] * 9, keys=("cpu",), metrics=metrics).session
"""


def test_every_part_that_is_drawn_has_its_name_in_the_legend(lab: Lab) -> None:
    """Also in the narrow panel, and where a training on the CPU has nearly all of them."""
    charts = open_charts(lab, EVERY_PART)
    assert len(charts) == 2
    for chart in charts:
        chart.locator(".hfmem-legend-part", has_text="activations").wait_for()
        assert len(legend(chart)) >= 9
        low = "it => it.getBoundingClientRect().bottom"
        foot = chart.locator(".hfmem-legend").evaluate(low)
        names = chart.locator(".hfmem-legend-part:visible").all()
        assert max(name.evaluate(low) for name in names) <= foot + 1


# The findings about the budget are shown later.
LEAK = f"""{SCRIPTED.format("leak")}
budgets = [one for one in session.findings if one.kind == "budget"]
session.findings = [one for one in session.findings if one not in budgets]
"""
WARN = "session.findings[:0] = budgets\npublisher.finish()"
RAN_OUT = """
from hfmem_widget.session import Guide
for at in (6.0, 9.4):
    session.guides.append(Guide("cuda:0", "oom", "out of memory: asked 2.00 GiB", at, at, 5e9, 5e9))
publisher.finish()
"""
OVER = "cuda:0 exceeded its budget of 6.00 GiB"
GROWS = "Allocated memory grows by"
ORANGE = "rgb(213, 94, 0)"

JUDGED_PARTS = [
    f".hfmem-{name}" for name in ("bar", "head", "figures", "capacity", "chart", "foot")
]
JUDGED_BOXES = """(root, names) => names.map(
    name => root.querySelector(name).getBoundingClientRect().toJSON())"""
STROKES = """root => [...root.querySelectorAll('.hfmem-plot path')].filter(path => path.style.stroke === '%s')
    .map(path => path.style.strokeDasharray || 'solid')"""


def judged_boxes(chart: Locator) -> Any:
    return chart.evaluate(JUDGED_BOXES, JUDGED_PARTS)


def test_a_budget_and_a_trend_lie_over_the_data(lab: Lab) -> None:
    """In the cell and in the panel: a dashed line with its name, and a solid one; the pointer reads both."""
    charts = open_charts(lab, LEAK)
    assert len(charts) == 2
    for chart in in_both_themes(lab, charts, "judged"):
        assert {"6px, 4px", "solid"} <= set(chart.evaluate(STROKES % ORANGE))
        assert chart.locator(".hfmem-plot .annotation", has_text="budget 6.00 GiB").count() == 1
        tip = tip_of(chart)
        assert "a step" in tip
        assert "budget" in tip


def test_a_warning_moves_nothing_and_is_read_in_the_panel_too(lab: Lab) -> None:
    """It takes the place of figures that the chart tells as well; the cell has it below its line."""
    charts = open_charts(lab, LEAK, WARN, CARD)
    before = [judged_boxes(chart) for chart in charts]
    for chart in charts:
        notice = chart.locator(".hfmem-notice:visible")
        notice.wait_for()
        assert GROWS in notice.inner_text()
    lab.run_cell(2)
    for chart in charts:
        notice = chart.locator(".hfmem-notice:visible", has_text=OVER)
        notice.wait_for()
        assert GROWS in (notice.get_attribute("title") or "")
    assert [judged_boxes(chart) for chart in charts] == before
    found = Panel(lab).element.locator(".hfmem-cell-found")
    assert found.count() == 1
    found.filter(has_text=OVER).wait_for()

    lab.run_cell(3)
    assert OVER in lab.cell(3).locator(".jp-OutputArea-output").last.inner_text()
    lab.page.set_viewport_size({"width": 1400, "height": 1300})
    lab.screenshot("judged-warned")


def test_where_memory_ran_out_there_is_a_mark_and_nothing_moves(lab: Lab) -> None:
    """In the cell and in the panel: a cross for each, and a word at the newest."""
    charts = open_charts(lab, LEAK, RAN_OUT)
    before = [judged_boxes(chart) for chart in charts]
    lab.run_cell(2)
    for chart in charts:
        plot = chart.locator(".hfmem-plot")
        plot.locator(".annotation", has_text="out of memory: asked 2.00 GiB").wait_for()
        crosses = plot.locator(".scatterlayer .trace").filter(has=lab.page.locator("path.point"))
        assert [one.locator("path.point").count() for one in crosses.all()].count(2) >= 1
    assert [judged_boxes(chart) for chart in charts] == before
    lab.screenshot("judged-ran-out")


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

RANKS_PARTS = [
    f".hfmem-{name}" for name in ("bar", "head", "chart", "foot", "ranks-strip", "ranks-tables")
]
# Not on the page, which JupyterLab scrolls to the cell that runs.
RANKS_BOXES = """(root, names) => [root, ...names.map(name => root.querySelector(name))].map(part => {
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


def ranks_boxes(chart: Locator) -> Any:
    return chart.evaluate(RANKS_BOXES, RANKS_PARTS)


def test_all_ranks_are_seen_while_they_run_and_nothing_moves(lab: Lab) -> None:
    """The worst by name, the strip, the table; who falls silent is grey, and a reload keeps all of it."""
    charts = open_charts(lab, RUN, MORE, CARD)
    for chart in charts:
        chart.locator(".hfmem-plot .annotation", has_text="worst: rank 11").wait_for()
        assert chart.locator(".hfmem-tab").all_inner_texts()[0] == "ranks"
        assert chart.locator(".hfmem-ranks-worst").inner_text() == "11"
        assert len(chart.evaluate(COLOURS)) > 2
        assert SILENT not in chart.evaluate(COLOURS)
    before = [ranks_boxes(chart) for chart in charts]
    lab.screenshot("ranks-before")

    lab.run_cell(2)
    for chart in charts:
        chart.locator("td", has_text="silent for").first.wait_for()
        assert SILENT in chart.evaluate(COLOURS)
    assert [ranks_boxes(chart) for chart in charts] == before
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
