"""The bytes in use and free in glibc's malloc, Python's own allocator and Arrow, and those not in memory."""

import ctypes
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_PROBE_BYTES = 8 * 2**20

_OF_A_THREAD = 64 * 2**20
"""Bytes that the heap of a thread other than the first reserves; it begins at a multiple of this."""


class Mallinfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``; bytes, except for the three counts."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )

    @property
    def in_use(self) -> int:
        """Allocated bytes."""
        return int(self.uordblks) + int(self.hblkhd)


ReadHeap = Callable[[], Mallinfo]


def find_glibc_heap() -> ReadHeap | None:
    """Return glibc's `mallinfo2` (since 2.33) if it counts allocations; None where jemalloc has them."""
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
        before = read().in_use
        block = program.malloc(_PROBE_BYTES)
        after = read().in_use
        program.free(block)
        if after - before >= _PROBE_BYTES:
            return read
    return None


class HeapPages:
    """The pages of malloc's heaps that count as free and take no memory.

    They are not written yet, or released by ``malloc_trim``. A block with a mapping of its own is never free.
    """

    def __init__(self, proc: Path, page: int) -> None:
        self._maps, self._page = proc / "self" / "maps", page
        self._mincore = getattr(ctypes.CDLL(None), "mincore", None)

    def absent(self) -> float:
        """Return the bytes that are not in memory (0.1 ms, and 1 ms more for a GiB); 0 if unknown."""
        try:
            return float(sum(self._absent_of(*heap) for heap in self._heaps()))
        except OSError:
            return 0.0

    def _heaps(self) -> Iterator[tuple[int, int]]:
        last = (0, 0)
        for line in self._maps.read_bytes().splitlines():
            if b" 00000000 00:00 0" not in line:  # memory of a file
                continue
            first, end = (int(address, 16) for address in line.partition(b" ")[0].split(b"-"))
            if line.endswith(b"[heap]"):
                yield first, end
            # The rest of a thread's heap follows it, and is reserved.
            elif b" ---p " in line and first == last[1] and end - last[0] == _OF_A_THREAD:
                yield last
            last = (first, end) if b" rw-p " in line and not first % _OF_A_THREAD else (0, 0)

    def _absent_of(self, start: int, stop: int) -> int:
        size, are_resident = stop - start, ctypes.create_string_buffer((stop - start) // self._page)
        arguments = ctypes.c_void_p(start), ctypes.c_size_t(size), are_resident
        if self._mincore is None or self._mincore(*arguments):
            return 0  # the heap has shrunk since
        return are_resident.raw.count(b"\0") * self._page


class Arenas(NamedTuple):
    """The memory of CPython's allocator of objects up to 512 bytes, in bytes."""

    used: float
    free: float  # in arenas in which an object lives, so that they are not freed


ReadArenas = Callable[[], Arenas]

_FIGURES = [
    re.compile(rb"%b += +([\d,]+)" % name)
    for name in (
        *(b"# bytes in allocated blocks", b"# bytes in available blocks"),
        rb"unused pools \* \d+ bytes",
    )
]


def find_arenas() -> ReadArenas | None:
    """Return a reader of CPython's arenas; None if there is none, or if malloc has Python's objects.

    It reads what ``sys._debugmallocstats`` writes: 20 µs, and 0.6 µs for each MiB of objects (docs/host.md).
    """
    try:
        write, library = ctypes.pythonapi._PyObject_DebugMallocStats, ctypes.CDLL(None)  # noqa: SLF001
        opened = library.open_memstream
        opened.restype = ctypes.c_void_p
        for function, takes in ((write, 1), (opened, 2), (library.fclose, 1), (library.free, 1)):
            function.argtypes = (ctypes.c_void_p,) * takes
    except (AttributeError, OSError, TypeError):  # not CPython, or Windows
        return None

    def read() -> Arenas:
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        stream = opened(ctypes.byref(text), ctypes.byref(size))
        if not stream:
            raise MemoryError
        try:
            write(stream)
        finally:
            library.fclose(stream)
            figures = ctypes.string_at(text.value or 0, size.value)
            library.free(text)
        used, available, unused = (
            float(match[1].replace(b",", b"")) if (match := figure.search(figures)) else 0.0
            for figure in _FIGURES
        )
        return Arenas(used, available + unused)

    return read if read().used else None


def arrow_pool() -> float:
    """Return the bytes in Arrow's default pool; 0 if pyarrow is not imported."""
    arrow: Any = sys.modules.get("pyarrow")
    try:
        return 0.0 if arrow is None else float(arrow.total_allocated_bytes())
    except AttributeError:  # in the middle of its import
        return 0.0
