"""The panel beside the notebook, which comes first, and what a person has set in JupyterLab."""

from __future__ import annotations

import pytest

from tests.browser.lab import THEMES, Lab, busy
from tests.browser.panel import Panel, wait_for_panel
from tests.browser.shown import LOAD

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


# What the server has as the person's own.
HINT_IS_OFF = """() => fetch('/lab/api/settings/hfmem-widget:plugin').then(answer => answer.json())
    .then(({ raw }) => raw.includes('"showHint": false'))"""


# A page reads its settings when it is loaded.
@pytest.mark.new_page
def test_the_interval_is_that_of_watches_that_name_none(lab: Lab) -> None:
    """The first has it as soon as its chart is there, later ones at once; a named one is stronger."""
    lab.server.write_setting("hfmem-widget", "plugin", {"interval": 0.5})
    told = "print(*(one.polling.interval for one in (first, named, later)))"
    cells = [busy("-o first"), busy("-o named --interval 0.2"), busy("-o later --no-chart"), told]
    lab.begin(*cells)
    panel = wait_for_panel(lab)
    lab.wait_for(
        "() => [...document.querySelectorAll('#hfmem-panel [data-hfmem-draws]')]"
        ".some(it => Number(it.dataset.hfmemRows) > 3)"
    )
    rows = panel.rows
    panel.wait_for_rows(rows + 4)
    lab.let_end()
    for cell in (2, 3):
        lab.run_cell(cell, wait=False)
        panel.wait_for_rows(3)
        lab.let_end()
    lab.run_cell(4)

    assert lab.outputs(4)[0]["text"].split() == ["0.5", "0.2", "0.5"]


@pytest.mark.new_page
def test_a_panel_that_has_shown_nothing_says_how_to_begin(lab: Lab) -> None:
    """With the toolbar's button, until a first watch is seen: then on no page again."""
    lab.open(LOAD, "1 + 1")
    lab.command("hfmem-widget:show")
    panel = Panel(lab)
    hint = panel.element.get_by_role("note")
    hint.wait_for()
    for theme in THEMES:
        lab.theme(theme)
        lab.screenshot(f"panel-hint-{theme}")
    button = lab.page.locator("jp-button[data-command='hfmem-widget:watch-cell']")
    lab.cell(1).click()
    button.click()
    assert lab.source(1).startswith("%%memwatch\n")
    assert hint.is_visible()
    lab.page.evaluate(
        "() => notebook().content.widgets[1].model.sharedModel.setSource("
        "'%%memwatch\\nimport time; time.sleep(1)')"
    )
    lab.run_all()
    panel.wait_for_draws()
    lab.wait_for(HINT_IS_OFF)
    lab.open("1 + 1")
    panel.element.get_by_text("at the top of a cell").wait_for()

    assert not hint.is_visible()


def test_the_settings_editor_has_them(lab: Lab) -> None:
    """Each with its title, under Memory."""
    lab.open("1 + 1")
    lab.command("settingeditor:open", {"query": "Memory"})
    lab.page.get_by_text("Seconds between samples").first.wait_for()
    lab.screenshot("settings-editor")

    for title in ("Open the panel with the first watch", "Show the hint about the toolbar"):
        assert lab.page.get_by_text(title).first.is_visible()
