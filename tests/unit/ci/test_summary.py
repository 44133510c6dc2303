"""What a run says at its end: in the terminal, in JUnit's file, with xdist; and nothing where unused."""

import json
import os
import subprocess
import sys
import tomllib
from functools import partial
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from _pytest.assertion.rewrite import AssertionRewriter

import hfmem_widget
from tests.unit.ci.conftest import MIB, PLUGIN, Play

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]


def test_tests_that_are_only_listed_have_no_table(play: Play) -> None:
    """``--collect-only`` measures nothing."""
    text = play.text("def test_it(gpu): gpu.alloc(64 * MIB)", "--hfmem", "--collect-only")

    assert "test_it" in text
    assert "GPU memory of tests" not in text


def test_the_table_has_the_highest_first(play: Play) -> None:
    """The table has ten tests at most, the GPU and torch below; tests without GPU memory are left out."""
    lines = play.text(
        """
@pytest.mark.parametrize("size", range(12))
def test_it(gpu, size): gpu.free(gpu.alloc(size * MIB))

def test_most(gpu):
    gpu.alloc(64 * MIB, 1)
    assert False
""",
        "--hfmem",
    ).splitlines()
    at = next(at for at, line in enumerate(lines) if "GPU memory of tests" in line)
    rows = [line.split() for line in lines[at + 1 : at + 13]]
    assert rows[0] == ["peak", "left", "reserved", "device", "test"]
    assert rows[1][-4:] == ["test_it.py::test_most", "(did", "not", "pass)"]
    assert rows[1][:7] == ["64.0", "MiB", "+64.0", "MiB", "64.0", "MiB", "cuda:1"]
    names = [f"test_it.py::test_it[{n}]" for n in range(11, 2, -1)]
    assert [row[-1] for row in rows[2:11]] == names
    assert lines[at + 12] == "… and 2 tests with less"
    assert lines[at + 14].startswith("NVIDIA Fake, torch ")


def test_without_a_gpu_the_table_is_of_the_heap(play: Play) -> None:
    """The line above it says so, and "≥" says how the peaks are known."""
    play.allocator.initialized = False
    text = play.text("def test_it(): pass", "--hfmem")

    assert "No GPU was used: these figures are of the process' private memory" in text
    assert "≥ " in text


def test_a_test_that_runs_again_is_reported_once(play: Play) -> None:
    """The last run of a test counts, as with plug-ins that run a failed one again."""
    play.pytester.makeconftest("""
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    runtestprotocol(item, nextitem=nextitem, log=True)
""")
    text = play.text(
        """
SIZES = [64, 8]
def test_it(gpu): gpu.free(gpu.alloc(SIZES.pop(0) * MIB))
""",
        "--hfmem",
    )

    assert text.count(" cuda:0 ") == 1
    assert "8.00 MiB" in text
    assert "64.0 MiB         ±0  64.0" not in text


def test_the_marker_and_the_fixture_are_listed(play: Play) -> None:
    """`--markers`, `--fixtures` and `--help` say what there is; `--strict-markers` knows the marker."""
    assert "@pytest.mark.limit_vram(peak, left=None, device=" in play.text("", "--markers")
    assert "span()" in play.text("", "--fixtures")
    assert "--hfmem-tolerance=PERCENT" in play.text("", "--help")
    marked = "@pytest.mark.limit_vram(1)\ndef test_it(): pass"
    play(marked, "--strict-markers").assert_outcomes(passed=1)


def test_the_package_brings_the_plugin() -> None:
    """It is an entry point, and where a notebook uses us pytest does not warn that it cannot rewrite us."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert hasattr(import_module(project["entry-points"]["pytest11"]["hfmem"]), "pytest_addoption")
    assert AssertionRewriter.is_rewrite_disabled(hfmem_widget.__doc__ or "")


UNUSED = """
import sys

def test_it():
    names = {name for name in sys.modules if name.startswith("hfmem_widget")}
    assert names == {"hfmem_widget", "hfmem_widget.ci", "hfmem_widget.ci.plugin"}
    assert not {"torch", "pynvml", "numpy"} & sys.modules.keys()
"""

GROWS = """
@pytest.mark.limit_vram("8 MiB", left="0")
def test_over(gpu): gpu.free(gpu.alloc(9 * MIB))

@pytest.mark.parametrize("size", [16, 32])
def test_it(gpu, size): gpu.free(gpu.alloc(size * MIB))
"""

FAKE = """
import pytest
from hfmem_widget.monitor import process
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from tests.fakes.torch_cuda import FakeAllocator

ALLOCATOR = FakeAllocator()
process.this.monitor = Monitor(Sampler([]), PeakLedger(ALLOCATOR))

@pytest.fixture
def gpu(): return ALLOCATOR
"""


def test_unused_nothing_of_ours_is_imported(tmp_path: Path) -> None:
    """Where no marker, fixture or option is used, a run has loaded one small module of ours."""
    (tmp_path / "test_it.py").write_text(UNUSED)
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", *PLUGIN]
    run = partial(subprocess.run, capture_output=True, text=True, check=False)
    done = run(command, cwd=tmp_path, env=environ)

    assert done.returncode == 0, done.stdout
    assert "GPU memory" not in done.stdout


def test_workers_share_one_table_and_one_file(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """With xdist each worker measures, and table, baseline and JUnit's file are written once."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = play.pytester.path
    play.pytester.makeconftest(FAKE)
    entries = {"test_it.py::test_gone": MIB}
    content = {"hfmem_baseline": 1, "peaks": {"NVIDIA Fake, torch unknown": entries}}
    (folder / "memory.json").write_text(json.dumps(content))
    options = ("-p", "xdist", "-n", "2", "--hfmem", "--junitxml=junit.xml")
    result = play(GROWS, *options, "--hfmem-baseline", "memory.json", "--hfmem-update")
    text = str(result.stdout)

    result.assert_outcomes(passed=2, failed=1)
    assert text.count("= GPU memory of tests =") == 1
    assert "peak 9.00 MiB is above the limit of 8.00 MiB" in text
    order = [line.split()[-1] for line in text.splitlines() if " cuda:0 " in line]
    assert order[:2] == ["test_it.py::test_it[32]", "test_it.py::test_it[16]"]
    peaks = {f"test_it.py::test_it[{size}]": size * MIB for size in (16, 32)}
    written = json.loads((folder / "memory.json").read_text("utf-8"))["peaks"]
    assert written == {"NVIDIA Fake, torch unknown": peaks}
    properties = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in ET.parse(folder / "junit.xml").getroot().iter("testcase")
    }
    assert properties["test_it[16]"] == {
        "hfmem_device": "cuda:0",
        "hfmem_peak": str(16 * MIB),
        "hfmem_left": "0",
        "hfmem_reserved": properties["test_it[16]"]["hfmem_reserved"],
        "hfmem_certainty": "exact",
        "hfmem_environment": "NVIDIA Fake, torch unknown",
    }
    assert properties["test_over"]["hfmem_peak"] == str(9 * MIB)


ALLOCATES = """
def test_little(gpu): gpu.free(gpu.alloc(8 * MIB))

def test_much(gpu): gpu.free(gpu.alloc(80 * MIB))

@pytest.mark.limit_vram("100 MiB")
def test_may(gpu): gpu.free(gpu.alloc(80 * MIB))
"""


def test_a_limit_in_the_settings_is_for_tests_without_one_of_their_own(play: Play) -> None:
    """The marker of a test, a class or a module holds instead."""
    play.pytester.makeini("[pytest]\nhfmem_limit_vram = 64 MiB")
    result = play(ALLOCATES)

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*peak 80.0 MiB is above the limit of 64.0 MiB on cuda:0*"])


def test_each_measured_test_has_a_recording(play: Play) -> None:
    """A recording has the name of its test; unmeasured tests have none, and a second run writes beside it."""
    source = """
@pytest.mark.limit_vram("8 GiB")
@pytest.mark.parametrize("size", ["a/b"])
def test_it(size): bytearray(8 * MIB)

@pytest.mark.limit_vram("8 GiB")
def test_fails(): raise ValueError

def test_other(): pass
"""
    for _ in range(2):
        play(source, "--hfmem-record", "recorded").assert_outcomes(passed=2, failed=1)
    names = sorted(path.name for path in (play.pytester.path / "recorded").iterdir())

    ending = ".hfmem.jsonl"
    tests = [f"test_it.py__{name}" for name in ("test_it[a_b]", "test_fails")]
    assert names == sorted(f"{test}{number}{ending}" for test in tests for number in ("", "-2"))
    read = hfmem_widget.open(play.pytester.path / "recorded" / f"test_it.py__test_fails{ending}")
    assert (read.label, read.spans[0].outcome) == ("test_it.py::test_fails", "raised ValueError")
    # With the option for all tests, all of them.
    play(source, "--hfmem-record", "all", "--hfmem")
    assert len(list((play.pytester.path / "all").iterdir())) == 3


def test_a_recording_that_cannot_be_written_fails_no_test(play: Play) -> None:
    """The summary says for which tests there is none."""
    (play.pytester.path / "taken").write_text("")
    result = play(ALLOCATES, "--hfmem-record", "taken", "--hfmem")

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*3 tests could not be recorded*"])


CLEARED = """
import gc, weakref
class Big: pass
SEEN = []

def test_fails(gpu):
    big = Big()
    SEEN.append(weakref.ref(big))
    try:
        raise ValueError("first")
    except ValueError as error:
        raise KeyError("second") from error

def test_after():
    gc.collect()
    assert SEEN[0]() is None
"""


def test_frames_of_failed_tests_are_cleared_after_their_report(play: Play) -> None:
    """What their variables held is free for the tests after; the report was made before."""
    play(CLEARED).assert_outcomes(failed=2)
    result = play(CLEARED, "--hfmem-clear", "--showlocals")

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*big *= <*Big object*", "*KeyError: 'second'*"])
