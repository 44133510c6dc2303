"""Peaks are compared with those in a file, which only `--hfmem-update` writes."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget.ci import summary
from hfmem_widget.ci.summary import Baseline, read
from hfmem_widget.errors import OptionError
from tests.unit.ci.conftest import MIB, Play

pytest_plugins = ["pytester"]

HERE = "NVIDIA Fake, torch 2.8"
COMPARE = ("--hfmem-baseline", "memory.json")
UPDATE = (*COMPARE, "--hfmem-update")


@pytest.fixture(autouse=True)
def torch_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        __version__ = "2.8.1+cu130"

    monkeypatch.setitem(__import__("sys").modules, "torch", Torch)


def written(play: Play) -> Any:
    return json.loads((play.pytester.path / "memory.json").read_text("utf-8"))


def save(play: Play, peaks: Mapping[str, Mapping[str, int]]) -> None:
    content = json.dumps({"hfmem_baseline": 1, "peaks": peaks})
    (play.pytester.path / "memory.json").write_text(content, "utf-8")


def test_an_update_writes_a_line_for_each_test_that_passed(play: Play) -> None:
    """The file has exact bytes by GPU, torch and test, sorted; none of tests that failed or used no GPU."""
    text = play.text(
        """
@pytest.mark.parametrize("size", [9, 8])
def test_it(gpu, size): gpu.free(gpu.alloc(size * MIB))

def test_fails(gpu):
    gpu.alloc(MIB)
    assert False

def test_without(gpu): pass
""",
        *UPDATE,
    )

    peaks = {f"test_it.py::test_it[{size}]": size * MIB for size in (8, 9)}
    assert written(play) == {"hfmem_baseline": 1, "peaks": {HERE: peaks}}
    lines = (play.pytester.path / "memory.json").read_text("utf-8").splitlines()
    key = '   "test_it.py::test_it'
    assert lines[4:6] == [f'{key}[8]": 8388608,', f'{key}[9]": 9437184']
    assert "2 peaks written to" in text
    assert [each.name for each in play.pytester.path.iterdir() if each.name.startswith(".")] == []


def test_a_peak_above_its_baseline_fails(play: Play) -> None:
    """A rise by more than the tolerance and 1 MiB fails, with both figures and the share."""
    tests = {"rises": (110, 100), "within": (103, 100), "small": (9, 8), "same": (50, 50)}
    save(play, {HERE: {f"test_it.py::test_{n}": was * MIB for n, (_, was) in tests.items()}})
    source = "\n".join(
        f"def test_{name}(gpu): gpu.free(gpu.alloc({now} * MIB))"
        for name, (now, _) in tests.items()
    )
    result = play(source, *COMPARE, "--hfmem-tolerance=5%", "-rA")

    result.assert_outcomes(passed=3, failed=1)
    above = "peak 110.0 MiB, 10 % above the baseline's 100.0 MiB on cuda:0"
    result.stdout.fnmatch_lines([above, "4 peaks compared with*"])
    assert "FAILED test_it.py::test_rises" in str(result.stdout)


def test_what_cannot_be_compared_is_said(play: Play) -> None:
    """A lower peak, a new test, and one that is gone are named, and fail nothing."""
    entries = {"test_it.py::test_gone": MIB, "test_old.py::test_gone": MIB}
    save(play, {HERE: {"test_it.py::test_lower": 100 * MIB, **entries}})
    source = """
def test_lower(gpu): gpu.free(gpu.alloc(50 * MIB))
def test_new(gpu): gpu.free(gpu.alloc(50 * MIB))
"""
    result = play(source, *COMPARE)

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([
        "*GPU memory of tests*",
        "1 peak compared with the baseline *memory.json.",
        "Lower than the baseline; --hfmem-update keeps that:",
        "  test_it.py::test_lower: 50.0 MiB, 50 % below the baseline's 100.0 MiB",
        "1 test not in the baseline; add with --hfmem-update: test_it.py::test_new",
        "2 tests in the baseline that no longer exist*: test_it.py::test_gone, test_old.py::test_gone",
    ])  # fmt: skip
    play(source, *UPDATE).assert_outcomes(passed=2)
    names = ["test_it.py::test_lower", "test_it.py::test_new"]
    assert sorted(written(play)["peaks"][HERE]) == names


@pytest.mark.parametrize("narrowed", [("test_it.py::test_one",), ("-k", "one"), ("--lf",)])
def test_a_narrowed_run_calls_no_test_gone(play: Play, narrowed: tuple[str, ...]) -> None:
    """Tests that were not asked for keep their entries."""
    save(play, {HERE: {"test_it.py::test_one": 8 * MIB, "test_it.py::test_two": 8 * MIB}})
    lf = ("-p", "cacheprovider") if "--lf" in narrowed else ()
    assert "do not exist" not in play.text(
        """
def test_one(gpu): gpu.free(gpu.alloc(16 * MIB))
def test_two(gpu): gpu.free(gpu.alloc(16 * MIB))
""",
        *lf,
        *narrowed,
        *UPDATE,
    )
    assert written(play)["peaks"][HERE]["test_it.py::test_one"] == 16 * MIB
    assert "test_it.py::test_two" in written(play)["peaks"][HERE]


def test_names_of_another_root_are_not_called_gone(play: Play) -> None:
    """Pytest was run from elsewhere if no file of the baseline exists."""
    save(play, {HERE: {"tests/test_it.py::test_one": 8 * MIB}})
    source = "def test_one(gpu): gpu.free(gpu.alloc(8 * MIB))"

    assert "do not exist" not in play.text(source, *UPDATE)
    assert "tests/test_it.py::test_one" in written(play)["peaks"][HERE]


def test_another_gpu_or_torch_is_another_baseline(play: Play) -> None:
    """Peaks of another environment are not compared, which is said, and an update keeps them."""
    elsewhere = {"NVIDIA H100, torch 2.8": {"test_it.py::test_it": MIB}}
    save(play, elsewhere)
    source = "def test_it(gpu): gpu.free(gpu.alloc(50 * MIB))"
    result = play(source, *COMPARE)

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([
        f"The baseline has no peaks of {HERE}, but of: NVIDIA H100, torch 2.8. Add them*"
    ])  # fmt: skip
    play(source, *UPDATE)
    assert written(play)["peaks"] == {**elsewhere, HERE: {"test_it.py::test_it": 50 * MIB}}


def test_without_a_gpu_nothing_is_compared_or_written(play: Play) -> None:
    """The heap is no baseline: it depends on which test imports what first."""
    play.allocator.initialized = False
    source = "def test_it(): pass"
    save(play, {HERE: {"test_it.py::test_it": MIB}})

    assert "Nothing was compared with" in play.text(source, *COMPARE)
    assert "Nothing was written to" in play.text(source, *UPDATE)
    assert written(play)["peaks"] == {HERE: {"test_it.py::test_it": MIB}}


def test_only_exact_peaks_are_compared(play: Play) -> None:
    """A lower bound is neither compared nor written, and the summary says so."""
    play.allocator.counts_allocations = False
    play.allocator.alloc(MIB)  # of a device that is in use a counter is reset
    save(play, {HERE: {"test_it.py::test_it": MIB}})
    source = "def test_it(gpu): gpu.free(gpu.alloc(50 * MIB))"
    result = play(source, *COMPARE)

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 test not compared, because peaks are not exact: *test_it"])
    play(source, *UPDATE)
    assert written(play)["peaks"][HERE] == {"test_it.py::test_it": MIB}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--hfmem-update",), "--hfmem-update needs a file to write"),
        (COMPARE, "there is no baseline */memory.json; create it with --hfmem-update"),
        (("--hfmem-baseline", "no/memory.json", "--hfmem-update"), "its folder is missing"),
        ((*UPDATE, "--hfmem-tolerance", "much"), "must be a percentage such as 2% or 0.5%, not 'much'"),
        ((*UPDATE, "--hfmem-tolerance=-2%"), "must be a percentage"),
        (("--hfmem-tolerance", "much"), "must be a percentage"),
        (("-o", "hfmem_limit_vram=much"), "hfmem_limit_vram*'much'"),
    ],
)  # fmt: skip
def test_a_bad_option_is_said_before_any_test(play: Play, args: tuple[str, ...], text: str) -> None:
    """An option that cannot be followed ends pytest with one sentence."""
    result = play("def test_it(): pass", *args)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{text}*"])
    assert len(result.errlines) <= 2


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "is not a baseline"),
        (b"[" * 100_000, "is not a baseline"),
        (b"[]", "is not a baseline"),
        (b'{"hfmem_baseline": 1, "peaks": {"a": 1}}', "is not a baseline"),
        (b'{"hfmem_baseline": 1, "peaks": {"a": {"b": "c"}}}', "is not a baseline"),
        (b'{"hfmem_baseline": 1, "peaks": {"a": {"b": true}}}', "is not a baseline"),
        (b'{"hfmem_baseline": 1, "peaks": {"a": {"b": NaN}}}', "is not a baseline"),
        (b'{"hfmem_baseline": 2, "peaks": {}}', "the format of another version"),
        (b"\xff\xfe", "is not a baseline"),
        (None, "cannot be read"),
    ],
)
def test_another_file_is_no_baseline(tmp_path: Path, content: bytes | None, error: str) -> None:
    """One sentence names the file; it is never overwritten."""
    path = tmp_path / "memory.json"
    path.mkdir() if content is None else path.write_bytes(content)
    for may_be_missing in (False, True):
        with pytest.raises(OptionError, match=error) as caught:
            read(path, may_be_missing=may_be_missing)

    assert "memory.json" in str(caught.value)
    assert content is None or path.read_bytes() == content


@pytest.mark.parametrize("kind", ["pipe", "device", "too long"])
def test_endless_files_fail(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is not waited for, a device that never ends is not read, nor a file that no baseline can be."""
    path = tmp_path / "memory.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("{" * 1000, "utf-8")
        monkeypatch.setattr(summary, "MOST_BYTES", 999)
    reason = "it has more than" if kind == "too long" else "not a regular file"
    with pytest.raises(OptionError, match=f"the baseline .* cannot be read: .*{reason}"):
        read(path)


def test_an_unwritable_file_fails_the_run(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full costs the update, and the exit code says so."""
    monkeypatch.setattr(Baseline, "write", Mock(side_effect=OSError(28, "No space left on device")))
    result = play("def test_it(gpu): gpu.free(gpu.alloc(50 * MIB))", *UPDATE)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["The baseline * could not be written: *No space left on device."])
