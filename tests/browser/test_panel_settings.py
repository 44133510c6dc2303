"""What a person has set in JupyterLab, and what stands in a panel that has shown nothing yet."""

from __future__ import annotations

import pytest

from tests.browser.lab import THEMES, Lab, busy
from tests.browser.panel import Panel
from tests.browser.test_panel import LOAD, wait_for_panel

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
    assert lab.errors == []


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
    assert lab.errors == []


def test_the_settings_editor_has_them(lab: Lab) -> None:
    """Each with its title, under Memory."""
    lab.open("1 + 1")
    lab.command("settingeditor:open", {"query": "Memory"})
    lab.page.get_by_text("Seconds between samples").first.wait_for()
    lab.screenshot("settings-editor")

    for title in ("Open the panel with the first watch", "Show the hint about the toolbar"):
        assert lab.page.get_by_text(title).first.is_visible()
