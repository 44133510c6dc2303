"""The memory map in a real JupyterLab: it lives below the chart, and stays when the cell is over."""

from __future__ import annotations

from playwright.sync_api import Locator

from tests.browser.lab import Lab, busy
from tests.browser.test_watched_cell import wait_for_still_chart

LOAD = "%load_ext hfmem_widget"
WATCHED = busy("--map")


def map_in(lab: Lab, index: int) -> Locator:
    return lab.cell(index).locator('svg[aria-label^="the default stream"]')


def test_a_map_lives_while_the_cell_runs_and_stays(lab: Lab) -> None:
    """It changes in its place while the cell is busy; at the end it has its sentences. Nothing is logged."""
    lab.open(LOAD, WATCHED)
    lab.run_all(wait=False)
    live = map_in(lab, 1).first
    live.wait_for()
    lab.screenshot("memory-map-live", lab.cell(1))
    drawn = live.inner_html()
    lab.wait_for(
        "drawn => document.querySelector('svg[aria-label^=\"the default stream\"]').innerHTML !== drawn",
        arg=drawn,
    )
    assert lab.page.evaluate("() => window.running")
    lab.let_end()
    lab.wait_for_text(1, "at the end")
    wait_for_still_chart(lab, 1)
    for theme in ("light", "dark"):
        lab.theme(theme)
        lab.screenshot(f"memory-map-{theme}", lab.cell(1))
    assert lab.errors_but_lost() == []
