"""The notebook of many GPUs in a real JupyterLab: all ranks live while the cell is busy, then their card."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.jupyter import ENOUGH, JupyterLab
from tests.browser.lab import Lab
from tests.browser.panel import Panel
from tests.ranks.launch import free_port

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07-many-gpus.ipynb"
LOAD, SETUP, LAUNCH = 1, 3, 5
PAUSE = "        time.sleep(0.25)"
# Each rank has a quarter of the work, and then waits until the page has seen what it wanted.
CHANGES = {
    (SETUP, "import time"): "import os, time",
    (SETUP, "width=768"): "width=384",
    (SETUP, PAUSE): f"{PAUSE}\n    while not os.path.exists({ENOUGH!r}):\n{PAUSE}",
    # Two suites at once would meet at accelerate's own port.
    (LAUNCH, "notebook_launcher(train, "): f"notebook_launcher(train, use_port='{free_port()}', ",
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Seen:
    """What was seen of all ranks: while the cell was busy, after a reload, and when it had ended."""

    drawn: list[bool]
    drawn_again: bool
    card: str
    kept: bool
    errors: list[str]
    later_errors: list[str]


@pytest.fixture(scope="module")
def seen(jupyter_server: JupyterLab, training: str, used_page: Page, shots: Path) -> Seen:
    """Run the notebook once for all tests, and reload the page while its ranks are at work."""
    lab = Lab(used_page, jupyter_server, shots)
    lab.open_path(jupyter_server.copy_notebook(NOTEBOOK, CHANGES, kernel=training))
    lab.run_cell(LOAD)
    lab.run_cell(SETUP)
    lab.run_cell(LAUNCH, wait=False)
    tabs = [
        place.get_by_role("tab", name="ranks") for place in (Panel(lab).element, lab.cell(LAUNCH))
    ]
    for tab in tabs:
        tab.wait_for()
    drawn = [tab.is_visible() for tab in tabs]
    lab.save()
    errors = list(lab.errors)
    lab.reload(wait=False)
    tabs[0].wait_for()
    Panel(lab).wait_for_draws(2)
    lab.screenshot("ranks-reloaded")
    again = tabs[0].is_visible() and "running" in Panel(lab).element.inner_text()
    # JupyterLab has to show the notebook again, too: what a cell puts out before is lost to it.
    lab.wait_for("() => kernel()?.connectionStatus === 'connected'")
    lab.cell(LAUNCH).wait_for()
    lab.let_end()
    lab.wait_for_text(LAUNCH, "all figures")
    lab.cell(LAUNCH).scroll_into_view_if_needed()
    lab.screenshot("ranks-done")
    card, kept = lab.cell(LAUNCH).inner_text(), tabs[0].is_visible()
    lab.leave()
    jupyter_server.reset()
    return Seen(drawn, again, card, kept, errors, lab.errors_but_lost())


def test_all_ranks_are_drawn_while_their_cell_is_busy(seen: Seen) -> None:
    """In the panel and in the cell; their card stays, with the worst rank by name."""
    assert seen.drawn == [True, True]
    assert re.search(r"Peak .* on rank 1\b", seen.card)
    assert seen.kept
    assert seen.errors == []


def test_a_page_that_is_reloaded_draws_all_ranks_again(seen: Seen) -> None:
    """While the cell is still busy, in the panel, which is live where a widget is not."""
    assert seen.drawn_again
    assert seen.later_errors == []
