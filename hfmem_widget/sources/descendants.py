"""Which of the processes that a driver lists were started by this one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hfmem_widget.sources.procfs import PROC

MOST_GENERATIONS: Final = 64

# Of the driver's device files, CUDA alone opens this one: NVML, which a fork inherits, does not.
_OPENED_BY_CUDA: Final = "/dev/nvidia-uvm"


class Descendants:
    """The children of this process, and theirs, among the processes that hold one device."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._own: frozenset[int] = frozenset()
        self._foreign: frozenset[int] = frozenset()

    def among(self, pids: Iterable[int], *, ids_are_ours: bool) -> frozenset[int]:
        """Return those of some ids that are descendants; one that was stays one, whoever ends before it.

        Where it is not known that `ids_are_ours`, of this process' namespace, an id may be another
        process' in ours: then a descendant must also have opened the device as CUDA does.
        """
        listed = frozenset(pids)
        new = listed - self._own - self._foreign
        ours = {pid for pid in new if self._descends(pid)}
        self._foreign = (self._foreign & listed) | (new - ours)
        self._own = (self._own & listed) | {
            pid for pid in ours if ids_are_ours or self._uses_cuda(pid)
        }
        return self._own

    def _descends(self, pid: int) -> bool:
        here = os.getpid()
        for _ in range(MOST_GENERATIONS):
            pid = self._parent(pid)
            if pid <= 1:
                return False
            if pid == here:
                return True
        return False

    def _parent(self, pid: int) -> int:
        try:
            # proc(5): pid, (name), state, parent; a name may have anything in it, brackets too.
            return int((self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def _uses_cuda(self, pid: int) -> bool:
        try:
            files = list((self._proc / str(pid) / "fd").iterdir())
        except OSError:  # somebody else's, or it ends at this moment
            return False
        return any(_target(file).startswith(_OPENED_BY_CUDA) for file in files)


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""
