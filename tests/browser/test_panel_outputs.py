"""What a page that is reloaded while a cell is busy makes of the cell's outputs."""

from __future__ import annotations

from tests.browser.lab import Lab, busy
from tests.browser.test_panel import LOAD, wait_for_panel

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
    assert lab.errors_but_lost() == []


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
    assert lab.errors_but_lost() == []


def test_a_card_does_not_watch_on_when_the_kernel_restarts(lab: Lab) -> None:
    """The chart stays as it was drawn."""
    lab.begin(busy("--label cut"))
    wait_for_panel(lab)
    lab.cell(1).locator("[data-hfmem-draws]").wait_for()
    lab.restart_kernel()
    lab.wait_for_text(1, LOST)
    lab.screenshot("restarted")

    assert lab.cell(1).locator("[data-hfmem-draws]").is_visible()
    assert lab.errors_but_lost() == []


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
    assert lab.errors == []
