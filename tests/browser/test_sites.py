"""JupyterLab as a site serves it: below a path, with a policy for its pages, with strangers' notebooks."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import BrowserContext

from hfmem_widget.view.card import card_bundle
from tests.browser.jupyter import JupyterLab
from tests.browser.lab import Lab, busy
from tests.browser.panel import wait_for_panel
from tests.browser.shown import LOAD, STILL, wait_for_chart
from tests.scenes import scripted_run

# JupyterLab itself needs the first two for scripts (its settings' schemas are compiled), anywidget the third.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:"
)
BELOW = "/user/x/"


def test_a_hub_has_path_and_policy(browser: BrowserContext, tmp_path: Path, shots: Path) -> None:
    """With all parts of JupyterLab: live in cell and panel, and nothing is fetched from elsewhere."""
    headers = {"headers": {"Content-Security-Policy": POLICY}}
    options = (f"--ServerApp.base_url={BELOW}", f"--ServerApp.tornado_settings={headers!r}")
    page = browser.new_page()
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    with JupyterLab(tmp_path, *options, whole=True) as server:
        lab = Lab(page, server, shots)
        lab.open(LOAD, busy("--label fine-tune"))
        lab.run_all(wait=False)
        wait_for_chart(lab, 1)
        wait_for_panel(lab)
        lab.screenshot("hub-live")
        lab.let_end()
        lab.wait_for_text(1, "all figures")
        page.close()

    ours = [url for url in fetched if "hfmem-widget/static/chart.js" in url]
    assert len(ours) == 1
    assert ours[0].startswith(f"{server.url}lab/extensions/")
    assert all(url.startswith((server.url, "blob:", "data:")) for url in fetched)
    assert lab.errors == []


def test_a_notebook_that_is_not_trusted_shows_its_saved_outputs(lab: Lab) -> None:
    """JupyterLab cleans the HTML of an untrusted notebook; the figures and the chart are all there."""
    code = (
        "%%memwatch --label fine-tune\nimport time\nkept = bytearray(50_000_000)\ntime.sleep(1.5)"
    )
    cells = [nbformat.v4.new_code_cell(text) for text in (LOAD, code)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook).execute()
    nbformat.write(notebook, lab.server.folder / "stranger.ipynb")
    lab.open_path("stranger.ipynb", kernel=False)
    lab.wait_for_text(1, "all figures")
    lab.cell(1).locator(STILL).wait_for()
    lab.screenshot("untrusted")

    assert lab.page.evaluate("() => notebook().content.widgets[1].model.trusted") is False
    lab.unfold(1)
    assert "headroom at the peak" in lab.cell(1).inner_text()


def test_on_a_page_of_unknown_ground_nothing_covers_a_tables_text(browser: BrowserContext) -> None:
    """Such as a saved card on a dark site that has no theme's variables: its ink is the page's, too."""
    page = browser.new_page()
    session = scripted_run("training")
    card = card_bundle(session, session.spans[0], with_chart=True)["text/html"]
    page.set_content(f'<body style="background:#000;color:rgb(230, 230, 230)">{card}')
    drawn = page.locator("div:has(> table)").evaluate(
        "it => [getComputedStyle(it).backgroundImage, getComputedStyle(it).color]"
    )
    page.close()

    assert drawn == ["none", "rgb(230, 230, 230)"]
