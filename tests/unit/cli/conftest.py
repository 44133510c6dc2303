"""Recordings to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenes import scripted_run

Make = Callable[..., Path]


@pytest.fixture
def recorded(tmp_path: Path) -> Make:
    """Return what saves a scripted run as a recording in the test's folder."""

    def save(name: str = "short", file: str = "run.hfmem.jsonl", label: str = "") -> Path:
        session = scripted_run(name)
        session.label = label or session.label
        return session.save(tmp_path / file)

    return save


@pytest.fixture(autouse=True)
def usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the terminal of whoever runs the tests says."""
    for name in ("LC_ALL", "LANG", "NO_COLOR", "TERM", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
