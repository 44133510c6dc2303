"""Cells in a new kernel, as nbclient and papermill run them, and what they leave."""

from typing import Any

import pytest


def execute(*cells: str) -> Any:
    """Return the notebook with its outputs; skip the test if nothing can run notebooks."""
    nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient")
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    pytest.importorskip("ipykernel", reason="notebooks need ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return notebook


def plain(cell: Any) -> str:
    return "\n".join(one.data.get("text/plain", "") for one in cell.outputs if "data" in one)


def printed(cell: Any) -> str:
    return "".join(one.text for one in cell.outputs if one.get("name") == "stdout").strip()
