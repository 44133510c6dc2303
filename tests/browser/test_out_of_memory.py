"""Where a reader of JupyterLab finds why a cell ran out of memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.lab import THEMES, Lab

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "05-out-of-memory.ipynb"
RUNS_OUT = 3


def cells() -> list[str]:
    """Return the code cells of the notebook up to the first that runs out of memory."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(one["source"]) for one in found if one["cell_type"] == "code"]
    return sources[: RUNS_OUT + 1]


@pytest.mark.slow
def test_the_reason_stands_above_the_traceback(lab: Lab, training: str) -> None:
    """It is the first thing of the cell's output, in either theme, and the error comes below it."""
    lab.page.set_viewport_size({"width": 1280, "height": 900})
    lab.open(*cells(), kernel=training)
    for cell in range(RUNS_OUT + 1):
        lab.run_cell(cell)
    lab.wait_for_text(RUNS_OUT, "Out of memory")
    area = lab.cell(RUNS_OUT).locator(".jp-Cell-outputArea")
    reason = area.get_by_text("what to try, most effective first")
    error = area.locator("[data-mime-type='application/vnd.jupyter.stderr'], .jp-RenderedText").last
    assert reason.count() == 1
    for theme in THEMES:
        lab.theme(theme)
        reason.scroll_into_view_if_needed()
        above, below = reason.bounding_box(), error.bounding_box()
        assert above is not None
        assert below is not None
        assert above["y"] < below["y"]
        area.locator(".jp-OutputArea-child").first.scroll_into_view_if_needed()
        lab.screenshot(f"out-of-memory-{theme}")
        lab.screenshot(f"out-of-memory-card-{theme}", area.locator(".jp-OutputArea-child").first)
    assert not lab.errors
