"""A report, opened from disk in a browser: its chart is the live one, and it asks nobody for anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.lab import take
from tests.scenes import scripted_run

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
