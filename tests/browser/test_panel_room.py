"""The panel and the notebook share a window: the notebook comes first."""

from __future__ import annotations

import pytest

from tests.browser.lab import Lab, busy
from tests.browser.panel import Panel
from tests.browser.test_panel import LOAD

NOTEBOOK = 560


def width_of_notebook(lab: Lab) -> int:
    """Return how wide the notebook is, in pixels."""
    width: int = lab.page.evaluate("() => notebook().node.offsetWidth")
    return width


@pytest.mark.parametrize(
    ("width", "folded", "opens"),
    [
        (900, False, False),
        (900, True, False),
        # With the file browser open, as JupyterLab starts.
        (1280, False, True),
        (1280, True, True),
        # Where side bars were resized before, JupyterLab gives them more.
        pytest.param(1920, False, True, marks=pytest.mark.new_page),
    ],
    ids=["900", "900 folded", "1280", "1280 folded", "1920"],
)
def test_it_opens_by_itself_only_where_the_notebook_keeps_its_room(
    lab: Lab, width: int, folded: bool, opens: bool
) -> None:
    """With the left side bar open or folded; elsewhere the status bar has the figures, and opens it."""
    lab.resize(width, 800)
    lab.open(LOAD, busy("--label fine-tune"))
    if folded:
        lab.page.evaluate("() => jupyterapp.shell.collapseLeft()")
    lab.run_cell(0)
    before = width_of_notebook(lab)
    lab.run_cell(1, wait=False)
    panel = Panel(lab)
    (panel.element if opens else panel.status).wait_for()
    lab.screenshot(f"panel-room-{width}{'-folded' if folded else ''}")

    assert panel.shown == opens
    if opens:
        assert width_of_notebook(lab) >= NOTEBOOK
        assert 320 <= panel.width <= 400
    else:
        assert width_of_notebook(lab) == before
        panel.status.click()
        panel.wait_for_cell("fine-tune")
        assert panel.width == pytest.approx(320, abs=2)
        lab.screenshot(f"panel-room-{width}{'-folded' if folded else ''}-clicked")
    lab.interrupt()
    assert lab.errors == []


@pytest.mark.new_page
def test_it_says_once_how_to_have_it_stay_closed(lab: Lab) -> None:
    """One click turns the setting off: on a page that is opened later it stays closed."""
    lab.page.set_viewport_size({"width": 1600, "height": 900})
    lab.begin(busy("--label first"))
    panel = Panel(lab)
    note = panel.element.get_by_role("note")
    note.wait_for()
    lab.screenshot("panel-note")
    note.get_by_role("button", name="Turn off").click()
    panel.element.get_by_text("no longer opens automatically").wait_for()
    lab.wait_for(
        "() => fetch('/lab/api/settings/hfmem-widget:plugin').then(answer => answer.json())"
        ".then(({raw}) => raw.includes('openWithWatch'))"
    )
    lab.interrupt()
    lab.wait_until_idle()
    other = lab.another_page()
    other.restart_kernel()
    other.run_cell(0)
    other.run_cell(1, wait=False)
    Panel(other).status.wait_for()

    assert not Panel(other).shown
    other.interrupt()
    other.page.close()
    # A kernel that was restarted from another tab knows no comm of this page: JupyterLab says so.
    assert lab.errors_but_lost() == []


@pytest.mark.new_page
def test_it_may_lie_at_the_left(lab: Lab) -> None:
    """JupyterLab's "Switch Sidebar Side" moves it; it opens there with the room that it has at the right."""
    lab.page.set_viewport_size({"width": 1600, "height": 800})
    lab.open(LOAD, busy("--label fine-tune"))
    lab.page.evaluate("() => jupyterapp.shell.collapseLeft()")
    lab.page.locator(".jp-SideBar.jp-mod-right [data-id='hfmem-panel']").click(button="right")
    lab.page.get_by_text("Switch Sidebar Side").click()
    lab.page.locator(".jp-SideBar.jp-mod-left [data-id='hfmem-panel']").wait_for()
    lab.page.evaluate("() => jupyterapp.shell.collapseLeft()")
    lab.run_cell(0)
    lab.run_cell(1, wait=False)
    panel = Panel(lab)
    panel.wait_for_cell("fine-tune")
    lab.screenshot("panel-room-left")

    assert panel.width == pytest.approx(400, abs=2)
    assert width_of_notebook(lab) >= NOTEBOOK
    lab.interrupt()
    assert lab.errors == []
