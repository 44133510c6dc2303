"""The main job, in a real JupyterLab: a live chart while the cell is busy, a card and a chart that stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, busy, until_seen
from tests.kernel.test_notebooks import LEAK, said

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "01-quickstart.ipynb"
SETUP, TRAINING = 3, 5
# A smaller model, that is trained until the page has seen what it wanted.
QUICKER = {
    (
        SETUP,
        '{"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}',
    ): (
        '{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}'
    ),
    (SETUP, "train_dataset=Sentences(), data_collator=collate)"): (
        f"train_dataset=Sentences(), data_collator=collate)\n{until_seen(step=20)}"
    ),
}
LIVE = ".jp-OutputArea-output [data-hfmem-draws]"
STILL = ".jp-RenderedPlotly, .jp-OutputArea .js-plotly-plot:not([data-hfmem-draws] *)"


def wait_for_still_chart(lab: Lab, index: int) -> None:
    """Bring a cell into view and wait for the chart that stays."""
    lab.cell(index).scroll_into_view_if_needed()
    lab.cell(index).locator(STILL).wait_for()


def draws(lab: Lab) -> int:
    element = lab.page.locator(LIVE).first
    return int(element.get_attribute("data-hfmem-draws") or 0) if element.count() else 0


def rows(lab: Lab) -> int:
    element = lab.page.locator(LIVE).first
    return int(element.get_attribute("data-hfmem-rows") or 0) if element.count() else 0


def is_busy(lab: Lab) -> bool:
    return bool(lab.page.evaluate("() => window.running"))


def wait_for_draws(lab: Lab, count: int) -> None:
    script = """([selector, count]) => {
        const element = document.querySelector(selector);
        return element !== null && Number(element.dataset.hfmemDraws) >= count;
    }"""
    lab.wait_for(script, arg=[LIVE, count])


def wait_for_chart(lab: Lab, index: int) -> None:
    """Bring the live chart of a cell into view, and wait until it has been drawn twice.

    A chart that is out of sight is drawn once.
    """
    script = """([selector, index]) => {
        const chart = notebook().content.widgets[index].node.querySelector(selector);
        chart?.scrollIntoView({ block: 'nearest' });
        return Number(chart?.dataset.hfmemDraws) >= 2;
    }"""
    lab.wait_for(script, arg=["[data-hfmem-draws]", index])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [QUICKER, pytest.param({}, marks=pytest.mark.full)], ids=["quicker", "whole"]
)
def test_the_quickstart_runs_live_and_reopens_without_a_kernel(
    lab: Lab, training: str, changes: dict[tuple[int, str], str]
) -> None:
    """The chart grows while the Trainer is busy; card and chart stay, also when reopened with no kernel.

    Its training cell and its block are annotated, and nothing is said to leak.
    """
    lab.open_path(lab.server.copy_notebook(QUICKSTART, changes, kernel=training))
    lab.run_all(wait=False)
    # Running all moves to the last cell, and a chart that is out of sight is not drawn.
    lab.cell(TRAINING).scroll_into_view_if_needed()
    wait_for_draws(lab, 3)
    first, first_rows = draws(lab), rows(lab)
    wait_for_draws(lab, first + 6)
    assert is_busy(lab)
    lab.screenshot("quickstart-live")
    assert rows(lab) > first_rows

    lab.let_end()
    wait_for_still_chart(lab, TRAINING)
    assert lab.cell(TRAINING).locator(LIVE).count() == 0
    assert "all figures" in lab.cell(TRAINING).inner_text()
    lab.screenshot("quickstart-done")
    saved = lab.save()
    text = said(saved)
    assert 'memwatch "fine-tune"' in text
    assert 'memwatch "inference"' in text
    assert not any(words in text for words in LEAK)
    lab.close()
    lab.server.shut_kernels_down()

    lab.open_path(lab.path, kernel=False)
    wait_for_still_chart(lab, TRAINING)
    assert "all figures" in lab.cell(TRAINING).inner_text()
    lab.screenshot("quickstart-reopened")
    assert "Error displaying widget" not in lab.page.locator(".jp-Notebook").inner_text()
    assert "widgets" not in saved.metadata
    ours = [
        {kind: len(str(data)) for kind, data in output.data.items()}
        for output in saved.cells[TRAINING].outputs
        if "memwatch" in output.get("data", {}).get("text/plain", "")
    ]
    assert len(ours) == 2
    # The PNG is plotly's JupyterLab renderer's own doing.
    assert sum(size for one in ours for kind, size in one.items() if kind != "image/png") < 80_000
    assert sum(sum(one.values()) for one in ours) < 150_000, ours
    assert lab.errors == []


def test_a_notebooks_cells_stand_end_to_end(lab: Lab) -> None:
    """In one chart; a long pause is narrow, live and in the chart that stays, over the time of day."""
    work = "import time\nkept = bytearray({size})\ntime.sleep(0.6)"
    cells = (work.format(size=size) for size in (60_000_000, 90_000_000))
    lab.open("%load_ext hfmem_widget", "%memwatch on --min 0", *cells, "%memwatch off")
    for index in range(3):
        lab.run_cell(index)
    lab.page.wait_for_timeout(3000)  # somebody reads
    lab.run_cell(3)
    clock = re.compile(r"\d\d:\d\d:\d\d")
    live = lab.page.locator(f"{LIVE} .xtick text")
    expect(live.filter(has_text=clock).first).to_be_visible()
    lab.screenshot("end-to-end-live")
    assert lab.page.locator(LIVE).count() == 1
    lab.run_cell(4)
    wait_for_still_chart(lab, 1)
    lab.screenshot("end-to-end-still")

    ticks = lab.cell(1).locator(".xtick text").all_text_contents()
    assert ticks
    assert all(clock.match(text) for text in ticks if text.strip())
    assert lab.errors == []


def test_a_hostile_label_is_text_everywhere(lab: Lab) -> None:
    """Neither card nor chart, live or still, makes an element of what a label says."""
    label = "<img src=x onerror=window.__xss=1>$x$<a href=javascript:window.__xss=1>y</a>"
    lab.begin(busy(f'--label "{label}"'))
    wait_for_chart(lab, 1)
    lab.let_end()
    lab.wait_for_text(1, "all figures")

    assert "<img src=x" in lab.cell(1).locator(".jp-Cell-outputArea").inner_text()
    assert lab.page.evaluate("() => window.__xss") is None
    assert lab.cell(1).locator(".jp-Cell-outputArea a[href^=javascript]").count() == 0
    assert lab.errors == []


CAUGHT = """%%memwatch --label "caught"
import ipywidgets as w, os, time
out = w.Output()
display(out)
with out:
    time.sleep(2)
while not os.path.exists("enough"): time.sleep(0.05)
"""


def test_a_live_chart_comes_after_an_output_widget_that_catches_all(lab: Lab) -> None:
    """While it does, what would replace an output gets lost."""
    lab.begin(CAUGHT)
    wait_for_draws(lab, 2)
    assert is_busy(lab)
    lab.screenshot("caught-live")
    lab.let_end()

    wait_for_still_chart(lab, 1)
    assert lab.cell(1).locator(STILL).count() == 1
