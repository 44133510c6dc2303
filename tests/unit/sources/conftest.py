from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hfmem_widget.sources import Source
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.nvml_source import HOST_NAMESPACE, make_proc


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a ``/proc`` of a process in the machine's first PID namespace."""
    return make_proc(tmp_path, HOST_NAMESPACE)


def opened(torch: ModuleType) -> tuple[AllocatorSource, CudaAllocator]:
    """Return a source and its allocator over a module torch."""
    allocator = CudaAllocator({"torch": torch})
    return AllocatorSource(allocator), allocator


def value(source: AllocatorSource, key: str) -> float:
    """Return one series' value, read now."""
    values = source.read(0.0)
    return values[[series.key for series in source.series].index(key)]


def by_metric(source: Source, now: float = 0.0) -> dict[str, float]:
    """Return all values of a source by metric, as read at `now` seconds."""
    values = source.read(now)
    return dict(zip((series.metric for series in source.series), values, strict=True))


def pass_on(raw: Any, device: int) -> Any:
    """Stand in for a ledger that has nothing to add."""
    return raw(device)
