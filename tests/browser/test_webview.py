"""VS Code, of which `webview.py` says what is real there and what is played."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import BrowserContext, Page
from plotly.offline import get_plotlyjs

from hfmem_widget.view.chart.figure import PLOTLY_MIME, chart_bundle
from tests.browser.contrast import below, contrasts
from tests.browser.jupyter import ENOUGH
from tests.browser.kernels import Kernels
from tests.browser.lab import TIMEOUT, busy, take
from tests.browser.webview import THEMES, Webview
from tests.data.drawn_scenes import PAGES
from tests.kernel.drive import Kernel
from tests.scenes import scripted_run

GROUNDS = "all => all.map(it => getComputedStyle(it).backgroundColor)"
LOAD = "%load_ext hfmem_widget"
DRAWS = "Number(document.querySelector('[data-hfmem-draws]')?.dataset.hfmemDraws ?? 0)"
UNTIL_ENOUGH = f"""import os, time
kept = bytearray(10_000_000)
while not os.path.exists({ENOUGH!r}): time.sleep(0.05)
"""
# What VS Code tells every Python kernel, also one of a remote server.
FROM_VS_CODE = f"__vsc_ipynb_file__ = 'notebook.ipynb'\n{LOAD}"


@pytest.fixture
def kernel(python_kernels: Kernels) -> Iterator[Kernel]:
    python_kernels.start()
    with Kernel(command=python_kernels.command) as started:
        yield started


@pytest.fixture
def page(browser: BrowserContext) -> Iterator[Page]:
    page = browser.new_page()
    page.set_viewport_size({"width": 900, "height": 700})
    yield page
    page.close()


def read_until(view: Webview, script: str, *, skip: int = 0) -> None:
    """Pass messages on until something is true on the page, whose clock skips so many seconds each time."""
    deadline = time.monotonic() + TIMEOUT
    while not view.page.evaluate(script):
        assert time.monotonic() < deadline, script
        view.read()
        if skip:
            view.page.clock.fast_forward(1000 * skip)


def test_every_output_can_be_read_in_every_theme(page: Page, shots: Path) -> None:
    """Cards, lines, tables, maps, reasons and still charts follow when the theme changes under them."""
    page.set_viewport_size({"width": 1000, "height": 1300})
    view = Webview(page)
    page.add_script_tag(content=get_plotlyjs())
    made: list[Any] = [one for make in PAGES.values() for one in make()]
    still = [scripted_run(name) for name in ("training", "eight gpus", "hour with gaps")]
    made += [chart_bundle(one, one.spans[0]) for one in still]
    for at, bundle in enumerate(made):
        view.show(f"html {at}", {"text/html": bundle["text/html"]})
        if PLOTLY_MIME in bundle:
            view.show(f"plotly {at}", bundle)
    page.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true })")
    found = {}
    for theme in THEMES:
        view.dress(theme)
        found[theme] = contrasts(page, ".output")
        take(page, shots / f"webview-outputs-{theme}.png")

    assert all(len(texts) > 500 for texts in found.values())
    assert {theme: below(texts) for theme, texts in found.items()} == {
        theme: {} for theme in THEMES
    }


@pytest.mark.parametrize(
    ("theme", "later", "manager"),
    [("Dark Modern", "Light Modern", 8), ("Light High Contrast", "Dark High Contrast", 7)],
    ids=["8", "7"],
)
def test_it_is_live_while_the_kernel_answers_nothing(
    kernel: Kernel, page: Page, shots: Path, *, theme: str, later: str, manager: Literal[7, 8]
) -> None:
    """The whole chart comes with the widget, fetches nothing, and can be read in each theme."""
    errors: list[str] = []
    fetched: list[str] = []
    page.on("pageerror", lambda error: errors.append(error.message))
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    page.on("request", lambda request: fetched.append(request.url))
    view = Webview(page, kernel, theme=theme, manager=manager)
    kernel.run(FROM_VS_CODE)
    view.run(busy("--label fine-tune"))
    read_until(view, f"{DRAWS} > 5")
    take(page, shots / f"webview-live-{theme}.png")
    live = contrasts(page, ".output")
    view.dress(later)
    draws = page.evaluate(DRAWS)
    read_until(view, f"{DRAWS} > {draws}")
    take(page, shots / f"webview-live-{later}.png")
    live_later = contrasts(page, ".output")
    grounds = page.locator(".cell-output-ipywidget-background").evaluate_all(GROUNDS)
    (kernel.folder / "enough").touch()
    read_until(view, "document.body.innerText.includes('all figures')")
    read_until(view, "document.querySelector('[data-hfmem-draws]') === null")
    take(page, shots / f"webview-done-{later}.png")

    assert min(len(live), len(live_later)) > 15
    assert below(live) == below(live_later) == {}
    assert grounds == ["rgba(0, 0, 0, 0)"] * 2
    assert page.locator("svg").count() > 0
    assert below(contrasts(page, ".output")) == {}
    assert all(url.startswith(("blob:", "data:")) for url in fetched)
    assert errors == []


def test_an_unknown_host_gets_the_chart_at_the_end(kernel: Kernel, page: Page, shots: Path) -> None:
    """It gets the loader, which finds no folder and asks the kernel; meanwhile a sentence stands there."""
    page.clock.install()
    view = Webview(page, kernel)
    kernel.run(LOAD)
    kernel.run("%memwatch on --min 0")
    view.run(UNTIL_ENOUGH)
    # A model that anywidget has not loaded within two seconds of the page's clock never gets a message.
    read_until(view, "hasSent")
    # The page's clock alone: nobody has to wait as long as the loader does before it says so.
    read_until(view, "document.body.innerText.includes('still loading')", skip=5)
    take(page, shots / "webview-loading.png")
    (kernel.folder / ENOUGH).touch()
    read_until(view, f"{DRAWS} > 0")
    take(page, shots / "webview-loaded.png")
