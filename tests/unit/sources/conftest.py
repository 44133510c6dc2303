from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.nvml_source import HOST_NAMESPACE, make_proc


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a ``/proc`` of a process in the machine's first PID namespace."""
    return make_proc(tmp_path, HOST_NAMESPACE)
