"""Accessibility: no violation of WCAG 2.1 AA or of best practices, and all that a keyboard reaches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page

from tests.browser.contrast import below, contrasts
from tests.browser.jupyter import ROOT, JupyterLab
from tests.browser.lab import THEMES, Lab, busy, take
from tests.browser.panel import Panel, wait_for_panel
from tests.browser.shown import wait_for_chart
from tests.browser.test_narrow import CARDS
from tests.browser.test_panel import OVER_BUDGET, run_over_budget
from tests.scenes import scripted_run

AXE = ROOT / "js" / "node_modules" / "axe-core" / "axe.min.js"
ROOTS = "#hfmem-panel, .jp-OutputArea .hfmem-root, #hfmem-status"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
# What names the rule and the elements; the rest of axe's answer fills pages.
VIOLATIONS = """async ([include, tags]) => {
    const found = await axe.run(include, { runOnly: tags, resultTypes: ['violations'] });
    const shown = node => `${node.html.slice(0, 160)} | ${node.any[0]?.message ?? node.failureSummary}`;
    return found.violations.flatMap(({ id, nodes }) => nodes.map(node => `${id}: ${shown(node)}`));
}"""


def violations(page: Page, *selectors: str) -> list[str]:
    """Return what axe-core finds in these elements; in the whole page without any."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    include = [list(selectors)] if len(selectors) == 1 else list(selectors)
    found: list[str] = page.evaluate(VIOLATIONS, [include or ["html"], TAGS])
    return found


def in_both_themes(lab: Lab, shot: str, *selectors: str, of: Locator | None = None) -> list[str]:
    """Return what axe-core finds in these elements in either theme, and take their pictures."""
    found = []
    for theme in THEMES:
        lab.theme(theme)
        lab.screenshot(f"accessibility-{shot}-{theme}", of)
        found += [f"{theme}: {one}" for one in violations(lab.page, *selectors)]
    return found


def test_a_live_chart_and_the_panel_beside_it(lab: Lab) -> None:
    """While a cell runs, beside an ended one that has a finding."""
    run_over_budget(lab)
    roots = (".jp-OutputArea .hfmem-root", "#hfmem-panel", "#hfmem-status")
    assert in_both_themes(lab, "live", *roots) == []


def test_a_finished_card(lab: Lab) -> None:
    """With its still chart, its findings, its tables and the details of several GPUs."""
    lab.open(CARDS)
    lab.run_all()
    lab.page.evaluate("document.querySelectorAll('.jp-Cell details').forEach(it => it.open = true)")
    assert in_both_themes(lab, "card", ".jp-RenderedHTML", of=lab.cell(0)) == []


def test_an_empty_panel(lab: Lab) -> None:
    """Beside a notebook that watches nothing."""
    lab.open_path(lab.server.write_notebook("empty", "1"), kernel=False)
    lab.command("hfmem-widget:show")
    Panel(lab).element.wait_for()
    assert in_both_themes(lab, "empty", "#hfmem-panel") == []


@pytest.mark.parametrize("run", ["training", "leak"])
def test_a_report(browser: BrowserContext, tmp_path: Path, shots: Path, run: str) -> None:
    """The whole page, with everything unfolded, in both themes."""
    path = scripted_run(run).report(tmp_path / "run.html")
    page = browser.new_page()
    found = {}
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        page.goto(path.as_uri())
        page.locator("#hfmem-chart .main-svg").first.wait_for()
        page.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)")
        found[theme] = violations(page)
        take(page, shots / f"accessibility-report-{run}-{theme}.png", full_page=True)
    page.close()

    assert found == {"light": [], "dark": []}


def test_every_text_can_be_read(lab: Lab) -> None:
    """With a warning, a note, a cell that failed, the worst peak, and a series that is switched off."""
    panel = run_over_budget(lab, ending="raise ValueError")
    for root in (panel.element, lab.cell(2)):
        root.get_by_title("show resident").wait_for()  # switched off from the start
    found = {}
    for theme in THEMES:
        lab.theme(theme)
        # What is drawn next has the theme's colours.
        panel.wait_for_draws(panel.draws + 2)
        found[theme] = contrasts(lab.page, ROOTS)
        lab.screenshot(f"panel-contrast-{theme}")

    assert all(len(texts) > 20 for texts in found.values())
    assert {theme: below(texts) for theme, texts in found.items()} == {"light": {}, "dark": {}}


def test_no_two_landmarks_have_the_same_name(lab: Lab) -> None:
    """Whoever goes from landmark to landmark finds the panel once."""
    lab.page.set_viewport_size({"width": 1600, "height": 900})
    lab.begin(OVER_BUDGET)
    panel = wait_for_panel(lab)
    lab.cell(1).locator("[data-hfmem-draws]").wait_for()

    assert lab.page.get_by_role("region", name="memory").count() == 1
    assert panel.element.get_by_role("group", name="memory").count() == 1


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
