"""Linux's ``/proc`` and control groups: memory of this process and the machine, limits, mapped files.

A control group limits the memory of a container or a batch job. Both versions of the interface are read as
the kernel documents them: admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

import math
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.malloc import HeapPages

PROC = Path("/proc")


def is_linux() -> bool:
    """Return whether this system has a ``/proc``."""
    return (PROC / "self" / "statm").exists()


def _content(path: Path) -> bytes:
    """Return a file of the kernel's, up to 8 KiB of it; empty if it cannot be read."""
    # `Path.read_bytes` takes longer than the reading itself, and this runs while a model trains.
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 8192)
        finally:
            os.close(file)
    return b""


class Own(NamedTuple):
    """The memory of this process in bytes; NaN if the system does not report it.

    Private memory has anonymous pages, swapped ones too, and resident shared memory (tmpfs, ``/dev/shm``).
    """

    resident: float
    peak: float  # of the resident set
    private: float = NOT_AVAILABLE
    shared: float = 0.0  # the part of private memory that other processes may have, too
    swap: float = NOT_AVAILABLE


class Machine(NamedTuple):
    """The memory of a machine, or of a control group that limits it; bytes, NaN if unknown.

    `in_use` is without `page_cache`, which the kernel frees when memory is needed, and with `shared`, which
    it cannot free: ``/dev/shm``, tmpfs, segments of shared memory.
    """

    in_use: float
    page_cache: float = NOT_AVAILABLE
    shared: float = NOT_AVAILABLE
    swap: float = NOT_AVAILABLE


class Pool(NamedTuple):
    """The machine's memory if CPU and GPU share it, in bytes; `in_use` is without page cache.

    `own` is this process' memory without its GPU memory; if `is_all` with it, as on macOS. A group's limit
    does not include CUDA's memory: 12 GiB added 0.4 to ``memory.current`` (model-serving-minefield#57).
    """

    total: float
    in_use: float
    own: float
    is_all: bool = False


class Cgroup(NamedTuple):
    """The group whose limit binds this process first: the bytes that its processes may use together."""

    folder: Path
    limit: float
    usage: str
    prefix: str

    def now(self) -> Machine:
        """Return its memory now; all file cache counts as page cache, as in the kernel's MemAvailable."""
        usage = _number(self.folder / self.usage)
        try:
            lines = _content(self.folder / "memory.stat").decode().splitlines()
            stat = {name: value for name, _, value in (line.partition(" ") for line in lines)}
            idle, active, shared = (
                float(stat.get(f"{self.prefix}{name}", 0))
                for name in ("inactive_file", "active_file", "shmem")
            )
        except ValueError:
            return Machine(usage)
        if not stat:
            return Machine(usage)
        # Version 1 reports swap in the same file, where the kernel counts it.
        swap = stat.get("total_swap") or _number(self.folder / "memory.swap.current")
        return Machine(max(usage - idle - active, 0.0), idle + active, shared, float(swap))


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2 = ("memory.max", "memory.current", "")
"""By version, the files of a group's limit and of its bytes in use, and the prefix of the fields of
``memory.stat`` that include the groups below."""


def find_cgroup(proc: Path, mount: Path, machine_total: float) -> Cgroup | None:
    """Return the tightest limit from this process' group upwards; None where nothing limits it.

    A limit that is not below the machine's memory (in bytes) limits nothing: v1 says "no limit" in this way.
    `proc` and `mount` are where ``/proc`` and ``/sys/fs/cgroup`` are.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    limited = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            root, version = mount, _V2
        elif "memory" in controllers.split(","):
            root, version = mount / "memory", _V1
        else:
            continue
        # In a container the path may be the host's, or begin with "/.."; then the root is our own group.
        parts = [part for part in PurePosixPath(path).parts if part not in {"/", ".."}]
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(*parts[:depth])
            limit = _number(folder / version[0])
            if 0 < limit < machine_total:
                limited.append(Cgroup(folder, limit, *version[1:]))
    return min(limited, key=lambda group: group.limit, default=None)


def _number(path: Path) -> float:
    try:
        return float(_content(path))
    except ValueError:  # "max" is not a number: no limit
        return NOT_AVAILABLE


_OWN = (b"VmRSS:", b"VmHWM:", b"RssAnon:", b"RssShmem:", b"VmSwap:", b"HugetlbPages:")


class LinuxMemory:
    """The kernel's own figures.

    The high-water mark is VmHWM: `ru_maxrss` survives `exec`, and so would begin with a large parent's peak.
    """

    what = "private memory"

    def __init__(self, proc: Path = PROC, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._status, self._meminfo = proc / "self" / "status", proc / "meminfo"
        self._pressure = proc / "pressure" / "memory"
        self._heap = HeapPages(proc, os.sysconf("SC_PAGE_SIZE"))
        self._swap = NOT_AVAILABLE
        self.machine_total = kibibytes(_content(self._meminfo), b"MemTotal:")
        self._cgroup = find_cgroup(proc, cgroups, self.machine_total)
        self.is_limited = self._cgroup is not None
        if self._cgroup is not None:
            self.machine_total = self._cgroup.limit

    def own(self) -> Own:
        """Return this process' memory (30 µs)."""
        status = _content(self._status)
        resident, peak, private, shared, self._swap, huge = (
            kibibytes(status, field) for field in _OWN
        )
        # Linux before 4.5, and gVisor, do not have the first two parts of private memory.
        private += shared + sum(value for value in (self._swap, huge) if value > 0)
        shared = max(shared, 0.0) if private > 0 else 0.0
        # The kernel updates the peak in batches of pages, so that it may be below the present value.
        return Own(resident, max(peak, resident), private, shared, self._swap)

    def lacking_in_heap(self) -> float:
        """Return the bytes of malloc's heaps that are neither in memory nor in swap."""
        return max(0.0, self._heap.absent() - max(self._swap, 0.0))

    def machine(self) -> Machine:
        """Return the memory of the limiting control group, else of the machine."""
        text = _content(self._meminfo)
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
        """Return the memory that an integrated GPU shares with this process."""
        text = _content(self._meminfo)
        total, available = (kibibytes(text, field) for field in (b"MemTotal:", b"MemAvailable:"))
        return Pool(total, total - available, self.own().resident)

    def stalled(self) -> float:
        """Return the percentage of ten seconds in which some task waited for memory; 0 if unknown."""
        _, _, figures = _content(self._pressure).partition(b"some avg10=")
        return float(figures.split(maxsplit=1)[0]) if figures else 0.0


class ResidentPeak:
    """The exact resident peak from now on, from the kernel's own mark, which this resets.

    Only on request: it also resets `ru_maxrss`, which other code may read. There is one mark, so windows do
    not nest.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._status = proc / "self" / "status"
        try:
            # proc(5): since Linux 4.0, "5" resets the peak resident set to the present one.
            (proc / "self" / "clear_refs").write_bytes(b"5")
            self.supported = True
        except OSError:
            self.supported = False

    def read(self) -> float:
        """Return the highest resident set since then, in bytes; NaN if the mark cannot be reset."""
        return kibibytes(self._status.read_bytes(), b"VmHWM:") if self.supported else NOT_AVAILABLE


def kibibytes(text: bytes, field: bytes) -> float:
    """Return a ``field: n kB`` of a file of ``/proc`` in bytes; NaN if it is missing."""
    figure = text.partition(field)[2].split(maxsplit=1)[:1]
    return float(figure[0]) * 1024 if figure else NOT_AVAILABLE


class ProcessIds(NamedTuple):
    """The ids of this process in all PID namespaces that it knows of."""

    own: frozenset[int] = frozenset()
    all_visible: bool = False
    """Whether it is in the machine's first namespace, to which the ids in every list belong."""

    def bytes_in(self, listed: Mapping[int, float]) -> float:
        """Return this process' bytes in a device's list; if it is missing 0, or NaN where ids may differ."""
        own = self.own & listed.keys()
        # In a container, the driver may list the host's ids or none (nvidia-docker#179): no guess is made.
        return listed[min(own)] if own else 0.0 if self.all_visible else NOT_AVAILABLE


def process_ids(proc: Path = PROC) -> ProcessIds:
    """Return this process' ids, from ``NSpid`` if the kernel has it."""
    own = {os.getpid()}
    try:
        _, has_namespaces, rest = (proc / "self" / "status").read_bytes().partition(b"NSpid:")
        if has_namespaces:
            own.update(int(pid) for pid in rest.partition(b"\n")[0].split())
        # PROC_PID_INIT_INO of the kernel's proc_ns.h: the first namespace has a fixed inode.
        all_visible = str((proc / "self" / "ns" / "pid").readlink()) == "pid:[4026531836]"
    except (OSError, ValueError):
        all_visible = False
    return ProcessIds(frozenset(own), all_visible)


def address_space(proc: Path = PROC) -> tuple[float, float, str]:
    """Return the nearest ulimit on mapped memory, the mapped bytes, both NaN if unknown, and its command."""
    nothing = (NOT_AVAILABLE, NOT_AVAILABLE, "")
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return nothing
    # All mapped pages, and those of the process' own.
    kinds = (resource.RLIMIT_AS, 0, "ulimit -v"), (resource.RLIMIT_DATA, -2, "ulimit -d")
    known = [(resource.getrlimit(kind)[0], place, command) for kind, place, command in kinds]
    if not (known := [each for each in known if each[0] != resource.RLIM_INFINITY]):
        return nothing
    pages, size = ["nan"] * 7, os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):
        pages = (proc / "self" / "statm").read_text().split()
    limits = [
        (float(limit), float(pages[place]) * size, command) for limit, place, command in known
    ]
    return min(limits, key=lambda limit: limit[0] - limit[1])


def shared_memory() -> int:
    """Return the bytes of shared memory that this process has in use; 0 if unknown."""
    with suppress(OSError, ValueError):  # NaN
        return int(kibibytes((PROC / "self" / "status").read_bytes(), b"RssShmem:"))
    return 0


class MappedFiles:
    """Finds addresses that lie in mapped files, such as safetensors' weights; outside Linux, none does.

    They stay there when they are written to: the kernel then copies the page.
    """

    def __init__(
        self, maps: Path = PROC / "self" / "maps", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._maps = maps
        self._clock = clock
        self._good_until = -math.inf
        self._starts: list[int] = []
        self._stops: list[int] = []

    def hold(self, address: int) -> bool:
        """Return whether an address is in a mapped file; the list is read in a tenth of the time at most."""
        if self._clock() >= self._good_until:
            self._read()
        index = bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._stops[index]

    def _read(self) -> None:
        began = self._clock()
        self._starts, self._stops = [], []
        try:
            lines = self._maps.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            # start-stop rights offset device inode path; other memory has no path, or a name in brackets.
            addresses, _, _, _, _, *path = line.split(maxsplit=5)
            if path and path[0].startswith("/"):
                start, _, stop = addresses.partition("-")
                self._starts.append(int(start, 16))
                self._stops.append(int(stop, 16))
        ended = self._clock()
        self._good_until = ended + 10 * (ended - began)
