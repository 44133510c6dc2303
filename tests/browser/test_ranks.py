"""The notebook of many GPUs in a real JupyterLab: all ranks live while the cell is busy, then their card."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.lab import Lab
from tests.browser.panel import Panel
from tests.ranks.launch import free_port

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07-many-gpus.ipynb"
LOAD, SETUP, LAUNCH = 1, 3, 5


pytestmark = pytest.mark.slow


@pytest.fixture
def opened(lab: Lab) -> Lab:
    """Return a page with the notebook on it, and nothing launched."""
    # Two suites at once would meet at accelerate's own port.
    launch = f"notebook_launcher(train, use_port='{free_port()}', "
    source = NOTEBOOK.read_text("utf-8").replace("notebook_launcher(train, ", launch)
    (lab.server.folder / "ranks.ipynb").write_text(source, "utf-8")
    lab.open_path("ranks.ipynb")
    lab.run_cell(LOAD)
    lab.run_cell(SETUP)
    return lab


def test_all_ranks_are_drawn_while_their_cell_is_busy(opened: Lab) -> None:
    """In the panel and in the cell; their card stays, with the worst rank by name."""
    opened.run_cell(LAUNCH, wait=False)
    tab = Panel(opened).element.get_by_role("tab", name="ranks")
    tab.wait_for()
    opened.cell(LAUNCH).get_by_role("tab", name="ranks").wait_for()
    opened.wait_until_idle()

    opened.wait_for_text(LAUNCH, "worst peak")
    opened.wait_for_text(LAUNCH, "rank 1")
    assert tab.is_visible()
    opened.cell(LAUNCH).scroll_into_view_if_needed()
    opened.screenshot("ranks-done")
    assert opened.errors == []


def test_a_page_that_is_reloaded_draws_all_ranks_again(opened: Lab) -> None:
    """While the cell is still busy, in the panel, which is live where a widget is not."""
    opened.run_cell(LAUNCH, wait=False)
    tab = Panel(opened).element.get_by_role("tab", name="ranks")
    tab.wait_for()
    opened.reload(wait=False)
    tab.wait_for()

    Panel(opened).wait_for_draws(2)
    opened.screenshot("ranks-reloaded")
    opened.wait_until_idle()
