"""Recordings for the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hfmem_widget.cli.main import main
from tests.scenes import scripted_run


class Said(NamedTuple):
    code: int
    out: str
    err: str


Make = Callable[..., Path]
Hfmem = Callable[..., Said]


@pytest.fixture
def hfmem(capsys: pytest.CaptureFixture[str]) -> Hfmem:
    """Return a function that runs `hfmem`, and returns its exit code and its output."""

    def run(*words: object) -> Said:
        code = main(list(map(str, words)))
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


@pytest.fixture
def recorded(tmp_path: Path) -> Make:
    """Return a function that saves a scripted run as a recording in the test's folder."""

    def save(name: str = "short", file: str = "run.hfmem.jsonl", label: str = "") -> Path:
        session = scripted_run(name)
        session.label = label or session.label
        return session.save(tmp_path / file)

    return save


@pytest.fixture(autouse=True)
def usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the terminal in which the tests run."""
    for name in ("LC_ALL", "LANG", "NO_COLOR", "TERM", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
