"""What stands in the panel and over a live chart can be read on either ground (WCAG 2 AA)."""

from __future__ import annotations

from tests.browser.contrast import below, contrasts
from tests.browser.lab import THEMES, Lab
from tests.browser.test_panel import OVER_BUDGET, run_over_budget, wait_for_panel

ROOTS = "#hfmem-panel, .jp-OutputArea .hfmem-root, #hfmem-status"


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
    lab.interrupt()
    lab.wait_until_idle()

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
    lab.interrupt()
    lab.wait_until_idle()
