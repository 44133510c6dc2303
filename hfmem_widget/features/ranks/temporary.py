"""Directories of runs that nobody has asked to keep: removed with the run, or by the next kernel."""

from __future__ import annotations

import atexit
import itertools
import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.ticker import begun
from hfmem_widget.ranks.directory import RUN_FILE, open_own, read_run, refusal

if TYPE_CHECKING:
    from hfmem_widget.ranks.run import Run

QUIET = 3600.0
"""Seconds without a write after which the directory of a killed kernel is removed."""

MOST_NAMES = 10_000
"""Names of the folder for temporary files that are looked at."""

_NAME = re.compile(r"hfmem-[0-9a-f]{16}")


def unused() -> Path:
    """Return a directory that is not there, under a name that nobody can guess; it goes with this process."""
    directory = Path(tempfile.gettempdir()) / f"hfmem-{secrets.token_hex(8)}"
    _given(os.getpid()).append(directory)
    return directory


def remove_with(run: Run) -> None:
    """Remove the directory of a run once nobody has the run any more, at the latest with the process."""
    weakref.finalize(run, _remove, run.directory, os.getpid(), _held(run.directory))


@cache
def sweep_once(pid: int) -> None:
    """Remove what kernels that were killed have left behind, on a thread and once per process."""
    del pid
    begun(sweep)


def sweep(folder: Path | None = None, now: float | None = None) -> None:
    """Remove the directories of runs that nobody writes to and nobody has open."""
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    with suppress(OSError), os.scandir(folder) as entries:
        names = (entry.name for entry in itertools.islice(entries, MOST_NAMES))
        folders = [folder / name for name in names if _NAME.fullmatch(name)]
        for directory in folders:
            with suppress(OSError, OptionError):
                if _is_left_behind(directory, time.time() if now is None else now):
                    shutil.rmtree(directory, ignore_errors=True)


def _is_left_behind(directory: Path, now: float) -> bool:
    if directory.is_symlink() or refusal(directory):
        return False
    read_run(directory)
    with os.scandir(directory) as entries:
        newest = max(entry.stat(follow_symlinks=False).st_mtime for entry in entries)
    if now - newest < QUIET:
        return False
    held = _held(directory, alone=True)
    if held is None:
        return False
    os.close(held)
    return True


def _held(directory: Path, *, alone: bool = False) -> int | None:
    """Return a descriptor that marks a run as somebody's for as long as it is open; None if it cannot be."""
    try:
        import fcntl

        descriptor = open_own(directory / RUN_FILE)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
    except (ImportError, OSError):
        return None
    return descriptor


@cache
def _given(pid: int) -> list[Path]:
    """Return the directories that a process has given to its children: some may begin after their cell."""
    given: list[Path] = []
    atexit.register(_remove_all, given, pid)
    return given


def _remove_all(directories: list[Path], pid: int) -> None:
    for directory in directories:
        _remove(directory, pid)


def _remove(directory: Path, pid: int, held: int | None = None) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
        if held is not None:
            os.close(held)
