"""The real pynvml over a stand-in for the driver's library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data import ROOT
from tests.fakes.nvml_stub import stub_or_skip

READ = """
import json, os, sys
from hfmem_widget.sources.nvml import NvmlSource
source = NvmlSource(None, os.environ)
values = list(source.read(0.0))
row = dict(zip((one.key for one in source.series), values))
devices = [[d.key, d.name, d.uuid, d.total] for d in source.devices]
source.close()
print(json.dumps(dict(row=row, devices=devices, notes=source.notes)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub_or_skip(tmp_path_factory.mktemp("nvml"))


def run(code: str, library: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    stub = {f"NVML_STUB_{name.upper()}": str(value) for name, value in settings.items()}
    paths = {"LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **paths, **stub},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def read(library: Path, **settings: object) -> dict[str, Any]:
    done = run(READ, library, **settings)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_every_field_comes_through(library: Path) -> None:
    """Structures, handles, names and process lists survive the way through ctypes."""
    result = read(library, devices=2)

    assert result["row"]["cuda:1/device_used"] == 1 << 30
    assert result["row"]["cuda:1/driver_reserved"] == 600 << 20
    assert result["row"]["cuda:1/process"] == 512 << 20
    assert result["row"]["cuda:1/others"] == 512 << 20
    assert result["row"]["cuda:1/utilization"] == 42
    assert result["devices"][1] == [
        "cuda:1", "NVIDIA Stub", "GPU-00000001-0000-0000-0000-000000000000", 80 << 30,
    ]  # fmt: skip
    assert result["notes"] == []


def test_a_slow_call_lets_python_run(library: Path) -> None:
    """While the driver takes its time, other threads go on: the call does not hold the interpreter."""
    code = """
import os, threading
from hfmem_widget.sources.nvml import NvmlSource
source = NvmlSource(None, os.environ)
reader = threading.Thread(target=source.read, args=(0.0,))
reader.start()
turns = 0
while reader.is_alive():
    turns += 1
print(turns)
"""
    assert int(run(code, library, sleep_ms=200).stdout) > 1000
