"""All that a keyboard reaches in a live chart, in a cell and in the panel."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page

from tests.browser.jupyter import JupyterLab
from tests.browser.lab import Lab, busy
from tests.browser.panel import Panel, wait_for_panel
from tests.browser.shown import wait_for_chart

IN_CELL = ".jp-Cell-outputArea .hfmem-root"
PANEL = "#hfmem-panel"
CONTROLS = "button, input, select, a"
SEEN = """all => all.filter(it => it.checkVisibility({ visibilityProperty: true }))
    .map(it => it.ariaLabel ?? it.textContent)"""
FOCUSED = "() => document.activeElement.ariaLabel ?? document.activeElement.textContent"
RING = """() => {
    const it = document.activeElement.closest('label') ?? document.activeElement;
    const { outlineStyle, outlineWidth } = getComputedStyle(it);
    return `${outlineStyle} ${outlineWidth}`;
}"""
SETTLED = """() => {
    const before = window.keysThere;
    window.keysThere = [...document.querySelectorAll('.hfmem-legend button')]
        .filter(it => it.checkVisibility({ visibilityProperty: true })).length;
    return window.keysThere > 3 && window.keysThere === before;
}"""
"""Whether no series has come to either legend within a second."""
PLACE = "() => [notebook().content.mode, notebook().content.activeCellIndex]"


@pytest.fixture(scope="module")
def live(jupyter_server: JupyterLab, used_page: Page, shots: Path) -> Iterator[Lab]:
    """Return a page with a live chart in a cell and in the panel."""
    lab = Lab(used_page, jupyter_server, shots)
    used_page.set_viewport_size({"width": 1600, "height": 900})
    lab.begin(busy("--label fine-tune"), "1 + 1")
    wait_for_chart(lab, 1)
    wait_for_panel(lab)
    Panel(lab).wait_for_cell("fine-tune")
    lab.page.wait_for_function(SETTLED, polling=1000)
    yield lab
    lab.let_end()
    lab.leave()
    jupyter_server.reset()


@pytest.fixture
def watched(live: Lab) -> Iterator[Lab]:
    """Return the same page, on which no test logs an error."""
    yield live
    assert live.errors == []


def walk(page: Page, within: Locator) -> tuple[list[str], list[str], set[str]]:
    """Return what is there to reach in a place, what Tab reaches, and the rings that it shows."""
    controls = within.locator(CONTROLS)
    there: list[str] = controls.evaluate_all(SEEN)
    controls.locator("visible=true").first.focus()
    reached, rings = [], set()
    for _ in there:
        reached.append(page.evaluate(FOCUSED))
        # Only what a key has focused shows a ring.
        if len(reached) > 1:
            rings.add(page.evaluate(RING))
        page.keyboard.press("Tab")
    return there, reached, rings


def test_tab_reaches_every_control_in_the_order_in_which_they_stand(watched: Lab) -> None:
    """With a ring around each, in the cell and in the panel."""
    for place in (IN_CELL, PANEL):
        there, reached, rings = walk(watched.page, watched.page.locator(place))

        assert len(there) > 2
        assert reached == there
        assert rings == {"solid 2px"}
    watched.screenshot("keyboard-focus")


def test_a_key_presses_a_control(watched: Lab) -> None:
    """The notebook does not take it for one of its own: no cell is edited or run."""
    before = watched.page.evaluate(PLACE)
    for place in (IN_CELL, PANEL):
        for key, then in (("Enter", "true"), ("Space", "false")):
            watched.page.locator(f"{place} .hfmem-pause").focus()
            watched.page.keyboard.press(key)
            watched.page.locator(f"{place} .hfmem-pause[aria-pressed='{then}']").wait_for()

    assert watched.page.evaluate(PLACE) == before


def test_arrows_move_within_a_group(watched: Lab) -> None:
    """Round and round, as far as what is shown; the notebook's cells stay where they are."""
    page = watched.page
    before = page.evaluate(PLACE)
    legend = page.locator(f"{IN_CELL} .hfmem-legend button:visible")
    names = legend.evaluate_all(SEEN)
    legend.first.focus()
    reached = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"):
        page.keyboard.press(key)
        reached.append(page.evaluate(FOCUSED))

    assert len(names) > 1
    assert reached == [names[1], names[2 % len(names)], names[1], names[0], names[-1]]
    assert page.evaluate(PLACE) == before


def test_escape_leaves_a_zoom(watched: Lab) -> None:
    """The focus goes to a control that is there; without a zoom the key is the page's."""
    page = watched.page
    box = page.locator(f"{IN_CELL} .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    page.mouse.up()
    reset = page.locator(f"{IN_CELL} .hfmem-unzoom")
    reset.wait_for()
    watched.screenshot("keyboard-zoomed")
    reset.focus()
    page.keyboard.press("Escape")
    reset.wait_for(state="hidden")

    assert page.evaluate("() => document.activeElement.closest('.hfmem-root') !== null")


def test_nothing_moves_by_itself(watched: Lab) -> None:
    """For who has asked for reduced motion, and for everybody else: no transition, no animation."""
    watched.page.emulate_media(reduced_motion="reduce")
    panel = Panel(watched)
    panel.wait_for_draws(panel.draws + 2)
    moving = watched.page.evaluate(
        """() => [...document.querySelectorAll('.hfmem-root, #hfmem-panel, #hfmem-status')].flatMap(
            it => it.getAnimations({ subtree: true })).length"""
    )

    assert moving == 0
