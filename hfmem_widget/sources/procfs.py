"""The resident set, its high-water mark, the machine's memory and limits, from Linux's ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.cgroup import Machine, Pool, find_cgroup

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


class ProcFile:
    """A file of ``/proc`` kept open: reading it again costs 3 µs, opening it too 25.

    The open file belongs to the process that opened it, so a forked child opens its own. Its number may come
    to be another's, as after `os.closerange`: then it is neither read nor closed any more.
    """

    def __init__(self, path: Path, most: int = 8192) -> None:
        self.path = path
        self.most = most
        self._file = -1
        self._open()

    def read(self) -> bytes:
        """Return the beginning of the file, up to `most` bytes; empty where it cannot be read."""
        try:
            if self._pid != os.getpid() or not self._is_own():
                self.close()
                self._open()
            return os.pread(self._file, self.most, 0)
        except OSError:
            return b""

    def close(self) -> None:
        """Close the file."""
        if self._is_own():
            os.close(self._file)
        self._file = -1

    def _is_own(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._opened)
        except OSError:
            return False

    def _open(self) -> None:
        self._pid = os.getpid()
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self._opened = os.fstat(self._file)
        except OSError:
            self._file = -1


class LinuxMemory:
    """The kernel's own figures.

    The high-water mark is VmHWM and not `ru_maxrss`, which survives `exec`: a kernel started by a large
    process would begin with that process' peak.
    """

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._statm = ProcFile(proc / "self" / "statm", 128)
        self._status = ProcFile(proc / "self" / "status")
        self._meminfo = ProcFile(proc / "meminfo")
        self._pressure = ProcFile(proc / "pressure" / "memory", 128)
        self._page = os.sysconf("SC_PAGE_SIZE")
        self.machine_total = kibibytes(self._meminfo.read(), b"MemTotal:")
        self._cgroup = find_cgroup(proc, cgroups, self.machine_total)
        self.is_limited = self._cgroup is not None
        if self._cgroup is not None:
            self.machine_total = self._cgroup.limit

    def resident(self) -> float:
        """Return the resident set."""
        fields = self._statm.read().split(maxsplit=2)
        return float(fields[1]) * self._page if len(fields) > 1 else NOT_AVAILABLE

    def resident_peak(self) -> float:
        """Return VmHWM (10 to 20 µs)."""
        return kibibytes(self._status.read(), b"VmHWM:")

    def swapped_and_shared(self) -> tuple[float, float]:
        """Return this process' memory in swap, and its resident shared memory."""
        status = self._status.read()
        return kibibytes(status, b"VmSwap:"), kibibytes(status, b"RssShmem:")

    def machine(self) -> Machine:
        """Return the memory of the limiting control group, else of the machine."""
        text = self._meminfo.read()
        available, free, shared, total, unused = (
            kibibytes(text, field)
            for field in (b"MemAvailable:", b"MemFree:", b"Shmem:", b"SwapTotal:", b"SwapFree:")
        )
        if self._cgroup is not None:
            group = self._cgroup.now()
            # A machine may have less left than the group may use.
            return group._replace(in_use=max(group.in_use, self.machine_total - available))
        cache = max(available - free, 0.0)
        return Machine(self.machine_total - available, cache, shared, total - unused)

    def pool(self) -> Pool:
        """Return the memory that a GPU without its own has in common with this process."""
        text = self._meminfo.read()
        total, available = (kibibytes(text, field) for field in (b"MemTotal:", b"MemAvailable:"))
        return Pool(total, total - available, self.resident())

    def stalled(self) -> float:
        """Return the percentage of ten seconds in which some task waited for memory; 0 if unknown."""
        _, _, figures = self._pressure.read().partition(b"some avg10=")
        return float(figures.split(maxsplit=1)[0]) if figures else 0.0

    def close(self) -> None:
        """Close the files."""
        for file in (self._statm, self._status, self._meminfo, self._pressure):
            file.close()


class ResidentPeak:
    """The exact resident peak from now on, from the kernel's own mark, which this sets back.

    Only on request: setting VmHWM back sets back `ru_maxrss` too, which everybody else in the process reads
    with `resource.getrusage`. There is one mark, so windows do not nest.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._status = proc / "self" / "status"
        try:
            # proc(5): since Linux 4.0, "5" sets the peak resident set back to what is resident.
            (proc / "self" / "clear_refs").write_bytes(b"5")
            self.supported = True
        except OSError:
            self.supported = False

    def read(self) -> float:
        """Return the highest resident set since then, in bytes; NaN where the mark cannot be set."""
        return kibibytes(self._status.read_bytes(), b"VmHWM:") if self.supported else NOT_AVAILABLE


def kibibytes(text: bytes, field: bytes) -> float:
    """Return a ``field: n kB`` of a file of ``/proc`` in bytes; NaN if it is not there."""
    start = text.find(field)
    if start < 0:
        return NOT_AVAILABLE
    return float(text[start + len(field) :].split(maxsplit=1)[0]) * 1024


class ProcessIds(NamedTuple):
    """The ids by which this process may be listed, of all PID namespaces that it knows of."""

    own: frozenset[int] = frozenset()
    all_visible: bool = False
    """Whether it lives in the machine's first namespace, where every list of ids means its own."""


def process_ids(proc: Path = PROC) -> ProcessIds:
    """Return this process' ids, from ``NSpid`` where the kernel has it."""
    own = {os.getpid()}
    try:
        _, found, rest = (proc / "self" / "status").read_bytes().partition(b"NSpid:")
        if found:
            own.update(int(pid) for pid in rest.partition(b"\n")[0].split())
        # PROC_PID_INIT_INO of the kernel's proc_ns.h: the first namespace has a fixed inode.
        all_visible = str((proc / "self" / "ns" / "pid").readlink()) == "pid:[4026531836]"
    except (OSError, ValueError):
        all_visible = False
    return ProcessIds(frozenset(own), all_visible)


def address_space(proc: Path = PROC) -> tuple[float, float, str]:
    """Return the nearest limit (ulimit) on mapped memory, what is mapped, in bytes, and the limit's command.

    NaN where there is no limit, or mapped memory cannot be read.
    """
    nothing = (NOT_AVAILABLE, NOT_AVAILABLE, "")
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return nothing
    # The fields of statm: the pages that are mapped, and those of them that are the process' own.
    kinds = ((resource.RLIMIT_AS, 0, "ulimit -v"), (resource.RLIMIT_DATA, 5, "ulimit -d"))
    limits = [
        (float(limit), _pages(proc, field), command)
        for kind, field, command in kinds
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
    return min(limits, key=lambda limit: limit[0] - limit[1], default=nothing)


def _pages(proc: Path, field: int) -> float:
    try:
        pages = int((proc / "self" / "statm").read_text().split()[field])
    except (OSError, ValueError, IndexError):
        return NOT_AVAILABLE
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
