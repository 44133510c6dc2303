"""Firefox: a report from disk, and JupyterLab while a cell runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.firefox import Firefox, find_firefox
from tests.browser.jupyter import JupyterLab
from tests.browser.lab import SCRIPT
from tests.scenes import scripted_run

pytestmark = pytest.mark.skipif(find_firefox() is None, reason="Firefox is not installed")

PANEL = "document.querySelector('#hfmem-panel [data-hfmem-draws]')"
CELL = "document.querySelector('.jp-Cell-outputArea [data-hfmem-draws]')"
PROMPTS = ".jp-InputArea-prompt"
READY = "window.jupyterapp?.restored.then(() => window.notebook?.()?.context.isReady ?? false)"
IDLE = "kernel()?.status === 'idle'"
BUSY = """
%%memwatch --label in-firefox
import pathlib, time
kept = []
while not pathlib.Path("seen").exists() and len(kept) < 600:
    kept.append(bytearray(1 << 20))
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    path = find_firefox()
    assert path is not None
    with Firefox(path, tmp_path_factory.mktemp("profile")) as opened:
        opened.resize(1400, 900)
        opened.add_script(SCRIPT)
        yield opened


@pytest.fixture
def page(firefox: Firefox) -> Iterator[Firefox]:
    firefox.errors.clear()
    yield firefox
    firefox.open("about:blank")


def test_a_report_from_disk_has_the_live_chart(page: Firefox, tmp_path: Path, shots: Path) -> None:
    """It is drawn, and answers the pointer; nothing is logged as an error."""
    page.open(scripted_run("leak").report(tmp_path / "run.html").as_uri())
    page.wait_for("document.querySelector('#hfmem-chart .main-svg') !== null")
    left, top, width, height = page.evaluate(
        "(({left, top, width, height}) => [left, top, width, height])"
        "(document.querySelector('#hfmem-chart .hfmem-plot').getBoundingClientRect())"
    )

    page.move_to(left + width / 2, top + height / 2)
    page.wait_for("document.querySelector('.hfmem-tip')?.checkVisibility()")
    page.screenshot(shots / "firefox-report.png")
    assert page.errors == []


def test_a_cell_is_drawn_as_it_runs(page: Firefox, jupyter_server: JupyterLab, shots: Path) -> None:
    """Live in both while the kernel is busy; the card is there once it is idle."""
    path = jupyter_server.write_notebook("firefox", "%load_ext hfmem_widget", BUSY.lstrip())
    page.open(f"{jupyter_server.url}lab/workspaces/firefox/tree/{path}")
    page.wait_for(READY)
    page.wait_for(IDLE)
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
    for chart in (PANEL, CELL):
        page.wait_for(f"Number({chart}?.dataset.hfmemDraws) > 3")

    # Not the kernel's status: right after the extension was loaded it may say idle (docs/support.md).
    assert page.evaluate(f"[...document.querySelectorAll('{PROMPTS}')].at(-1).innerText") == "[*]:"
    page.screenshot(shots / "firefox-lab.png")
    (jupyter_server.folder / "seen").touch()
    page.wait_for(IDLE)
    page.wait_for("notebook().content.node.innerText.includes('done')")
    page.screenshot(shots / "firefox-lab-done.png")
    (jupyter_server.folder / "seen").unlink()
    jupyter_server.reset()
