"""A watched cell in a real JupyterLab: live while it is busy, then a card and a chart; after a reload too."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, busy, until_seen
from tests.browser.panel import wait_for_panel
from tests.browser.shown import (
    LIVE,
    LOAD,
    STILL,
    draws,
    is_busy,
    rows,
    wait_for_chart,
    wait_for_draws,
    wait_for_still_chart,
)
from tests.kernel.test_notebooks import LEAK, text_of

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [QUICKER, pytest.param({}, marks=pytest.mark.full)], ids=["quicker", "whole"]
)
def test_the_quickstart_runs_live_and_reopens_without_a_kernel(
    lab: Lab, training: str, changes: dict[tuple[int, str], str]
) -> None:
    """The chart grows while the Trainer is busy; card and chart stay without a kernel; nothing leaks."""
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
    text = text_of(saved)
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


WIDGET = "application/vnd.jupyter.widget-view+json"
LOST = "end of this watch was not seen"


def begin(lab: Lab) -> None:
    """Run a watched cell, save the notebook while its chart is live, and reload the page."""
    lab.begin(busy("--label long"))
    panel = wait_for_panel(lab)
    lab.cell(1).locator("[data-hfmem-draws]").wait_for()
    lab.save()
    lab.reload(wait=False)
    panel.wait_for_draws()
    # JupyterLab has to show the notebook again, too: what a cell puts out before is lost to it.
    lab.wait_for("() => kernel()?.connectionStatus === 'connected'")
    lab.cell(1).wait_for()


def test_a_cell_has_its_card_and_its_chart_when_it_ends_after_a_reload(lab: Lab) -> None:
    """The still forms come into the places that the earlier page left, and are saved."""
    begin(lab)
    lab.let_end()
    lab.wait_for_text(1, "all figures")
    lab.cell(1).locator(".js-plotly-plot").wait_for()
    lab.screenshot("reloaded-ended")

    card, chart = (one.data for one in lab.save().cells[1].outputs)
    assert "all figures" in card["text/html"]
    assert "text/html" in chart
    assert WIDGET not in chart
    assert "model not found" not in lab.cell(1).inner_text()


def test_a_cell_whose_end_no_page_saw_says_so(lab: Lab) -> None:
    """Opened again after the run, the notebook has a sentence, and no widget that is not found."""
    begin(lab)
    path = lab.path
    lab.page.goto("about:blank")
    lab.server.let_end()
    lab.open_path(path)
    lab.wait_for_text(1, LOST)
    lab.screenshot("reloaded-lost")

    assert [one.data for one in lab.save().cells[1].outputs][1:] == [{}]
    assert "model not found" not in lab.cell(1).inner_text()


def test_a_card_does_not_watch_on_when_the_kernel_restarts(lab: Lab) -> None:
    """The chart stays as it was drawn."""
    lab.begin(busy("--label cut"))
    wait_for_panel(lab)
    lab.cell(1).locator("[data-hfmem-draws]").wait_for()
    lab.restart_kernel()
    lab.wait_for_text(1, LOST)
    lab.screenshot("restarted")

    assert lab.cell(1).locator("[data-hfmem-draws]").is_visible()


def test_the_kernel_is_busy_as_long_as_the_watched_cell_runs(lab: Lab) -> None:
    """JupyterLab's indicator says so too, when all cells are run at once, and with a second watch."""
    lab.open(LOAD, busy("--label one"), busy("--label two"))
    lab.page.evaluate(
        """() => { window.seen = []; kernel().statusChanged.connect((_, status) => seen.push(status)) }"""
    )
    # What the page is told of as the extension is loaded may come after a quick next cell has begun.
    lab.run_cell(0)
    lab.run_all(wait=False)
    for label in ("one", "two"):
        lab.wait_for(
            "label => document.querySelector('#hfmem-panel .hfmem-path')?.title === label",
            arg=label,
        )
        # What comes of the watch while the cell runs changes nothing: nothing else tells that.
        lab.page.wait_for_timeout(1500)
        assert lab.page.evaluate("() => kernel().status") == "busy"
        lab.server.let_end(wait=False)
    lab.wait_until_idle()


WATCH = """%%memwatch -l "cost $a$ and $b$"
import time
time.sleep(0.5)
"""
RUN_OUT = """%%memwatch -l "cost $a$ and $b$"
raise MemoryError("Unable to allocate 9.31 GiB for an array with shape (1, $a$) and data type $b$")
"""
FOUND = """
from IPython.display import HTML, display
from hfmem_widget.session import Finding
from tests.scenes import scripted_run
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.line import compact_bundle
from hfmem_widget.view.chart.figure import chart_bundle

session = scripted_run("training")
session.findings.append(Finding("leak", "warn", "what $a$ and $b$ hold", {}, (r"see \\(a\\)",), 1))
for bundle in (
    card_bundle(session, session.spans[0], with_chart=False),
    compact_bundle(session, session.spans[0]),
    {"text/html": chart_bundle(session, session.spans[0])["text/html"]},
):
    display(bundle, raw=True)
"""
HOLD = """
import numpy
kept = {"$a$ and $b$": numpy.ones(64 << 20)}
%memholders
"""
COMPARE = "%memcompare"
# The last, so that what stands above it has been looked at as well.
FORMULA = 'HTML("<p>a formula: $x^2$</p>")'
SHOWN = ("cost $a$", "Out of memory", "what $a$ and $b$ hold", "$a$", "cost $a$ and $b$")
FORMULAS = "() => document.querySelectorAll('mjx-container').length"


def test_dollars_in_a_text_are_dollars(lab: Lab) -> None:
    """In labels, findings, names and the card of an error; a formula of the user's own is one still."""
    lab.open(LOAD, WATCH, RUN_OUT, FOUND, HOLD, COMPARE, FORMULA)
    for cell in range(7):
        lab.run_cell(cell)
    for cell, text in enumerate(SHOWN, 1):
        lab.wait_for_text(cell, text)
    lab.wait_for(FORMULAS)
    assert lab.page.evaluate(FORMULAS) == 1
