"""The host memory of the processes that this one has started, such as a DataLoader's workers."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from hfmem_widget.session import Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.procfs import PROC, is_linux, kibibytes
from hfmem_widget.sources.source import SLOWLY, Source
from hfmem_widget.text import plain

SHARE: Final = 0.01
FIRST_SHARE: Final = 0.1
"""The shares of the time that reading them may take, and until all have been read once: the kernel walks
their page tables, which takes 1 ms for 100 MB and 35 ms for 10 GB."""

MOST: Final = 64

WORKER: Final = "pt_data_worker"
"""PyTorch's name for the processes of a DataLoader."""

PSS: Final = "PSS beyond this process"
"""Counts proportionally: pages that children share are divided among them; this process' own are left out."""


class Held(NamedTuple):
    """The memory of one process, in bytes; NaN once it has ended."""

    bytes: float = NOT_AVAILABLE
    shared: float = 0.0  # the part that is shared memory
    how: str = PSS  # the way of counting, for people
    name: str = ""
    divided: float = 0.0  # the part that is its share of pages that others have, too
    lent: float = 0.0  # of its own pages, the shares that count with the others


class Descendants:
    """The children of this process, and their children, among listed processes."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._own: frozenset[int] = frozenset()
        self._foreign: frozenset[int] = frozenset()

    def among(self, pids: Iterable[int], *, ids_are_ours: bool) -> frozenset[int]:
        """Return the ids of descendants; these remain descendants if a process between them and us ends.

        Unless `ids_are_ours`, of this process' namespace, an id may be another process' in our namespace:
        then a descendant must also have opened the device as CUDA does.
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
        with suppress(OSError, ValueError, IndexError):
            for _ in range(64):  # generations: a circle of parents ends, too
                # proc(5): pid, (name), state, parent; a name may contain anything, brackets too.
                stat = (self._proc / str(pid) / "stat").read_bytes()
                pid = int(stat.rpartition(b")")[2].split()[1])
                if pid <= 1 or pid == here:
                    return pid == here
        return False

    def _uses_cuda(self, pid: int) -> bool:
        with suppress(OSError):  # somebody else's, or it ends at this moment
            for file in (self._proc / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    # Only CUDA opens this device file: NVML, which a fork inherits, does not.
                    if str(file.readlink()).startswith("/dev/nvidia-uvm"):
                        return True
        return False


class PsutilProcesses:
    """The descendants of this process and their resident memory, for macOS and Windows."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil

    def pids(self) -> Collection[int]:
        """Return the ids of the living descendants."""
        return [process.pid for process in self._psutil.Process().children(recursive=True)]

    def lives(self, pid: int) -> bool:
        """Return whether a process has this id."""
        return bool(self._psutil.pid_exists(pid))

    def held(self, pid: int) -> Held:
        """Return a process' resident memory."""
        with suppress(self._psutil.Error):
            process = self._psutil.Process(pid)
            resident = float(process.memory_info().rss)
            if resident:  # else it has ended, and nobody has waited for it
                return Held(resident, how="resident", name=plain(process.name()))
        return Held()


class LinuxProcesses(PsutilProcesses):
    """The descendants of this process in ``/proc``."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._descendants = Descendants(proc)
        self._page = os.sysconf("SC_PAGE_SIZE")

    def pids(self) -> Collection[int]:
        """Return the ids of the living descendants, in 1 µs if this process has no child."""
        try:
            # WNOWAIT: other code may still wait for children that have ended.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ()
        listed = [int(name) for name in os.listdir(self._proc) if name.isdecimal()]  # noqa: PTH208  (quicker)
        return self._descendants.among(listed, ids_are_ours=True)

    def lives(self, pid: int) -> bool:
        """Return whether a process has this id, in some µs."""
        return (self._proc / str(pid)).exists()

    def held(self, pid: int) -> Held:
        """Return a process' proportional share; if unreadable, its resident memory without shared files."""
        folder = self._proc / str(pid)
        with suppress(OSError, ValueError):
            name = plain((folder / "comm").read_text(errors="replace").strip())
            with suppress(OSError):  # somebody else's, or an old kernel
                text = (folder / "smaps_rollup").read_bytes()
                if (size := kibibytes(text, b"\nPss:")) >= 0:
                    names = b"Pss_Shmem Private_Clean Private_Dirty Anonymous Pss_Anon".split()
                    shared, *own, whole, part = (kibibytes(text, b"\n%b:" % each) for each in names)
                    figures = shared, size - sum(own), whole - part
                    shared, divided, lent = (max(0.0, each) for each in figures)  # unknown is none
                    return Held(size, shared, name=name, divided=divided, lent=lent)
            _, resident, common, *_ = map(int, (folder / "statm").read_text().split())
            if resident:  # else it has ended, and nobody has waited for it
                size = float((resident - common) * self._page)
                return Held(size, how="resident, less what is shared", name=name)
        return Held()


def find_processes() -> PsutilProcesses:
    """Return the reader of this process' descendants for this system."""
    return LinuxProcesses() if is_linux() else PsutilProcesses()


class ChildSource(Source):
    """Child processes on the host: their bytes, their number, the workers among them, and shared memory.

    The series begin with the first child. `cpu` returns the CPU seconds of the calling thread.
    """

    name = "child processes"
    blocks = True
    secondary = True

    def __init__(
        self, processes: PsutilProcesses, *, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        super().__init__()
        self._processes = processes
        self._cpu = cpu
        self._held: dict[int, tuple[Held, float]] = {}  # with the second at which it is due again
        self._pids: list[int] = []
        self._lent = 0.0
        self._look_due = self._read_due = -math.inf

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series`; the bytes once all processes have been read."""
        if now < self._look_due and not self._pids:
            return (0.0,) * len(self.series)
        try:
            if now >= self._look_due:
                began = self._cpu()
                self._look_due = now + SLOWLY
                pids = sorted(self._processes.pids())
                self._look_due = now + max(SLOWLY, (self._cpu() - began) / SHARE)
                self._pids = pids[:MOST]
                if len(pids) > MOST:
                    self._note(f"Of {len(pids)} child processes, {MOST} are counted on the host.")
            else:
                # Between two looks some may end: a cell must not count the workers of the cell before it.
                self._pids = [pid for pid in self._pids if self._processes.lives(pid)]
            self._held = {pid: self._held[pid] for pid in self._pids if pid in self._held}
            if now >= self._read_due:
                self._read_some(now)
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._note(f"The memory of child processes could not be read ({plain(error)}).")
            return self._padded(())
        if not self.series:
            return ()
        live = [held for held, _ in self._held.values() if held.bytes >= 0]
        is_whole = len(self._held) == len(self._pids)
        # A fork has this process' pages until one of both writes them: they take memory once.
        ours = min(self._lent, math.fsum(held.divided for held in live))
        return (
            math.fsum(held.bytes for held in live) - ours if is_whole else NOT_AVAILABLE,
            float(len(live)),
            float(sum(held.name == WORKER for held in live)),
            math.fsum(held.shared for held in live),
        )

    def _read_some(self, now: float) -> None:
        """Read the processes that are due, the new ones first, as long as there is time."""
        due = [pid for pid in self._pids if pid not in self._held or self._held[pid][1] <= now]
        began = self._cpu()
        for pid in sorted(due, key=self._held.__contains__):
            is_new, started = pid not in self._held, self._cpu()
            held = self._processes.held(pid)
            if held.divided:
                self._lent = self._processes.held(os.getpid()).lent
            ended = self._cpu()
            cost = (ended - started) * len(self._pids)
            self._held[pid] = held, now + max(SLOWLY, cost / SHARE)
            self._describe(held)
            self._read_due = now + (ended - began) / (FIRST_SHARE if is_new else SHARE)
            if self._read_due > now + SLOWLY / 10:
                return

    def _describe(self, held: Held) -> None:
        if not held.bytes > 0:
            return
        if not self.series:
            labels = {
                "children": f"child processes ({held.how})",
                "child_processes": "child processes",
                "data_workers": "DataLoader workers",
                "children_shared": "shared memory of child processes",
            }
            self.series = tuple(Series("cpu", *metric) for metric in labels.items())
        if held.how != PSS:
            self._note(
                "The proportional share (PSS) of some child processes cannot be read, so these are counted "
                "by what is resident: memory that a fork shares with this process counts in both."
            )
