from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.sources import Source
from tests.fakes.nvml_source import HOST_NAMESPACE, make_proc


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a ``/proc`` of a process in the machine's first PID namespace."""
    return make_proc(tmp_path, HOST_NAMESPACE)


def by_metric(source: Source, now: float = 0.0) -> dict[str, float]:
    """Return all values of a source by metric, as read at `now` seconds."""
    values = source.read(now)
    return dict(zip((series.metric for series in source.series), values, strict=True))


def pass_on(raw: Any, device: int) -> Any:
    """Stand in for a ledger that has nothing to add."""
    return raw(device)
