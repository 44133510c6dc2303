"""The panel at the right of a real JupyterLab: live beside a busy cell, whatever happens to the page."""

from __future__ import annotations

import pytest

from tests.browser.lab import Lab, busy
from tests.browser.panel import Panel, wait_for_panel
from tests.browser.shown import LOAD, wait_for_chart

OVER_BUDGET = busy('--label "over its budget" --budget 40MiB')


def run_over_budget(lab: Lab, ending: str = "") -> Panel:
    """Run two cells that have a finding, the first to its end, and leave the second running in sight."""
    lab.page.set_viewport_size({"width": 1600, "height": 900})
    lab.begin(f"{OVER_BUDGET}{ending}", OVER_BUDGET)
    panel = wait_for_panel(lab)
    panel.element.locator(".hfmem-cell-found").first.wait_for()
    lab.let_end()
    lab.run_cell(2, wait=False)
    panel.element.locator(".hfmem-cell-found").nth(1).wait_for()
    return panel


def test_the_panel_opens_and_draws_while_a_cell_is_busy(lab: Lab) -> None:
    """With the first watch it stands at the right, with the open cell and its chart, and grows."""
    lab.open(LOAD, busy("--label fine-tune"))
    lab.run_cell(0)
    assert not Panel(lab).shown
    lab.run_cell(1, wait=False)
    panel = wait_for_panel(lab)
    panel.wait_for_cell("fine-tune")
    first = panel.rows
    panel.wait_for_rows(first + 10)

    assert panel.path.startswith("fine-tune")
    lab.screenshot("panel-live")
    lab.let_end()
    panel.element.get_by_text("stopped").or_(
        panel.element.get_by_text("nothing is being")
    ).first.wait_for()
    lab.screenshot("panel-done")


SLOWEST = "from hfmem_widget.view.wire import publisher\npublisher.PACES = publisher.PACES[-1:]"


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "nobody was seen"])
def test_a_reload_in_the_middle_of_a_busy_cell(lab: Lab, *, is_seen: bool) -> None:
    """New points and the history are back while the kernel is busy, in the same tab and in a new one.

    At the slowest pace, too, at which a page that nobody was seen at is told of a run.
    """
    load = LOAD if is_seen else f"{LOAD}\n{SLOWEST}"
    lab.begin(busy("--label long --interval 0.02"), load=load, saved=True)
    panel = wait_for_panel(lab)
    panel.wait_for_rows(60 if is_seen else 40)
    for tab in ("same", "new"):
        seq, rows = panel.seq, panel.rows if is_seen else 40
        lab.reload(wait=False, forget=tab == "new")
        panel.wait_for_seq(seq + 1)
        panel.wait_for_rows(rows)
        assert panel.path.startswith("long")
        lab.screenshot(f"panel-reloaded-{tab}-tab")


def test_two_tabs_draw_the_same_run_each_in_its_own_way(lab: Lab) -> None:
    """Two pages of one notebook both draw; what is paused in one goes on in the other."""
    lab.begin(busy("--label both"), saved=True)
    first = wait_for_panel(lab)
    other = lab.another_page()
    second = wait_for_panel(other)
    second.element.locator(".hfmem-pause").click()
    paused = second.draws
    first.wait_for_draws(first.draws + 4)

    assert second.draws - paused <= 1
    assert first.element.locator(".hfmem-pause").get_attribute("aria-pressed") == "false"
    assert second.element.locator(".hfmem-pause").get_attribute("aria-pressed") == "true"
    second.element.locator(".hfmem-pause").click()
    second.wait_for_draws(paused + 3)
    other.page.close()
    assert other.errors == []


def test_the_panel_follows_the_notebook_in_front(lab: Lab) -> None:
    """Each notebook shows its own cells; one that never watched shows how to begin."""
    lab.begin(busy("--label first"))
    panel = wait_for_panel(lab)
    lab.let_end()
    panel.wait_for_cell("first")
    first = lab.path
    second = lab.server.write_notebook("second", "1 + 1")
    lab.command("docmanager:open", {"path": second})
    hint = panel.element.get_by_text("at the top of a cell")
    hint.wait_for()

    assert panel.cells == []
    assert not panel.status.is_visible()
    lab.screenshot("panel-never-watched")
    lab.command("docmanager:open", {"path": first})
    panel.wait_for_cell("first")
    assert not hint.is_visible()


def test_a_closed_panel_stays_closed(lab: Lab) -> None:
    """It opens once for a notebook; closed, it listens on, and has everything when opened by hand."""
    lab.begin(busy("--label one"), busy("--label two"))
    panel = wait_for_panel(lab)
    lab.let_end()
    panel.wait_for_cell("one")
    panel.close()
    lab.run_cell(2, wait=False)
    wait_for_chart(lab, 2)
    lab.let_end()

    assert not panel.shown
    lab.command("hfmem-widget:show")
    panel.wait_for_cell("two")
    assert panel.cells == ["two", "one"]


def test_no_panel_keeps_it_closed_and_the_status_bar_leads_to_it(lab: Lab) -> None:
    """`--no-panel` is about opening: the chart goes on, and who clicks on the figures sees the run.

    Nothing stands in the status bar before the first watch.
    """
    lab.open(LOAD, busy("--label apart --no-panel"))
    lab.run_cell(0)
    panel = Panel(lab)
    assert not panel.status.is_visible()
    lab.run_cell(1, wait=False)
    panel.status.wait_for()
    wait_for_chart(lab, 1)
    lab.let_end()

    assert not panel.shown
    assert " / " in panel.status.inner_text()
    assert "allocated on cpu" in (panel.status.get_attribute("title") or "")
    panel.status.click()
    panel.wait_for_cell("apart")


def test_a_restarted_kernel_costs_the_live_chart_and_the_table(lab: Lab) -> None:
    """The status bar tells nothing of a memory that is gone, and the next watch starts anew, to its end."""
    lab.begin(busy("--label lost"), busy("--label next"))
    panel = wait_for_panel(lab)
    lab.restart_kernel()
    panel.status.wait_for(state="hidden")
    lab.run_cell(0)
    lab.run_cell(2, wait=False)
    panel.wait_for_cell("next")
    wait_for_chart(lab, 2)
    lab.let_end()
    lab.wait_for_text(2, "all figures")

    assert panel.cells == ["next", "lost"]


def test_both_commands_are_in_the_palette(lab: Lab) -> None:
    """The category "Memory" shows the panel and clears its history."""
    lab.begin(busy("--label gone"))
    panel = Panel(lab)
    panel.wait_for_cell("gone")
    lab.let_end()
    lab.command("hfmem-widget:clear")
    panel.element.get_by_text("at the top of a cell").wait_for()


def test_the_button_is_enough_and_a_short_cell_is_told_at_its_end(lab: Lab) -> None:
    """A kernel that loaded nothing knows the magic as the cell runs; the panel has what no chart shows."""
    fill = "filled = bytearray(40_000_000)"
    lab.open(fill, *(f"%%memwatch --label {label}\n{fill}" for label in ("short", "shorter")))
    lab.page.locator("[data-jp-item-name=memwatch]").get_by_role("button").click()
    for cell in range(3):
        lab.run_cell(cell)
    lab.command("hfmem-widget:show")
    panel = Panel(lab)
    panel.wait_for_cell("shorter")
    lab.screenshot("panel-short-cells")

    assert panel.cells == ["shorter", "short", "cell [1]"]


def test_jupyterlab_accepts_the_extension(lab: Lab) -> None:
    """`jupyter labextension list` shows it enabled and sound."""
    listed = lab.server.run("labextensions", "list")
    ours = next(line for line in listed.splitlines() if "hfmem-widget" in line)

    assert "enabled" in ours
    assert "OK" in ours
