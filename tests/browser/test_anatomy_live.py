"""What memory is for, on the chart of a real JupyterLab: in the cell's output and in the panel alike."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator

from tests.browser.lab import THEMES, Lab
from tests.browser.shown import LOAD, SCRIPTED, open_charts
from tests.browser.test_watched_cell import draws, wait_for_draws

PARTS = ["weights", "buffers", "optimizer", "gradients", "activations"]


def legend(chart: Locator) -> list[str]:
    return chart.locator(".hfmem-legend-part:visible").all_inner_texts()


def areas(chart: Locator) -> int:
    return chart.locator(".hfmem-plot .fills path.js-fill").count()


def test_a_gpus_parts_stand_on_one_another_in_the_cell_and_in_the_panel(lab: Lab) -> None:
    """Named by the legend and by the bar of capacity, read by the pointer, and one switch hides them."""
    charts = open_charts(lab, SCRIPTED.format("training"))
    for theme in THEMES:
        lab.theme(theme)
        look_at_parts(charts)
        lab.screenshot(f"anatomy-{theme}")
    for chart in charts:
        # Its label as a whole would be clicked where the hidden checkbox is, a pixel above the legend.
        chart.locator(".hfmem-legend-part:visible").first.click()
        chart.locator(".hfmem-legend-word:visible").wait_for()
        assert legend(chart) == []
    assert lab.errors == []


def look_at_parts(charts: list[Locator]) -> None:
    """Check what each chart tells of the parts, and what it tells the pointer."""
    for chart in charts:
        chart.locator(".hfmem-legend-part", has_text="activations").wait_for()
        assert [name for name in legend(chart) if name in PARTS] == [
            name for name in PARTS if name in legend(chart)
        ]
        assert {"weights", "optimizer", "gradients", "activations"} <= set(legend(chart))
        assert areas(chart) >= 6
        told = chart.locator(".hfmem-capacity").get_attribute("aria-label") or ""
        assert [
            name
            for name in ("context", "weights", "optimizer states", "cache", "free")
            if name in told
        ] == [
            "context",
            "weights",
            "optimizer states",
            "cache",
            "free",
        ]
        plot = chart.locator(".hfmem-plot")
        box = plot.bounding_box()
        assert box is not None
        plot.hover(position={"x": 0.6 * box["width"], "y": 0.7 * box["height"]})
        tip = chart.locator(".hfmem-tip:visible")
        tip.wait_for()
        assert "optimizer" in tip.inner_text()
        assert "GiB" in tip.inner_text()


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
def test_a_cache_of_keys_and_values_grows_in_the_chart_while_it_is_generated(
    lab: Lab, training: str
) -> None:
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
    told = chart.locator(".hfmem-capacity").get_attribute("aria-label") or ""
    assert "KV cache" in told

    lab.let_end()
    for theme in THEMES[::-1]:
        lab.theme(theme)
        lab.screenshot(f"kv-done-{theme}", lab.cell(1))
    lab.unfold(1)
    card = lab.cell(1).inner_text()
    assert "each token takes 512.0 KiB (16 sequences, all layers)." in card
    assert "prefill" in card
    assert "decode" in card
    assert lab.errors == []


EVERY_PART = """
from hfmem_widget.session import HELD
from tests.data.recorders import recorder_of
metrics = ("reserved", "device_used", "allocated", *HELD, "python", "before", "unattributed")
row = (2.0**33, 2.0**33, 2.0**33, *[2.0**29] * (len(metrics) - 3))
session = recorder_of(*[row] * 9, keys=("cpu",), metrics=metrics).session
"""


def test_every_part_that_is_drawn_has_its_name_in_the_legend(lab: Lab) -> None:
    """Also in the narrow panel, and where a training on the CPU has nearly all of them."""
    for chart in open_charts(lab, EVERY_PART):
        chart.locator(".hfmem-legend-part", has_text="activations").wait_for()
        assert len(legend(chart)) >= 9
        low = "it => it.getBoundingClientRect().bottom"
        foot = chart.locator(".hfmem-legend").evaluate(low)
        names = chart.locator(".hfmem-legend-part:visible").all()
        assert max(name.evaluate(low) for name in names) <= foot + 1
    assert lab.errors == []
