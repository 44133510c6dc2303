"""What memory is for, on the chart of a real JupyterLab: in the cell's output and in the panel alike."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator

from tests.browser.lab import Lab
from tests.browser.panel import Panel

LOAD = "%load_ext hfmem_widget"
# A scripted run through the real wire, as if it went on: the panel opens for nothing else.
SHOW = """
from IPython.display import display
from hfmem_widget.testing import scripted_run
from hfmem_widget.view.wire.publisher import Publisher
from hfmem_widget.view.wire.widget import MemoryWidget

session = scripted_run({name!r})
session.stopped_at = None
publisher = Publisher(session, lambda *sent: widget.publish(*sent))
widget = MemoryWidget(
    session, publisher.run, on_seen=publisher.seen, on_resync=publisher.resync
)
display(widget)
publisher.finish()
"""
PARTS = ["weights", "buffers", "optimizer", "gradients", "activations"]


def open_charts(lab: Lab, name: str) -> list[Locator]:
    """Show a scripted run, and return the chart in the cell and the one in the panel once both drew."""
    lab.open(LOAD, SHOW.format(name=name))
    lab.run_all()
    panel = Panel(lab)
    panel.element.wait_for()
    panel.wait_for_draws(2)
    charts = [lab.cell(1).locator(".hfmem-root"), panel.element.locator(".hfmem-root")]
    for chart in charts:
        chart.locator(".hfmem-plot .main-svg").first.wait_for()
    return charts


def legend(chart: Locator) -> list[str]:
    """Return the parts that a legend names."""
    return chart.locator(".hfmem-legend-part:visible").all_inner_texts()


def areas(chart: Locator) -> int:
    """Return how many areas are painted."""
    return chart.locator(".hfmem-plot .fills path.js-fill").count()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_gpus_parts_stand_on_one_another_in_the_cell_and_in_the_panel(
    lab: Lab, theme: str
) -> None:
    """Named by the legend and by the bar of capacity, read by the pointer, and one switch hides them."""
    charts = open_charts(lab, "training")
    lab.theme("dark" if theme == "dark" else "light")
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
    lab.screenshot(f"anatomy-{theme}")
    for chart in charts:
        chart.locator(".hfmem-legend-parts").click()
        chart.locator(".hfmem-legend-word:visible").wait_for()
        assert legend(chart) == []
    assert lab.errors == []


def test_where_nothing_was_found_the_area_is_one(lab: Lab) -> None:
    """Neither names nor a switch, and the bar tells what is allocated as one."""
    for chart in open_charts(lab, "two gpus"):
        assert chart.locator(".hfmem-legend-parts:visible").count() == 0
        told = chart.locator(".hfmem-capacity").get_attribute("aria-label") or ""
        assert "allocated" in told
        assert "weights" not in told
    lab.screenshot("anatomy-nothing-found")
    assert lab.errors == []


LOOP = """
%%memwatch --label loop
import time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(1536, 1536) for _ in range(6)])
optimizer = torch.optim.AdamW(model.parameters())
until = time.monotonic() + {seconds}
while time.monotonic() < until:
    loss = model(torch.ones(256, 1536)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_loop_by_hand_shows_its_parts_while_it_is_busy(lab: Lab) -> None:
    """In a real kernel weights, optimizer states and gradients are told apart before the cell has ended."""
    lab.open(LOAD, LOOP.format(seconds=12))
    lab.run_all(wait=False)
    chart = lab.cell(1).locator(".hfmem-root")
    for part in ("weights", "optimizer", "activations"):
        chart.locator(".hfmem-legend-part:visible", has_text=part).wait_for()
    told = chart.locator(".hfmem-capacity").get_attribute("aria-label") or ""
    lab.screenshot("anatomy-loop-busy")
    assert "running" in chart.inner_text()
    assert "weights" in told

    lab.wait_until_idle(60_000)
    lab.screenshot("anatomy-loop-done")
    assert lab.errors == []
