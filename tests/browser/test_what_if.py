"""Sliders on a card and in a report: they answer with no kernel, by keyboard, in every theme."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.lab import Lab, take
from tests.browser.test_accessibility import violations
from tests.browser.test_narrow import CUT_OFF, MISPLACED
from tests.scenes import scripted_run
from tests.unit.view.test_what_fits import EXAMPLE

CARD = """%load_ext hfmem_widget
from IPython.display import display
from tests.scenes import scripted_run
from tests.unit.view.test_what_fits import EXAMPLE
from hfmem_widget.view.card import card_bundle
session = scripted_run("training")
session.what_if = EXAMPLE
display(card_bundle(session, session.spans[0], with_chart=True), raw=True)
"""


def opened(browser: BrowserContext, path: Path, width: int) -> Page:
    page = browser.new_page()
    session = scripted_run("training")
    session.what_if = EXAMPLE
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(session.report(path / "run.html").as_uri())
    page.locator("#what-if input").first.wait_for()
    return page


@pytest.mark.parametrize("width", [900, 560, 320])
def test_the_sliders_of_a_report(
    browser: BrowserContext, tmp_path: Path, shots: Path, width: int
) -> None:
    """They fit, tell by keyboard what another size takes, and are grey beyond what is known."""
    page = opened(browser, tmp_path, width)
    part, said = page.locator("#what-if"), page.locator("#what-if [role=status]")
    found = []
    for scheme, forced in (("light", "none"), ("dark", "none"), ("dark", "active")):
        page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]
        name = "contrast" if forced == "active" else scheme
        take(part, shots / f"what-if-{name}-{width}.png")
        found += violations(page, "#what-if") if forced == "none" else []
    found += page.evaluate(MISPLACED)
    before = said.inner_text()
    page.get_by_label("rows in a batch").focus()
    page.keyboard.press("ArrowRight")
    more = said.inner_text()
    page.keyboard.press("End")
    beyond = said.inner_text()
    page.emulate_media(color_scheme="light", forced_colors="none")
    take(part, shots / f"what-if-beyond-{width}.png")
    page.close()

    assert found == []
    assert before.startswith("Batch 8 \N{MULTIPLICATION SIGN} 128: peak 566.0 MiB")
    assert more.startswith("Batch 9 \N{MULTIPLICATION SIGN} 128: peak 598.0 MiB")
    assert "not known" in beyond


def test_the_sliders_of_a_card(lab: Lab) -> None:
    """JupyterLab runs the script of a card that the kernel has just sent."""
    lab.open(CARD)
    lab.run_cell(0)
    slider = lab.cell(0).get_by_label("rows in a batch")
    slider.focus()
    lab.page.keyboard.press("ArrowRight")
    lab.wait_for_text(0, "Batch 9 \N{MULTIPLICATION SIGN} 128: peak 598.0 MiB")
    lab.screenshot("what-if-card", lab.cell(0))

    assert lab.page.evaluate(CUT_OFF) == [[]]
