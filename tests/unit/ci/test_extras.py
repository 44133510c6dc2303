"""A limit for all tests, recordings of tests, and the frames of failed ones."""

from __future__ import annotations

import hfmem_widget
from tests.unit.ci.conftest import Play

pytest_plugins = ["pytester"]

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
    """Named after the test; one that is not measured has none, and a second run writes beside the first."""
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
    assert names == sorted(
        f"test_it.py__{name}{number}{ending}"
        for name in ("test_it[a_b]", "test_fails")
        for number in ("", "-2")
    )
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
