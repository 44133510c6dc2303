"""Front ends other than JupyterLab: live while the kernel is busy, after a reload, and at the end.

``HFMEM_HOSTS`` names a Python that has them.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.jupyter import ENOUGH, ROOT, JupyterLab
from tests.browser.lab import SCRIPT, TIMEOUT, Lab, busy, take

PYTHON = os.environ.get("HFMEM_HOSTS", "")


def program(module: str, *options: str) -> tuple[str, ...]:
    """Return what begins the command line of a Jupyter server of another front end."""
    return (PYTHON, "-m", module, *options)


class Marimo:
    """A server of marimo, in an empty folder, on a notebook of this code."""

    def __init__(self, home: Path, notebook: str) -> None:
        self.folder = home
        (home / "notebook.py").write_text(notebook, encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "PYTHONPATH": path}
        options = ("edit", "notebook.py", "--headless", "--no-token", f"--port={port}")
        with (home / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                program("marimo", *options), cwd=home, env=env, stdout=log, stderr=log
            )
        deadline = time.monotonic() + TIMEOUT
        while not _listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT)
        shutil.rmtree(self.folder / "__marimo__", ignore_errors=True)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


LOAD = "%load_ext hfmem_widget"
DRAWN = "[data-hfmem-draws]"
# One of several extensions in the environment of the other front ends.
ALONE = "--YDocExtension.disable_rtc=True"
CARD = "xpath=ancestor::div[contains(@style, 'max-width')][1]"
RED_OF_TEXT = "it => Number(getComputedStyle(it).color.match(/\\d+/)[0])"
PROGRAM = """import marimo
app = marimo.App()

@app.cell
def _():
    import os, time
    import hfmem_widget
    return hfmem_widget, os, time

@app.cell
def _(hfmem_widget, os, time):
    with hfmem_widget.watch("fine-tune") as session:
        blocks = []
        while not os.path.exists("enough"):
            blocks.append(bytearray(2_000_000)); time.sleep(0.05)
    return (session,)

@app.cell
def _(hfmem_widget, session, time):
    session
    with hfmem_widget.watch("broken"):
        more = bytearray(50_000_000); time.sleep(1.0)
        1 / 0
    return
"""


def has(module: str) -> bool:
    """Return whether the Python of the other front ends has this one."""
    if not PYTHON:
        return False
    found = f"import importlib.util as it; raise SystemExit(it.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", found], check=False).returncode == 0


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(module), reason=f"no {module}: HFMEM_HOSTS names a Python")


@contextmanager
def opened(browser: Any, shots: Path, width: int = 1280, **options: Any) -> Iterator[Page]:
    """Yield a page of a browser that knows nothing."""
    whole: Browser = browser.browser
    context = whole.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    page.add_init_script(SCRIPT)
    yield page
    context.close()


def wait_for_draws(page: Page, count: int = 3, within: str = "") -> None:
    """Wait until a live chart was drawn so often; one in a shadow root counts as well."""
    chart = page.locator(f"{within} {DRAWN}".strip()).first
    chart.wait_for()
    page.wait_for_function(
        "([node, count]) => Number(node.dataset.hfmemDraws) >= count",
        arg=[chart.element_handle(), count],
    )


def pause(page: Page) -> None:
    page.locator(f"{DRAWN} .hfmem-pause").click()
    page.locator(f"{DRAWN} .hfmem-pause[aria-pressed='true']").wait_for()


def outputs(server: JupyterLab, path: str) -> str:
    saved = server.read_notebook(path).cells[1].outputs
    return "".join(one.get("data", {}).get("text/html", "") for one in saved)


@needs("notebook")
def test_notebook_7(browser: Any, tmp_path: Path, shots: Path) -> None:
    """Live in the cell and in the panel, in the panel after a reload; the toolbar has the button."""
    server_program = program("notebook", "--expose-app-in-browser")
    with (
        JupyterLab(tmp_path, ALONE, program=server_program) as server,
        opened(browser, shots) as page,
    ):
        path = server.write_notebook("notebook", LOAD, busy("--label fine-tune"), "1 + 1")
        page.goto(f"{server.url}notebooks/{path}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        page.wait_for_function("() => window.kernel?.()?.status === 'idle'")
        toggle = page.locator("jp-button[data-command='hfmem-widget:watch-cell']")
        page.locator(".jp-Cell").nth(2).click()
        toggle.click()
        page.locator(".jp-Cell").nth(2).get_by_text("%%memwatch").wait_for()
        toggle.click()
        page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells') && null")
        for place in (".jp-Cell-outputArea", "#hfmem-panel"):
            wait_for_draws(page, within=place)
        page.evaluate("() => notebook().context.save()")
        take(page, shots / "notebook7-live.png")
        page.reload()
        page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)")
        page.evaluate("() => jupyterapp.commands.execute('hfmem-widget:show').then(() => null)")
        wait_for_draws(page, within="#hfmem-panel")
        take(page, shots / "notebook7-reloaded.png")
        server.let_end()
        page.locator(".jp-Cell-outputArea").get_by_text("all figures").first.wait_for()
        take(page, shots / "notebook7-done.png")
        page.evaluate("() => notebook().context.save()")
        left = outputs(server, path)

    assert "all figures" in left
    assert "<svg" in left


@needs("nbclassic")
def test_the_classic_notebook(browser: Any, tmp_path: Path, shots: Path) -> None:
    """Live in the cell; card and still chart at the end, readable on its light page in a dark system."""
    with (
        JupyterLab(tmp_path, ALONE, program=program("nbclassic")) as server,
        opened(browser, shots, color_scheme="dark") as page,
    ):
        path = server.write_notebook("notebook", LOAD, busy("--label fine-tune"))
        page.goto(f"{server.url}nbclassic/notebooks/{path}")
        page.wait_for_function("() => window.Jupyter?.notebook?.kernel?.is_connected()")
        page.evaluate("() => { Jupyter.notebook.execute_all_cells() }")
        wait_for_draws(page, within=".output_area")
        take(page, shots / "nbclassic-live.png")
        pause(page)
        red = page.locator(".hfmem-root").evaluate(RED_OF_TEXT)
        server.let_end()
        page.locator(".output_area").get_by_text("all figures").first.wait_for()
        page.locator(".output_area svg").first.wait_for()
        take(page, shots / "nbclassic-done.png")
        page.evaluate("() => Jupyter.notebook.save_notebook().then(() => null)")
        left = outputs(server, path)

    assert "all figures" in left
    assert "<svg" in left
    assert red < 64


@needs("voila")
def test_voila(browser: Any, tmp_path: Path, shots: Path) -> None:
    """It runs the notebook before it shows the page: card and still chart, of one width."""
    with (
        JupyterLab(tmp_path, ALONE, program=program("notebook")) as server,
        opened(browser, shots) as page,
    ):
        slow = (
            "%%memwatch --label fine-tune\nimport time\nkept = bytearray(50_000_000)\ntime.sleep(2)"
        )
        path = server.write_notebook("app", LOAD, slow)
        page.goto(f"{server.url}voila/render/{path}")
        page.get_by_text("all figures").first.wait_for()
        page.locator(".js-plotly-plot").first.wait_for()
        take(page, shots / "voila-done.png")
        chart = page.locator(".js-plotly-plot").bounding_box()
        card = page.get_by_text("all figures").first.locator(CARD).bounding_box()

    assert chart is not None
    assert card is not None
    assert chart["width"] <= card["width"]


@needs("jupyter_server_ydoc")
@pytest.mark.parametrize("comes", ["before", "meanwhile"])
def test_two_people_in_one_notebook(browser: Any, tmp_path: Path, shots: Path, comes: str) -> None:
    """Both see the run live in the panel; the second page says where the chart is; the end is there once."""
    server_program = program("jupyterlab", "--expose-app-in-browser")
    with (
        JupyterLab(tmp_path, program=server_program) as server,
        opened(browser, shots, 1500) as first,
        opened(browser, shots, 1500) as second,
    ):
        path = server.write_notebook("together", LOAD, busy("--label fine-tune"))
        labs = [Lab(page, server, shots) for page in (first, second)]
        for lab in labs[: 2 if comes == "before" else 1]:
            lab.open_path(path, kernel=False)
            lab.page.wait_for_function("() => kernel()?.status === 'idle'")
        labs[0].run_all(wait=False)
        wait_for_draws(first, within=".jp-Cell-outputArea")
        if comes == "meanwhile":
            labs[1].open_path(path, kernel=False)
            labs[1].command("hfmem-widget:show")
        for page in (first, second):
            wait_for_draws(page, within="#hfmem-panel")
        if comes == "before":
            second.get_by_text("The live chart is on the page where this cell was run").wait_for()
        labs[1].screenshot(f"together-{comes}")
        labs[0].let_end()
        labs[0].wait_for_text(1, "all figures")
        # As long as any page may be waiting for another that has ended it.
        first.wait_for_timeout(12_000)
        labs[0].screenshot(f"together-{comes}-done")
        card, chart = (one.data for one in labs[0].save().cells[1].outputs)

    assert "all figures" in card["text/html"]
    assert "svg" in chart["text/html"]


@needs("marimo")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marimo(browser: Any, tmp_path: Path, shots: Path, scheme: str) -> None:
    """Live in the cell, and after a reload; at the end the card and the chart, after an error the line."""
    with Marimo(tmp_path, PROGRAM) as server, opened(browser, shots, color_scheme=scheme) as page:
        page.goto(server.url)
        page.get_by_text("hfmem_widget.watch").first.wait_for()
        page.keyboard.press("Control+Shift+r")
        wait_for_draws(page)
        take(page, shots / f"marimo-live-{scheme}.png")
        pause(page)
        red = page.locator(".hfmem-root").evaluate(RED_OF_TEXT)
        page.reload()
        wait_for_draws(page)
        (tmp_path / ENOUGH).touch()
        page.get_by_text("all figures").first.wait_for()
        page.get_by_text('memwatch "broken"').first.wait_for()
        page.set_viewport_size({"width": 1280, "height": 1500})
        take(page, shots / f"marimo-done-{scheme}.png")
        drawn = page.locator(DRAWN).count()

    assert red < 64  # marimo's page is light, whatever the system is
    assert drawn == 0
