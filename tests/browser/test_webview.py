"""VS Code and Colab, played by a stand-in (`webview.py`); neither itself was run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.lab import TIMEOUT, busy
from tests.browser.webview import Webview
from tests.kernel.drive import Kernel

LOAD = "%load_ext hfmem_widget"
DRAWS = "Number(document.querySelector('[data-hfmem-draws]')?.dataset.hfmemDraws ?? 0)"
# What VS Code tells every Python kernel, also one of a remote server.
FROM_VS_CODE = f"__vsc_ipynb_file__ = 'notebook.ipynb'\n{LOAD}"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with Kernel() as started:
        yield started


@pytest.fixture
def page(browser: BrowserContext) -> Iterator[Page]:
    page = browser.new_page()
    page.set_viewport_size({"width": 900, "height": 700})
    yield page
    page.close()


def read_until(view: Webview, script: str) -> None:
    """Pass messages on until something is true on the page."""
    deadline = time.monotonic() + TIMEOUT
    while not view.page.evaluate(script):
        assert time.monotonic() < deadline, script
        view.read()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_live_while_the_kernel_answers_nothing(
    kernel: Kernel, page: Page, shots: Path, *, dark: bool
) -> None:
    """The whole chart comes with the widget: nothing is fetched, and no answer is waited for."""
    errors: list[str] = []
    fetched: list[str] = []
    page.on("pageerror", lambda error: errors.append(error.message))
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    page.on("request", lambda request: fetched.append(request.url))
    view = Webview(page, kernel, dark=dark)
    kernel.run(FROM_VS_CODE)
    view.run(busy("--label fine-tune"))
    read_until(view, f"{DRAWS} > 5")
    page.screenshot(path=shots / f"webview-live-{'dark' if dark else 'light'}.png")
    text = page.locator(".hfmem-root").evaluate("it => getComputedStyle(it).color")
    (kernel.folder / "enough").touch()
    read_until(view, "document.body.innerText.includes('left behind')")
    read_until(view, "document.querySelector('[data-hfmem-draws]') === null")
    page.screenshot(path=shots / f"webview-done-{'dark' if dark else 'light'}.png")

    assert page.locator("svg").count() > 0
    assert text == ("rgb(230, 232, 235)" if dark else "rgb(31, 35, 40)")
    assert all(url.startswith(("blob:", "data:")) for url in fetched)
    assert errors == []


def test_a_host_that_is_not_known_gets_the_chart_when_its_cell_has_ended(
    kernel: Kernel, page: Page, shots: Path
) -> None:
    """It gets the loader, which finds no folder and asks the kernel; meanwhile a sentence stands there."""
    view = Webview(page, kernel)
    kernel.run(LOAD)
    kernel.run("%memwatch on --min 0")
    view.run("import time\nkept = bytearray(10_000_000)\ntime.sleep(12)")
    read_until(view, "document.body.innerText.includes('still loading')")
    page.screenshot(path=shots / "webview-loading.png")
    read_until(view, f"{DRAWS} > 0")
    page.screenshot(path=shots / "webview-loaded.png")
