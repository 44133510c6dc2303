"""The pytest plug-in on a real GPU: exact peaks, and CUDA comes up when the test brings it up."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

MIB = 1 << 20

TESTS = """
import pytest, torch

MIB = 1 << 20

def take(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

@pytest.mark.limit_vram("8 MiB")
def test_first_without():
    assert not torch.cuda.is_initialized()

@pytest.mark.limit_vram("64 MiB", left="1 MiB")
def test_fits():
    assert not torch.cuda.is_initialized()
    take(64)

@pytest.mark.limit_vram("64 MiB")
def test_too_much():
    take(66)  # a whole number of the 2 MiB that segments are made of

@pytest.fixture(scope="module")
def model():
    return take(256)

@pytest.mark.limit_vram("64 MiB", left="0")
def test_with_a_fixture(model, memory):
    torch.cuda.reset_peak_memory_stats()
    with memory.span() as part:
        take(32)
    torch.cuda.reset_peak_memory_stats()
    take(2)
    assert (part.peak(), memory.peak(), memory.left()) == (32 * MIB, 32 * MIB, 0)
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() + 2 * MIB

KEPT = []

@pytest.mark.limit_vram(left="1 MiB")
def test_leaves():
    KEPT.append(take(16))

@pytest.mark.limit_vram("1 MiB")
def test_raises():
    take(128)
    raise ValueError("its own")

@pytest.mark.limit_vram("1 GiB")
def test_runs_out():
    take(1 << 30)
"""


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environ.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "hfmem_widget.ci.plugin", *args]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=300
    )


def test_limits_and_baseline_on_a_gpu(tmp_path: Path) -> None:
    """Peaks are exact to the byte, nothing initialises CUDA early, and a run repeats its baseline."""
    (tmp_path / "test_it.py").write_text(TESTS)
    compare = ("--hfmem", "--hfmem-baseline", "memory.json")
    done = run(tmp_path, *compare, "--hfmem-update", "-rA", "--junitxml=junit.xml")
    text = done.stdout

    assert done.returncode == 1, text + done.stderr
    for name in ("first_without", "fits", "with_a_fixture"):
        assert f"PASSED test_it.py::test_{name}" in text, text
    assert "peak 66.0 MiB is above the limit of 64.0 MiB on cuda:0" in text
    assert "left 16.0 MiB is above the limit of 1.00 MiB on cuda:0" in text
    assert "ValueError: its own" in text
    assert "FAILED test_it.py::test_runs_out - torch.OutOfMemoryError" in text
    (environment,) = json.loads((tmp_path / "memory.json").read_text("utf-8"))["peaks"].items()
    assert environment[0].startswith("NVIDIA ")
    sizes = {"fits": 64 * MIB, "with_a_fixture": 32 * MIB}
    assert environment[1] == {f"test_it.py::test_{name}": size for name, size in sizes.items()}
    peaks = {
        case.get("name"): each.get("value")
        for case in ET.parse(tmp_path / "junit.xml").getroot().iter("testcase")
        for each in case.iter("property")
        if each.get("name") == "hfmem_peak"
    }
    assert peaks["test_raises"] == str(128 * MIB)

    grown = TESTS.replace("    take(64)", "    take(66)").replace('"64 MiB"', '"1 GiB"')
    (tmp_path / "test_it.py").write_text(grown)
    again = run(tmp_path, *compare, "-k", "fits or fixture")
    assert "peak 66.0 MiB, 3.1 % above the baseline's 64.0 MiB on cuda:0" in again.stdout
    assert "1 failed, 1 passed" in again.stdout
