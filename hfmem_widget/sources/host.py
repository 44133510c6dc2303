"""The process' own memory on any machine: its C heap, its resident set, and the machine's memory.

Tensors are in the heap; the resident set misses untouched ones and may include freed ones.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.cgroup import Machine, Pool
from hfmem_widget.sources.children import Held, LinuxProcesses, Processes
from hfmem_widget.sources.procfs import PROC, LinuxMemory
from hfmem_widget.sources.source import BaseSource
from hfmem_widget.text import plain

SLOW_INTERVAL = 1.0
"""Seconds between readings of what is slow to read: the high-water mark and the machine."""

MANY_FREE_PIECES = 50_000
SECONDS_PER_FREE_PIECE = 1e-6

_PROBE_BYTES = 8 * 2**20

_HEAP_METRICS = (
    ("allocated",),
    ("reserved",),
    ("peak", "resident peak"),
    ("device_used",),
    ("cached", "freed, kept by malloc"),
)


class Mallinfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``; bytes, except for the three counts."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


ReadHeap = Callable[[], Mallinfo]


def find_glibc_heap() -> ReadHeap | None:
    """Return glibc's `mallinfo2` (since 2.33) if it counts this process' allocations, else None.

    Where jemalloc or tcmalloc is preloaded it describes an unused heap, so one allocation is tried.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        program = ctypes.CDLL(None)
        read: ReadHeap = program.mallinfo2
        program.mallinfo2.restype = Mallinfo
        program.mallinfo2.argtypes = ()
        program.malloc.restype = ctypes.c_void_p
        program.malloc.argtypes = (ctypes.c_size_t,)
        program.free.argtypes = (ctypes.c_void_p,)
    except (AttributeError, OSError):
        return None
    for _ in range(3):  # another thread may free as much in the same microsecond
        before = _in_use(read())
        block = program.malloc(_PROBE_BYTES)
        after = _in_use(read())
        program.free(block)
        if after - before >= _PROBE_BYTES:
            return read
    return None


def _in_use(heap: Mallinfo) -> int:
    return int(heap.uordblks) + int(heap.hblkhd)


class PsutilMemory:
    """What psutil knows, for Windows and macOS; bytes, NaN if unknown."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._machine = psutil.virtual_memory
        self.machine_total = float(self._machine().total)

    def resident(self) -> float:
        """Return the resident set."""
        return float(self._process.memory_info().rss)

    def resident_peak(self) -> float:
        """Return the peak working set; NaN except on Windows, which alone has it."""
        return float(getattr(self._process.memory_info(), "peak_wset", NOT_AVAILABLE))

    def swapped_and_shared(self) -> tuple[float, float]:
        """Return nothing: other systems do not tell."""
        return NOT_AVAILABLE, NOT_AVAILABLE

    def machine(self) -> Machine:
        """Return the memory that is not available for new programs."""
        machine = self._machine()
        return Machine(float(machine.total - machine.available))

    def pool(self) -> Pool:
        """Return the memory that a GPU without its own has in common with this process."""
        machine = self._machine()
        return Pool(float(machine.total), float(machine.total - machine.available), self.resident())

    def close(self) -> None:
        """Give nothing back."""


class DarwinMemory(PsutilMemory):
    """What macOS knows besides: the physical footprint, the memory of a process in its Activity Monitor.

    Tensors on Apple's GPU count in it, and so does what was compressed; in the resident set they do not.
    """

    def __init__(self, library: Any = None) -> None:
        super().__init__()
        self._library = library or ctypes.CDLL(None)

    def footprint(self) -> float:
        """Return ``ri_phys_footprint``."""
        return self._word(9)

    def pool(self) -> Pool:
        """Return the memory that a GPU without its own has in common with this process."""
        return super().pool()._replace(own=self.footprint(), is_all=True)

    def resident_peak(self) -> float:
        """Return ``ri_lifetime_max_phys_footprint``, of the process' whole life."""
        return self._word(30)

    def pressure(self) -> str:
        """Return how short memory is on the machine, as macOS puts it; empty where it is not, or not told."""
        level, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        name = b"kern.memorystatus_vm_pressure_level"
        out = ctypes.byref(level), ctypes.byref(size)
        if self._library.sysctlbyname(name, *out, None, ctypes.c_size_t(0)) != 0:
            return ""
        return {2: "short", 4: "critically short"}.get(level.value, "")

    def _word(self, at: int) -> float:
        # struct rusage_info_v4 of XNU's bsd/sys/resource.h: 16 bytes, and 36 numbers of 64 bits.
        words = (ctypes.c_uint64 * 38)()
        if self._library.proc_pid_rusage(os.getpid(), 4, ctypes.byref(words)) != 0:
            raise OSError("proc_pid_rusage failed")
        return float(words[at])


class PsutilProcesses:
    """The descendants of this process, for macOS and Windows, by what is resident."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process
        self._gone = psutil.Error

    def found(self) -> Collection[int]:
        """Return the ids of those that live."""
        return [each.pid for each in self._process().children(recursive=True)]

    def held(self, pid: int) -> Held:
        """Return what is resident."""
        try:
            process = self._process(pid)
            resident = float(process.memory_info().rss)
            # One that has ended, and was not waited for, has nothing.
            return (
                Held(resident, how="resident", name=plain(process.name())) if resident else Held()
            )
        except self._gone:
            return Held()


def find_processes() -> Processes:
    """Return how to find this process' descendants on this system."""
    return LinuxProcesses() if _is_linux() else PsutilProcesses()


def find_memory() -> LinuxMemory | PsutilMemory:
    """Return how to read this process' memory on this system."""
    if _is_linux():
        return LinuxMemory()
    return DarwinMemory() if sys.platform == "darwin" else PsutilMemory()


def _is_linux() -> bool:
    return (PROC / "self" / "statm").exists()


BESIDE: Mapping[str, str] = {
    "pinned": "pinned for GPUs",
    "page_cache": "page cache",
    "shared_memory": "shared memory",
    "swap": "this process in swap",
    "machine_swap": "swap in use",
    "stalled": "waiting for memory (%)",
}
"""Metrics that are there from when there is any. Pinned memory is PyTorch's own, beside the heap: for
``pin_memory`` and offloading. Shared memory is the machine's, without what is resident in this process."""


class HostSource(BaseSource):
    """The roles of the device "cpu".

    Resident set and machine are read from `memory`, that of this system by default. `find_heap` returns how
    to read the C heap, or None where that cannot be known; `pinned` returns the bytes of pinned memory.
    """

    name = "host"
    secondary = True

    def __init__(
        self,
        memory: LinuxMemory | PsutilMemory | None = None,
        find_heap: Callable[[], ReadHeap | None] = find_glibc_heap,
        pinned: Callable[[], float] = lambda: 0.0,
    ) -> None:
        super().__init__()
        self._read_pinned = pinned
        self._beside: dict[str, float] = {}
        self._memory = memory or find_memory()
        self._heap = find_heap()
        metrics: tuple[tuple[str, ...], ...] = _HEAP_METRICS
        self._footprint = getattr(self._memory, "footprint", None)
        if self._heap is None:
            taken, what = (
                ("resident", "resident set") if self._footprint is None else ("footprint",) * 2
            )
            self._note(
                f"This C library does not report its heap in use, so the {what} is shown instead, which "
                "misses what is untouched or freed. The heap needs Linux with glibc 2.33 or newer, and no "
                "other malloc preloaded."
            )
            metrics = (
                ("allocated", taken),
                ("reserved",),
                ("peak", f"{taken} peak"),
                ("device_used",),
            )
        self.devices = (Device("cpu", _cpu_name(), total=self._memory.machine_total),)
        self.series = tuple(Series("cpu", *metric) for metric in metrics)
        self._heap_now = (NOT_AVAILABLE, NOT_AVAILABLE)
        self._heap_due = self._slow_due = -math.inf
        self._peak = self._machine = NOT_AVAILABLE

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes, most of them fresh (about 5 µs)."""
        try:
            resident = self._memory.resident()
            if now >= self._slow_due:
                self._peak = self._memory.resident_peak()
                self._look_beside()
                self._slow_due = now + SLOW_INTERVAL
            taken = resident if self._footprint is None else self._footprint()
            # The mark may be a second old; what is taken now is at most what it would be.
            peak = max(self._peak, taken)
            if self._heap is None:
                return (taken, resident, peak, self._machine, *self._beside.values())
            in_use, kept = self._read_heap(self._heap, now)
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._note(f"This process's memory could not be read ({plain(error)}).")
            return self._padded(())
        return (in_use, resident, peak, self._machine, kept, *self._beside.values())

    def close(self) -> None:
        """Close the files."""
        self._memory.close()

    def _look_beside(self) -> None:
        machine = self._memory.machine()
        if isinstance(self._memory, DarwinMemory) and (short := self._memory.pressure()):
            self._note(
                f"macOS says that memory is {short} on this machine: it compresses memory and writes it to "
                "disk, which is slow. Close what you do not need."
            )
        swap, own = self._memory.swapped_and_shared()
        try:
            pinned = self._read_pinned()
        except Exception:  # noqa: BLE001  (another version of torch)
            pinned = 0.0
        self._machine = machine.in_use
        shared = max(machine.shared - own, 0.0)
        stalled = getattr(self._memory, "stalled", float)()  # only Linux knows
        values = (pinned, machine.page_cache, shared, swap, machine.swap, stalled)
        for metric, value in zip(BESIDE, values, strict=True):
            if metric in self._beside:
                self._beside[metric] = value
            elif value > 0:
                self._beside[metric] = value
                self.series += (Series("cpu", metric, BESIDE[metric]),)

    def _read_heap(self, heap: ReadHeap, now: float) -> tuple[float, float]:
        if now >= self._heap_due:
            info = heap()
            self._heap_now = (float(_in_use(info)), float(info.fordblks))
            # mallinfo2 walks every free piece with the heap locked: 2 ms for 100,000, 19 ms for a million.
            if info.ordblks > MANY_FREE_PIECES:
                self._heap_due = now + info.ordblks * SECONDS_PER_FREE_PIECE
                self._note(
                    "The C heap has very many free pieces, which makes reading it slow: its figures may be a "
                    "tenth of a second old or more."
                )
        return self._heap_now


def _cpu_name() -> str:
    try:
        with (PROC / "cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file.read(2048).splitlines():
                if line.startswith("model name"):
                    return plain(line.partition(":")[2])
    except OSError:
        pass
    return "CPU"
