"""The notebooks run from top to bottom, and say what their text says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def run(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    return notebook


def said(notebook: Any) -> str:
    """Return all plain text of all outputs."""
    return "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_is_kept_without_outputs(path: Path) -> None:
    """What a reader sees is what their own machine did."""
    cells = nbformat.read(path, as_version=4).cells

    assert not any(cell.get("outputs") for cell in cells)


def test_the_quickstart_runs() -> None:
    """Its training cell and its block are annotated."""
    text = said(run(NOTEBOOKS[0]))

    assert 'memwatch "fine-tune"' in text
    assert 'memwatch "inference"' in text


def test_the_trainer_notebook_finds_its_long_batch() -> None:
    """The long batch makes the worst step, phases are told apart, and logs carry peaks."""
    notebook = run(NOTEBOOKS[1])
    text = said(notebook)
    table = next(cell for cell in notebook.cells if "sort_values" in cell.source)
    worst = table.outputs[0].data["text/plain"].splitlines()[2].split()

    # On a CPU a peak is the highest of some samples, and one of the two long steps may be missed.
    assert int(worst[0]) in {10, 50}
    assert worst[1] == "128.0"
    assert "optimizer    80" in text
    assert "hfmem/peak_allocated_gib" in text
    assert 'memwatch "own loop"' in text
