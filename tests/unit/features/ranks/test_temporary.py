"""What kernels that were killed have left in the folder for temporary files, and what is let be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hfmem_widget.features.ranks.temporary import QUIET, remove_with, sweep, unused
from hfmem_widget.ranks.run import Run
from tests.fakes.ranks import Script, SimulatedRun

NAME = "hfmem-0123456789abcdef"


def left(folder: Path, name: str = NAME) -> Path:
    """Leave the directory of a run behind, and return it."""
    directory = folder / name
    SimulatedRun(Script(world=2)).write(directory, 5.0)
    return directory


def later(directory: Path) -> float:
    """Return a time at which nothing was written there for long."""
    return max(path.stat().st_mtime for path in directory.iterdir()) + QUIET + 1


def test_what_was_left_behind_is_removed(tmp_path: Path) -> None:
    """Once nothing was written there for an hour."""
    directory = left(tmp_path)
    now = later(directory)
    sweep(tmp_path, now - 2)
    is_kept = directory.exists()
    sweep(tmp_path, now)

    assert is_kept
    assert not directory.exists()


def foreign(directory: Path) -> None:
    directory.chmod(0o777)


def no_run(directory: Path) -> None:
    (directory / "run.json").write_text("{}")


def renamed(directory: Path) -> None:
    directory.rename(directory.with_name("hfmem-mine"))


def linked(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(directory.with_name("elsewhere"))


@pytest.mark.parametrize("change", [foreign, no_run, renamed, linked])
def test_what_may_be_somebody_elses_is_let_be(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    """Another name, a link, no run, or where others may write: such as a directory that a user has named."""
    directory = left(tmp_path)
    change(directory)
    sweep(tmp_path, 4e9)

    (kept,) = [path for path in tmp_path.iterdir() if not path.is_symlink()]
    assert len(list(kept.iterdir())) == 3


def test_what_somebody_has_open_is_let_be(tmp_path: Path) -> None:
    """A run that was read long ago, in a kernel that still has it; then it goes with that."""
    directory = left(tmp_path)
    run = Run(directory)
    remove_with(run)
    sweep(tmp_path, 4e9)
    is_kept = directory.exists()
    del run

    assert is_kept
    assert not directory.exists()


def test_a_folder_that_cannot_be_read_is_no_fault(tmp_path: Path) -> None:
    """There may be none, or one with names that are not text."""
    sweep(tmp_path / "none", 4e9)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/hfmem-\xff")).mkdir()
    sweep(tmp_path, 4e9)


def test_what_a_child_has_written_after_its_cell_goes_with_the_process(tmp_path: Path) -> None:
    """A background process may begin to train when nobody looks any more."""
    code = (
        "from hfmem_widget.features.ranks.temporary import unused\n"
        "from tests.fakes.ranks import *\n"
        "directory = unused()\n"
        "SimulatedRun(Script(world=2)).write(directory, 5.0)\n"
        "print(directory, directory.exists())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.endswith("True\n")
    assert list(tmp_path.iterdir()) == []
    assert not unused().exists()
