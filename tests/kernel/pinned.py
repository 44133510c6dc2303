"""Environments with the packages of hosts that pin them: `tests/pins` has those, `.venv-pins` these."""

from __future__ import annotations

import pytest

from tests.kernel.drive import ROOT

HOSTS = ("colab", "kaggle", "databricks")


def python_of(host: str) -> str:
    """Return the Python with a host's packages; skip the test if it was not made."""
    python = ROOT / ".venv-pins" / host / "bin" / "python"
    if not python.exists():
        pytest.skip(f"its environment is not there: make .venv-pins/{host}/.made")
    return str(python)
