"""A report opened from disk: its live chart; the picture of `--stacks` and sliders, as on a card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page

from tests.browser.lab import Lab, take
from tests.browser.test_accessibility import violations
from tests.browser.test_narrow import CUT_OFF, MISPLACED
from tests.data.torch_snapshots import training
from tests.scenes import scripted_run
from tests.unit.features.stacks.test_chart import stacks_of
from tests.unit.view.test_what_fits import EXAMPLE

HOSTILE = "</script><script>alert(1)</script> \u2028 <img src=x onerror=alert(1)>"


class Opened:
    """A report in a page of a browser.

    Attributes
    ----------
    requests, troubles : list of str
        What the page asked for, and what it logged, threw, or asked the reader.
    """

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.troubles: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.troubles.append(message.text))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: self.troubles.append(dialog.message))
        page.goto(path.as_uri())

    def shows(self, selector: str) -> bool:
        return self.page.locator(selector).is_visible()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    session = scripted_run("leak")
    session.label = HOSTILE
    session.devices = tuple(replace(device, name=HOSTILE) for device in session.devices)
    return session.report(tmp_path_factory.mktemp("report") / "run.html")


@pytest.fixture
def opened(browser: BrowserContext, path: Path) -> Iterator[Opened]:
    page = browser.new_page()
    yield Opened(page, path)
    page.close()


def test_the_chart_is_the_live_one(opened: Opened, path: Path, shots: Path) -> None:
    """It is drawn, answers the pointer, zooms and hides a line; nothing is loaded, refused or logged."""
    page = opened.page
    page.locator("#hfmem-chart .main-svg").first.wait_for()
    plot = page.locator("#hfmem-chart .hfmem-plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    middle, left = box["y"] + box["height"] / 2, box["x"] + box["width"] / 2

    page.mouse.move(left, middle)
    page.locator(".hfmem-tip").wait_for()
    page.mouse.down()
    page.mouse.move(left + 80, middle, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="reset the zoom").click()
    page.get_by_role("button", name="reserved", exact=True).click()
    page.locator("button[aria-pressed=false][title='show reserved']").wait_for()
    take(page, shots / "report.png", full_page=True)

    assert not opened.shows("#still")
    assert not opened.shows(".hfmem-pause")
    assert page.locator("h1").inner_text().startswith("</script><script>")
    assert opened.requests == [path.as_uri()]
    assert opened.troubles == []


def test_its_ground_is_that_of_the_theme(opened: Opened) -> None:
    """Light or dark, as the system is."""
    page = opened.page
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.add(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    assert grounds == {"rgb(255, 255, 255)", "rgb(20, 24, 29)"}


def test_paper_has_the_still_chart_on_white(opened: Opened) -> None:
    """The live one is as wide as the screen, and its ground may be dark."""
    page = opened.page

    page.emulate_media(media="print", color_scheme="dark")
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    assert (opened.shows("#still svg >> nth=0"), opened.shows("#hfmem-chart")) == (True, False)
    assert ground == "rgb(255, 255, 255)"


def test_without_a_script_the_still_chart_stays(browser: BrowserContext, path: Path) -> None:
    """So do the figures and tables."""
    assert browser.browser is not None
    context = browser.browser.new_context(java_script_enabled=False)
    opened = Opened(context.new_page(), path)

    assert (opened.shows("#still svg >> nth=0"), opened.shows("#hfmem-chart")) == (True, False)
    assert "left behind" in opened.page.locator("#summary").inner_text()
    context.close()


STACKS_CARD = """%load_ext hfmem_widget
from IPython.display import display
from tests.data.torch_snapshots import training
from tests.unit.features.stacks.test_chart import stacks_of
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
    lab.open(STACKS_CARD)
    lab.run_cell(0)
    cell = lab.cell(0)
    cell.locator("summary", has_text="by module").click()
    cell.get_by_label("after").nth(1).focus()
    lab.page.keyboard.press("End")
    lab.wait_for_text(0, "MiB allocated.")
    click(lab.page, cell.get_by_role("img").first, 0.62, 120)
    lab.wait_for_text(0, " of it from project/train.py:61")
    lab.screenshot("moments-card", cell)


SLIDERS_CARD = """%load_ext hfmem_widget
from IPython.display import display
from tests.scenes import scripted_run
from tests.unit.view.test_what_fits import EXAMPLE
from hfmem_widget.view.card import card_bundle
session = scripted_run("training")
session.what_if = EXAMPLE
display(card_bundle(session, session.spans[0], with_chart=True), raw=True)
"""


def with_sliders(browser: BrowserContext, path: Path, width: int) -> Page:
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
    page = with_sliders(browser, tmp_path, width)
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
    lab.open(SLIDERS_CARD)
    lab.run_cell(0)
    slider = lab.cell(0).get_by_label("rows in a batch")
    slider.focus()
    lab.page.keyboard.press("ArrowRight")
    lab.wait_for_text(0, "Batch 9 \N{MULTIPLICATION SIGN} 128: peak 598.0 MiB")
    lab.screenshot("what-if-card", lab.cell(0))

    assert lab.page.evaluate(CUT_OFF) == [[]]
