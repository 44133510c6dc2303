"""`hfmem run NOTEBOOK`: errors are one line, before a kernel is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hfmem_widget.cli.output import WRONG
from tests.unit.cli.conftest import Hfmem, Make

CODE = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": 1}
TEXT = {"cell_type": "markdown", "source": "# 1", "metadata": {}}


def notebook(*cells: object, kernel: str = "python3") -> str:
    """Return the text of a notebook with some cells."""
    about = {"kernelspec": {"name": kernel, "display_name": kernel}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": about, "cells": [*cells]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "is not a notebook: Notebook does not appear to be JSON"),
        ("[]", "is not a notebook: "),
        ('{"nbformat": 9, "cells": []}', "is not a notebook: "),
        (notebook({**CODE, "source": "'\ud800'"}), "is not a notebook: "),
        (notebook(), "has no code to run"),
        (notebook(TEXT, {**CODE, "source": " \n"}), "has no code to run"),
        (notebook(CODE, kernel="no-such"), "'no-such' is not installed; choose one with --kernel"),
        (notebook(CODE, kernel="of-r"), "a Python kernel is needed, but 'of-r' is R"),
    ],
)
def test_a_file_that_cannot_be_run_is_an_error(
    text: str, said: str, tmp_path: Path, hfmem: Hfmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a notebook, without code, or for a kernel that is not installed."""
    spec = tmp_path / "kernels" / "of-r" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["R"], "display_name": "R", "language": "R"}), "utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    path = tmp_path / "it.ipynb"
    path.write_text(text, "utf-8")
    found = hfmem("run", path)

    assert (found.code, found.out) == (WRONG, "")
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["there-is-none.ipynb"], "cannot be read: No such file"),
        (["it.ipynb", "more"], "takes no arguments"),
        (["it.ipynb", "--label", "x"], "no --label"),
        (["it.ipynb", "--baseline", "nowhere"], "nowhere has no recordings of a notebook's cells"),
        (["it.ipynb", "--baseline", "."], "has no recordings of a notebook's cells"),
        (["it.ipynb", "--dir", "."], "has recordings already; choose another folder"),
        (["it.ipynb", "--fail-over", "much"], "--fail-over must be a percentage"),
        (
            ["--kernel", "python3", "--json", "--", "true"],
            "only a notebook (.ipynb) takes --kernel, --json",
        ),
    ],
)
def test_a_wrong_folder_is_an_error(
    words: list[str], said: str, recorded: Make, hfmem: Hfmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with other recordings is no baseline, and is not written to."""
    monkeypatch.chdir(recorded().parent)
    found = hfmem("run", *words)

    assert (found.code, found.out) == (WRONG, "")
    assert said in found.err


def test_nbclient_is_named(tmp_path: Path, hfmem: Hfmem, monkeypatch: pytest.MonkeyPatch) -> None:
    """nbclient, which only this command needs."""
    monkeypatch.setitem(sys.modules, "nbclient", None)
    path = tmp_path / "it.ipynb"
    path.write_text(notebook(CODE), "utf-8")

    assert hfmem("run", path).err.endswith("needs nbclient: pip install nbclient\n")
