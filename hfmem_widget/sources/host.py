"""The process' own memory on any machine: its private memory, its resident set, and the machine's memory.

Private memory includes all memory that allocators took from the system: malloc's tensors and arrays, Python's
own objects, Arrow, polars, shared memory. Memory that malloc and Python have free is left out (docs/host.md).
"""

import ctypes
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources import malloc, procfs
from hfmem_widget.sources.procfs import PROC, LinuxMemory, Machine, Own, Pool, is_linux
from hfmem_widget.sources.source import SLOWLY, Looks, Source
from hfmem_widget.text import MIB, plain

MANY_FREE_PIECES = 50_000
SECONDS_PER_FREE_PIECE = 1e-6

SOON, IDLE_SHARE = 2.0, 0.0005
"""Seconds after which an allocator is read again although private memory is unchanged, and the share of the
time that this may take beside a GPU: 5.6 ms for a heap of 0.7 GiB and the 1,757 mappings of CUDA."""


class PsutilMemory:
    """psutil's figures, for Windows and macOS; bytes, NaN if unknown."""

    what = "resident"

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._machine = psutil.virtual_memory
        self.machine_total = float(self._machine().total)

    def own(self) -> Own:
        """Return this process' memory; only Windows has its peak."""
        memory_info = self._process.memory_info()
        resident = float(memory_info.rss)
        peak = float(getattr(memory_info, "peak_wset", NOT_AVAILABLE))
        return Own(resident, max(peak, resident), resident)

    def machine(self) -> Machine:
        """Return the memory that is not available for new programs."""
        machine = self._machine()
        return Machine(float(machine.total - machine.available))

    def pool(self) -> Pool:
        """Return the memory that an integrated GPU shares with this process."""
        return Pool(self.machine_total, self.machine().in_use, self.own().resident)


class DarwinMemory(PsutilMemory):
    """macOS' physical footprint, as in Activity Monitor: with tensors on the GPU and compressed memory."""

    what = "footprint"

    def __init__(self, library: Any = None) -> None:
        super().__init__()
        self._library = library or ctypes.CDLL(None)

    def own(self) -> Own:
        """Return ``ri_phys_footprint``, and ``ri_lifetime_max_phys_footprint`` of the process' whole life."""
        own, footprint = super().own(), self._word(9)
        return own._replace(peak=max(self._word(30), footprint), private=footprint)

    def pool(self) -> Pool:
        """Return the memory that an integrated GPU shares with this process."""
        return super().pool()._replace(own=self._word(9), is_all=True)

    def pressure(self) -> str:
        """Return how short memory is on the machine, in macOS' words; empty if it is not, or if unknown."""
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


def find_memory() -> LinuxMemory | PsutilMemory:
    """Return the reader of this process' memory for this system."""
    if is_linux():
        return LinuxMemory()
    return DarwinMemory() if sys.platform == "darwin" else PsutilMemory()


BESIDE: Mapping[str, str] = {
    "malloc": "in use in malloc",
    "cached": "freed, kept by malloc",
    "python": "Python's objects",
    "python_free": "free in Python's arenas",
    "arrow": "Arrow's pool",
    "shared": "shared memory of this process",
    "untouched": "not written yet",
    "pinned": "pinned for GPUs",
    "page_cache": "page cache",
    "shared_memory": "shared memory",
    "swap": "this process in swap",
    "machine_swap": "swap in use",
    "stalled": "waiting for memory (%)",
    "mappable": "left to map (ulimit)",
}
"""Metrics whose series begin with the first value above 0. Private memory includes malloc's, Python's
objects, Arrow's pool and *shared*. *Untouched* is a lower bound of the allocated bytes that have not been
written, and so take no memory yet. Pinned memory is PyTorch's own: for ``pin_memory`` and offloading. *Shared
memory* is the machine's, without the part that is resident in this process."""


class HostSource(Source):
    """The series of the device "cpu".

    `memory` is by default that of this system. `find_heap` returns a reader of the C heap, and `find_python`
    one of Python's arenas, or None if they cannot be read; `pinned` and `arrow` return bytes.
    """

    name = "host"
    secondary = True

    def __init__(
        self,
        memory: LinuxMemory | PsutilMemory | None = None,
        find_heap: Callable[[], malloc.ReadHeap | None] = malloc.find_glibc_heap,
        pinned: Callable[[], float] = lambda: 0.0,
        find_python: Callable[[], malloc.ReadArenas | None] = malloc.find_arenas,
        arrow: Callable[[], float] = malloc.arrow_pool,
    ) -> None:
        super().__init__()
        self._read_pinned, self._read_arrow = pinned, arrow
        self._extras: dict[str, float] = {}
        self._memory = memory or find_memory()
        self._heap, label, peak = find_heap(), self._memory.what, "resident peak"
        self._python = find_python() if label == LinuxMemory.what else None
        try:
            private = self._memory.own().private
        except Exception:  # noqa: BLE001  (`read` reports it)
            private = NOT_AVAILABLE
        if math.isnan(private) and self._heap is not None:
            label = "heap in use"
            self._note(
                "This system does not report a process's private memory (RssAnon in /proc/self/status), so "
                "malloc's heap in use is shown instead, without Python's objects, Arrow and shared memory."
            )
        elif label != LinuxMemory.what:
            peak = f"{label} peak"
            self._note(
                f"This system does not report what is free within a process, so the {label} is shown, which "
                "misses what is untouched and has what was freed and kept."
            )
        elif self._heap is None:
            self._note(
                "This C library does not report what it has free, so private memory has that, too. "
                "That needs glibc 2.33 or newer, and no other malloc preloaded."
            )
        metrics = (("allocated", label), ("reserved",), ("peak", peak), ("device_used",))
        self.devices = (Device("cpu", _cpu_name(), total=self._memory.machine_total),)
        self.series = tuple(Series("cpu", *metric) for metric in metrics)
        self._heap_now = (0.0, 0.0)
        self._heap_due = self._slow_due = -math.inf
        self._machine, self._is_stale, self._arenas_at = NOT_AVAILABLE, False, 0.0
        self._arenas, self._lacking, self._kept, self._rest = malloc.Arenas(0.0, 0.0), 0.0, 0.0, 0.0
        self._arena_looks, self._heap_looks = Looks(SOON, MIB), Looks(SOON, MIB)

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes, most of them fresh (about 40 µs)."""
        try:
            own = self._memory.own()
            if now >= self._slow_due:
                self._read_extras(own)
                self._slow_due = now + SLOWLY
            private = self._private(own, now)
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._note(f"This process's memory could not be read ({plain(error)}).")
            return self._padded(())
        figures = (private, own.resident, own.peak, self._machine)
        return (*figures, *self._extras.values())

    def refresh(self) -> None:
        """Have the next `read` count Python's objects, which takes 0.3 to 5 ms."""
        self._arena_looks.expire()

    def _read_extras(self, own: Own) -> None:
        machine = self._memory.machine()
        if isinstance(self._memory, DarwinMemory) and (short := self._memory.pressure()):
            self._note(
                f"macOS says that memory is {short} on this machine: it compresses memory and writes it to "
                "disk, which is slow. Close what you do not need."
            )
        try:
            pinned = self._read_pinned()
        except Exception:  # noqa: BLE001  (another version of torch)
            pinned = 0.0
        self._machine = machine.in_use
        self._put(
            pinned=pinned,
            page_cache=machine.page_cache,
            shared_memory=max(machine.shared - own.shared, 0.0),
            swap=own.swap,
            machine_swap=machine.swap,
            stalled=getattr(self._memory, "stalled", float)(),  # only Linux knows
        )

    def _put(self, **values: float) -> None:
        for metric, value in values.items():
            if metric in self._extras:
                self._extras[metric] = value
            elif value > 0:
                self._extras[metric] = value
                self.series += (Series("cpu", metric, BESIDE[metric]),)

    def _private(self, own: Own, now: float) -> float:
        """Return private memory without free memory of malloc and Python; if unknown, the heap in use."""
        used, kept = self._read_heap(now)
        python, free = self._read_arenas(own, now)
        rest = own.private - used - kept - python - free
        kept -= min(kept, self._read_lacking(kept, rest, now))
        self._put(malloc=used, cached=kept, python=python, python_free=free)
        limit, mapped, _ = procfs.address_space()
        self._put(arrow=self._read_arrow(), shared=own.shared, mappable=limit - mapped)
        if math.isnan(own.private):
            return own.private if self._heap is None else used
        private = max(0.0, own.private - kept - free)
        # No page of shared memory is malloc's or Python's. Old figures may have memory freed since.
        most = self._extras.get("untouched", 0.0) if self._is_stale else math.inf
        self._put(untouched=min(max(0.0, used + python + own.shared - private), most))
        return private

    @property
    def _idle_share(self) -> float:
        return IDLE_SHARE if self.is_beside else Looks.SHARE

    def _read_heap(self, now: float) -> tuple[float, float]:
        self._is_stale = now < self._heap_due
        if self._heap is not None and not self._is_stale:
            info = self._heap()
            self._heap_now = (float(info.in_use), float(info.fordblks))
            # mallinfo2 walks every free piece with the heap locked: 2 ms for 100,000, 19 ms for a million.
            if info.ordblks > MANY_FREE_PIECES:
                self._heap_due = now + info.ordblks * SECONDS_PER_FREE_PIECE
                self._note(
                    "The C heap has very many free pieces, which makes reading it slow: its figures may be a "
                    "tenth of a second old or more."
                )
        return self._heap_now

    def _read_arenas(self, own: Own, now: float) -> malloc.Arenas:
        is_due = self._arena_looks.is_due(now, own.private)
        self._is_stale |= own.private < self._arenas_at and not is_due
        if self._python is not None and is_due:
            began = time.perf_counter()
            self._arenas, self._arenas_at = self._python(), own.private
            self._arena_looks.took(now, own.private, time.perf_counter() - began, self._idle_share)
        return self._arenas

    def _read_lacking(self, kept: float, rest: float, now: float) -> float:
        """Return malloc's free bytes outside memory; `rest` is private memory less malloc's and Python's."""
        lacking = getattr(self._memory, "lacking_in_heap", None)
        # Free bytes that malloc has allocated since, while private memory grew as much, take memory now.
        taken, grown = self._kept - kept, rest - self._rest
        self._kept, self._rest = kept, rest
        self._lacking -= max(0.0, min(taken, grown, self._lacking))
        if lacking is None or not kept:
            return 0.0
        if self._heap_looks.is_due(now, rest):
            began = time.perf_counter()
            self._lacking = lacking()
            self._heap_looks.took(now, rest, time.perf_counter() - began, self._idle_share)
        return self._lacking


def _cpu_name() -> str:
    with suppress(OSError), (PROC / "cpuinfo").open(encoding="utf-8", errors="replace") as file:
        if name := re.search(r"^model name\s*:(.*)", file.read(2048), re.MULTILINE):
            return plain(name[1])
    return "CPU"
