"""Charts in a real JupyterLab: of a run shown through the real wire as if it went on, and of a cell."""

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
