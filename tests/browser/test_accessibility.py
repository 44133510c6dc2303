"""Accessibility: no violation of WCAG 2.1 AA or of best practices."""

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page

from tests.browser.contrast import below, contrasts
from tests.browser.jupyter import ROOT
from tests.browser.lab import THEMES, Lab, take
from tests.browser.panel import Panel, wait_for_panel
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


def in_both_themes(lab: Lab, shot: str, *selectors: str, part: Locator | None = None) -> list[str]:
    """Return what axe-core finds in these elements in either theme, and take their pictures."""
    found = []
    for theme in THEMES:
        lab.theme(theme)
        lab.screenshot(f"accessibility-{shot}-{theme}", part)
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
    assert in_both_themes(lab, "card", ".jp-RenderedHTML", part=lab.cell(0)) == []


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
