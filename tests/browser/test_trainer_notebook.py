"""The Trainer notebook in a real JupyterLab: steps in the panel while it trains, phases on the card after."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.browser.lab import Lab
from tests.browser.panel import Panel

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02-trainer.ipynb"
SETUP, TRAINING, OWN_LOOP = 3, 5, 13
LOSSES = "Training Loss"


@pytest.fixture
def opened(lab: Lab) -> Lab:
    """Return a page with the notebook on it, its model built and nothing trained."""
    shutil.copy(NOTEBOOK, lab.server.folder / "trainer.ipynb")
    lab.open_path("trainer.ipynb")
    lab.run_cell(1)
    lab.run_cell(SETUP)
    return lab


@pytest.mark.slow
def test_the_panel_follows_the_steps_of_a_training(opened: Lab) -> None:
    """While `trainer.train()` is busy it draws and counts the steps; the Trainer's own table stays."""
    opened.run_cell(TRAINING, wait=False)
    panel = Panel(opened)
    panel.element.wait_for()
    panel.wait_for_draws(3)
    panel.wait_for_path("epoch 1 of 2")
    panel.wait_for_path(" of 80")
    panel.element.locator(".hfmem-progress-part").filter(has_text=" of 80").wait_for()
    assert panel.rows > 0
    opened.screenshot("trainer-live")
    opened.wait_until_idle()

    opened.wait_for_text(TRAINING, "left behind")
    opened.wait_for_text(TRAINING, LOSSES)
    panel.element.get_by_text("80 steps", exact=True).wait_for()
    opened.screenshot("trainer-done")
    assert opened.errors == []


@pytest.mark.slow
@pytest.mark.new_page
def test_a_training_reopens_with_its_phases_and_no_kernel(opened: Lab) -> None:
    """The saved card has a row per phase and names the worst step; the Trainer's table is beside it."""
    opened.run_cell(TRAINING)
    opened.wait_for_text(TRAINING, "left behind")
    opened.save()
    opened.close()
    opened.server.shut_kernels_down()
    opened.open_path("trainer.ipynb", kernel=False)
    opened.cell(TRAINING).scroll_into_view_if_needed()
    opened.wait_for_text(TRAINING, "left behind")
    shown = opened.cell(TRAINING).inner_text()

    for phase in ("train", "epoch", "step", "forward", "backward", "optimizer", "evaluate"):
        assert phase in shown
    assert "worst: step" in shown
    assert LOSSES in shown
    opened.screenshot("trainer-reopened")
    assert opened.errors == []


def test_a_loop_of_ones_own_is_drawn_as_steps(opened: Lab) -> None:
    """Spans that are named step, forward, backward and optimizer have rows on the card."""
    opened.run_cell(OWN_LOOP)
    opened.wait_for_text(OWN_LOOP, "left behind")
    shown = opened.cell(OWN_LOOP).inner_text()

    for phase in ("step", "forward", "backward", "optimizer"):
        assert phase in shown
    assert opened.errors == []
