"""Trainings in a real JupyterLab: steps in the panel, phases on the card, workers of a DataLoader."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Page

from tests.browser.jupyter import JupyterLab
from tests.browser.lab import Lab, until_seen
from tests.browser.panel import Panel
from tests.kernel.test_notebooks import LEAK, text_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02-trainer.ipynb"
SETUP, TRAINING, TABLE, OWN_LOOP = 3, 5, 7, 15
LOSSES = "Training Loss"
MADE = 'trainer = make_trainer(arguments={"eval_strategy": "epoch"})'


@dataclass(frozen=True)
class Trained:
    """The notebook after all of it has run, as JupyterLab saved it, and what was seen meanwhile."""

    steps: int
    saved: Any
    rows: int
    live: str
    done: str
    errors: list[str]


@pytest.fixture(
    scope="module", params=[40, pytest.param(80, marks=pytest.mark.full)], ids="{} steps".format
)
def trained(
    request: pytest.FixtureRequest,
    jupyter_server: JupyterLab,
    training: str,
    used_page: Page,
    shots: Path,
) -> Trained:
    """Run the notebook once for all tests, with a look at the panel while it trains."""
    steps = request.param
    changes = {
        (SETUP, "(128, 8, 80)"): f"(128, 8, {steps})",
        (SETUP, MADE): f"{MADE}\n{until_seen(step=5)}",
    }
    lab = Lab(used_page, jupyter_server, shots)
    lab.open_path(jupyter_server.copy_notebook(NOTEBOOK, changes, kernel=training))
    lab.run_cell(1)
    lab.run_cell(SETUP)
    lab.run_cell(TRAINING, wait=False)
    panel = Panel(lab)
    panel.element.wait_for()
    panel.wait_for_draws(3)
    panel.wait_for_path("epoch 1 of 2")
    panel.wait_for_path(f" of {steps}")
    panel.element.locator(".hfmem-progress-part").filter(has_text=f" of {steps}").wait_for()
    rows, live = panel.rows, panel.element.inner_text()
    lab.screenshot("trainer-live")
    lab.let_end()
    lab.wait_for_text(TRAINING, "all figures")
    panel.element.get_by_text(f"{steps} steps", exact=True).wait_for()
    done = lab.cell(TRAINING).inner_text()
    lab.screenshot("trainer-done")
    for cell in range(TRAINING + 1, OWN_LOOP + 1):
        lab.run_cell(cell)
    lab.wait_for_text(OWN_LOOP, "all figures")
    saved = lab.save()
    lab.leave()
    jupyter_server.reset()
    return Trained(steps, saved, rows, live, done, lab.errors)


@pytest.fixture
def opened(lab: Lab, trained: Trained) -> Lab:
    """Return a page with the saved notebook on it; its kernel is gone."""
    nbformat.write(trained.saved, lab.server.folder / "trainer.ipynb")
    lab.open_path("trainer.ipynb", kernel=False)
    return lab


@pytest.mark.slow
def test_the_panel_follows_the_steps_of_a_training(trained: Trained) -> None:
    """While `trainer.train()` is busy it draws and counts the steps; the Trainer's own table stays."""
    assert trained.rows > 0
    assert f" of {trained.steps}" in trained.live
    assert LOSSES in trained.done
    assert trained.errors == []


@pytest.mark.slow
def test_a_training_reopens_with_its_phases_and_no_kernel(opened: Lab) -> None:
    """The saved card has a row per phase and names the worst step; the Trainer's table is beside it."""
    opened.cell(TRAINING).scroll_into_view_if_needed()
    opened.wait_for_text(TRAINING, "all figures")
    opened.unfold(TRAINING)
    shown = opened.cell(TRAINING).inner_text()

    for phase in ("train", "epoch", "step", "forward", "backward", "optimizer", "evaluate"):
        assert phase in shown
    # Where steps are short, several share a span.
    assert re.search(r"worst: (step|in steps) \d", shown)
    assert LOSSES in shown
    opened.screenshot("trainer-reopened")


@pytest.mark.slow
def test_a_loop_of_ones_own_is_drawn_as_steps(opened: Lab) -> None:
    """Spans that are named step, forward, backward and optimizer have rows on the card."""
    opened.page.evaluate("index => notebook().content.scrollToItem(index)", OWN_LOOP)
    opened.wait_for_text(OWN_LOOP, "all figures")
    # JupyterLab does not render what is out of sight: what is in the page is asked for, not what is painted.
    shown = opened.cell(OWN_LOOP).locator(".jp-Cell-outputArea").text_content() or ""

    for phase in ("step", "forward", "backward", "optimizer"):
        assert phase in shown


@pytest.mark.slow
def test_the_notebook_finds_its_long_batch(trained: Trained) -> None:
    """The long batch makes the worst step, phases are told apart, and logs carry peaks."""
    text = text_of(trained.saved)
    worst = trained.saved.cells[TABLE].outputs[0].data["text/plain"].splitlines()[2].split()

    # Of all batches one alone is so long, in either epoch. Where steps are short, some share a row.
    assert worst[1] == "128.0"
    # Short steps have their phases measured on some.
    assert f"step         {trained.steps}" in text
    assert re.search(r"optimizer +\d+ .* s ", text)
    assert "hfmem/peak_allocated_gib" in text
    assert 'memwatch "own loop"' in text
    assert not any(words in text for words in LEAK)


WITH_WORKERS = """
%load_ext hfmem_widget
import time
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader

class Hoard(torch.utils.data.Dataset):
    own = None
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if self.own is None:
            self.own = torch.ones(200 * 2**20, dtype=torch.uint8)
        time.sleep(0.002)
        return torch.full((1000,), index)

features = np.zeros((1000, 4096))
frame = pd.DataFrame({"score": np.zeros(1_000_000), "step": np.arange(1_000_000)})
np.save("features.npy", features)
mapped = np.load("features.npy", mmap_mode="r")
"""

TRAIN = """%%memwatch --label "with workers"
batches = iter(DataLoader(Hoard(), batch_size=16, num_workers=2))
for _ in range(200):
    batch = next(batches)
"""


def test_the_card_names_workers_and_the_holders_name_arrays(lab: Lab, training: str) -> None:
    """How many workers there were and what they held; which arrays this process has."""
    lab.open(WITH_WORKERS, TRAIN, "%memanatomy", "%memholders", kernel=training)
    lab.run_all()
    lab.wait_for_text(1, "2 DataLoader workers held up to")
    lab.wait_for_text(2, "2 DataLoader workers (PSS beyond this process)")
    lab.wait_for_text(2, "page cache")
    lab.wait_for_text(3, "pandas")
    lab.wait_for_text(3, "mapped files")
    for theme in ("light", "dark"):
        lab.theme(theme)
        for index, name in ((1, "card"), (2, "anatomy"), (3, "holders")):
            lab.screenshot(f"workers-{name}-{theme}", lab.cell(index))
    lab.theme("light")
