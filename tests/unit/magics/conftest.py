"""Cells to run."""

from collections.abc import Callable

import pytest
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.magics.memwatch import MemwatchMagics

Output = Callable[..., str]


@pytest.fixture
def magics(shell: InteractiveShell) -> MemwatchMagics:
    registered: MemwatchMagics = shell.magics_manager.registry["MemwatchMagics"]
    return registered


@pytest.fixture
def output(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Output:
    """Return a function that runs cells, and returns all their output, errors included."""

    def run(*cells: str) -> str:
        capsys.readouterr()
        for cell in cells:
            shell.run_cell(cell)
        return "".join(capsys.readouterr())

    return run
