"""The panel of a real JupyterLab: beside a busy cell, after reloads, in its room, as a person has set it."""

import pytest

from tests.browser.lab import THEMES, Lab, busy
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
    panel.wait_for_rows(panel.rows + 10)

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
    """While the kernel is busy, points and history are back in the same tab and in a new one, at any pace."""
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
    lab.command("docmanager:open", {"path": lab.server.write_notebook("second", "1 + 1")})
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
    """The chart goes on, and a click on the figures, which come with the first watch, shows the run."""
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


def test_the_button_alone_watches_a_cell_and_the_panel_lists_short_cells(lab: Lab) -> None:
    """A kernel that loaded nothing knows the magic as the cell runs; a short cell has no chart."""
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
def test_it_opens_where_there_is_room(lab: Lab, width: int, folded: bool, opens: bool) -> None:
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
    show = "print(*(one.polling.interval for one in (first, named, later)))"
    cells = [busy("-o first"), busy("-o named --interval 0.2"), busy("-o later --no-chart"), show]
    lab.begin(*cells)
    panel = wait_for_panel(lab)
    lab.wait_for(
        "() => [...document.querySelectorAll('#hfmem-panel [data-hfmem-draws]')]"
        ".some(it => Number(it.dataset.hfmemRows) > 3)"
    )
    panel.wait_for_rows(panel.rows + 4)
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
