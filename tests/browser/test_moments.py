"""The picture of `--stacks` answers clicks and keys: on a card and in a report, with no kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page

from tests.browser.lab import Lab, take
from tests.browser.test_accessibility import violations
from tests.browser.test_narrow import MISPLACED
from tests.data.torch_snapshots import training
from tests.scenes import scripted_run
from tests.unit.features.stacks.test_html import stacks_of

CARD = """%load_ext hfmem_widget
from IPython.display import display
from tests.data.torch_snapshots import training
from tests.unit.features.stacks.test_html import stacks_of
display(stacks_of(training()))
"""


def report(folder: Path) -> Path:
    session = scripted_run("training")
    session.stacks = stacks_of(training())
    return session.report(folder / "run.html")


def click(page: Page, picture: Locator, across: float, down: float) -> None:
    """Click on a picture, at a share of its width and so many pixels below its top."""
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + across * box["width"], box["y"] + down)


@pytest.mark.parametrize("width", [1280, 900, 320])
def test_a_report_says_what_was_allocated_at_a_moment(
    browser: BrowserContext, tmp_path: Path, shots: Path, width: int
) -> None:
    """A click on a band marks its row in both tables; the arrow keys go on; in every theme it can be read."""
    page = browser.new_page()
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(report(tmp_path).as_uri())
    part = page.locator("#lines")
    said = part.get_by_role("status").first
    said.wait_for()
    before = said.inner_text()
    click(page, part.get_by_role("img").first, 0.62, 120)
    clicked = said.inner_text()
    marked = part.locator("[data-marked] th").all_inner_texts()
    found = []
    for scheme, forced in (("light", "none"), ("dark", "none"), ("dark", "active")):
        page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]
        name = "contrast" if forced == "active" else scheme
        take(part, shots / f"moments-{name}-{width}.png")
        found += violations(page, "#lines") if forced == "none" else []
    found += page.evaluate(MISPLACED)
    part.get_by_label("after").first.focus()
    page.keyboard.press("Home")
    first = said.inner_text()
    page.close()

    assert found == []
    assert before.startswith("Click the picture or move")
    assert " of it from project/train.py:61" in clicked
    assert [name.split()[1] for name in marked] == ["project/train.py:61"] * 2
    assert first.startswith("0.000 s after the start: 108.0 MiB allocated")


def test_without_scripts_the_picture_and_the_tables_are_all(
    browser: BrowserContext, tmp_path: Path
) -> None:
    """Nothing invites to click on what does not answer."""
    assert browser.browser is not None
    context = browser.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report(tmp_path).as_uri())
    told = page.locator("#lines").inner_text()
    pictures = page.locator("#lines").get_by_role("img").count()
    context.close()

    assert pictures > 0
    assert "by source line" in told
    assert "Click" not in told


def test_a_card_says_what_was_allocated_at_a_moment(lab: Lab) -> None:
    """JupyterLab runs the script of an output that the kernel has just sent; each picture has its own."""
    lab.open(CARD)
    lab.run_cell(0)
    cell = lab.cell(0)
    cell.locator("summary", has_text="by module").click()
    cell.get_by_label("after").nth(1).focus()
    lab.page.keyboard.press("End")
    lab.wait_for_text(0, "MiB allocated.")
    click(lab.page, cell.get_by_role("img").first, 0.62, 120)
    lab.wait_for_text(0, " of it from project/train.py:61")
    lab.screenshot("moments-card", cell)
