"""A run that is shown in a real JupyterLab through the real wire, as if it went on."""

from __future__ import annotations

from playwright.sync_api import Locator

from tests.browser.lab import Lab
from tests.browser.panel import Panel

LOAD = "%load_ext hfmem_widget"
SHOW = """
from tests.data.wire import show
publisher = show(session)
"""
SCRIPTED = """
from tests.scenes import scripted_run
session = scripted_run({!r})
"""
CARD = """
from hfmem_widget.view.card import card_bundle
display(card_bundle(session, session.spans[0], with_chart=True), raw=True)
"""


def open_charts(lab: Lab, session: str, *cells: str) -> list[Locator]:
    """Show what a text makes, and return the chart in the cell and the one in the panel once both drew.

    The further `cells` stand below it, and wait.
    """
    lab.open(LOAD, session + SHOW, *cells)
    lab.run_cell(0)
    lab.run_cell(1)
    panel = Panel(lab)
    panel.element.wait_for()
    panel.wait_for_draws()
    charts = [lab.cell(1).locator(".hfmem-root"), panel.element.locator(".hfmem-root")]
    for chart in charts:
        chart.locator(".hfmem-plot .main-svg").first.wait_for()
    return charts
