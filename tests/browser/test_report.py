"""A report opened from disk: its live chart; the picture of `--stacks` and sliders, as on a card."""

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
from tests.unit.features.stacks.test_html import stacks_of
from tests.unit.view.test_what_fits import EXAMPLE

HOSTILE = "</script><script>alert(1)</script> \u2028 <img src=x onerror=alert(1)>"


class Opened:
    """A report in a page of a browser."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.troubles: list[str] = []  # that the page logged, threw, or asked the reader
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
    session.stacks, session.what_if = stacks_of(training()), EXAMPLE
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


def test_without_scripts_chart_figures_and_tables_stay(browser: BrowserContext, path: Path) -> None:
    """Nothing invites to click on what does not answer."""
    assert browser.browser is not None
    context = browser.browser.new_context(java_script_enabled=False)
    opened = Opened(context.new_page(), path)
    lines = opened.page.locator("#lines")

    assert (opened.shows("#still svg >> nth=0"), opened.shows("#hfmem-chart")) == (True, False)
    assert "left behind" in opened.page.locator("#summary").inner_text()
    assert lines.get_by_role("img").count() > 0
    assert "by source line" in lines.inner_text()
    assert "Click" not in lines.inner_text()
    context.close()


STACKS_CARD = """%load_ext hfmem_widget
from IPython.display import display
from tests.data.torch_snapshots import training
from tests.unit.features.stacks.test_html import stacks_of
display(stacks_of(training()))
"""


def click(page: Page, picture: Locator, across: float, down: float) -> None:
    """Click on a picture, at a share of its width and so many pixels below its top."""
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + across * box["width"], box["y"] + down)


def faults(page: Page, part: Locator, selector: str, shot: Path) -> list[str]:
    """Return what is wrong with a part of a page in light, in dark, and with forced colours."""
    found: list[str] = page.evaluate(MISPLACED)
    for name, scheme, forced in (
        ("light", "light", "none"),
        ("dark", "dark", "none"),
        ("contrast", "dark", "active"),
    ):
        page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]
        take(part, shot.with_name(f"{shot.stem}-{name}.png"))
        found += violations(page, selector) if forced == "none" else []
    return found


@pytest.mark.parametrize("width", [1280, 900, 320])
def test_a_report_shows_memory_at_a_moment(opened: Opened, shots: Path, width: int) -> None:
    """A click on a band marks its row in both tables; the arrow keys go on; in every theme it can be read."""
    page, part = opened.page, opened.page.locator("#lines")
    page.set_viewport_size({"width": width, "height": 900})
    page.reload()
    status = part.get_by_role("status").first
    status.wait_for()
    before = status.inner_text()
    click(page, part.get_by_role("img").first, 0.62, 120)
    clicked = status.inner_text()
    marked = part.locator("[data-marked] th").all_inner_texts()
    found = faults(page, part, "#lines", shots / f"moments-{width}")
    part.get_by_label("after").first.focus()
    page.keyboard.press("Home")

    assert found == []
    assert before.startswith("Click the picture or move")
    assert " of it from project/train.py:61" in clicked
    assert [name.split()[1] for name in marked] == ["project/train.py:61"] * 2
    assert status.inner_text().startswith("0.000 s after the start: 108.0 MiB allocated")


def test_a_card_shows_allocated_memory_at_a_moment(lab: Lab) -> None:
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


@pytest.mark.parametrize("width", [900, 560, 320])
def test_the_sliders_of_a_report(opened: Opened, shots: Path, width: int) -> None:
    """They fit, tell by keyboard what another size takes, and are grey beyond what is known."""
    page, status = opened.page, opened.page.locator("#what-if [role=status]")
    page.set_viewport_size({"width": width, "height": 900})
    page.reload()
    page.locator("#what-if input").first.wait_for()
    found = faults(page, page.locator("#what-if"), "#what-if", shots / f"what-if-{width}")
    before = status.inner_text()
    page.get_by_label("rows in a batch").focus()
    page.keyboard.press("ArrowRight")
    more = status.inner_text()
    page.keyboard.press("End")
    take(page.locator("#what-if"), shots / f"what-if-beyond-{width}.png")

    assert found == []
    assert before.startswith("Batch 8 \N{MULTIPLICATION SIGN} 128: peak 566.0 MiB")
    assert more.startswith("Batch 9 \N{MULTIPLICATION SIGN} 128: peak 598.0 MiB")
    assert "not known" in status.inner_text()


def test_the_sliders_of_a_card(lab: Lab) -> None:
    """JupyterLab runs the script of a card that the kernel has just sent."""
    lab.open(SLIDERS_CARD)
    lab.run_cell(0)
    lab.cell(0).get_by_label("rows in a batch").focus()
    lab.page.keyboard.press("ArrowRight")
    lab.wait_for_text(0, "Batch 9 \N{MULTIPLICATION SIGN} 128: peak 598.0 MiB")
    lab.screenshot("what-if-card", lab.cell(0))

    assert lab.page.evaluate(CUT_OFF) == [[]]
