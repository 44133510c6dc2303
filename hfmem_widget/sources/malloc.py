"""What glibc's malloc has in use and free, and which of that is not in memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_PROBE_BYTES = 8 * 2**20

_OF_A_THREAD = 64 * 2**20
"""Bytes that a heap of a thread other than the first reserves, and at a multiple of which it begins."""

_ANONYMOUS = b" 00000000 00:00 0"
"""The part of a line of ``/proc/self/maps`` that marks memory of no file."""


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
        before = in_use(read())
        block = program.malloc(_PROBE_BYTES)
        after = in_use(read())
        program.free(block)
        if after - before >= _PROBE_BYTES:
            return read
    return None


def in_use(heap: Mallinfo) -> int:
    """Return the bytes that are handed out."""
    return int(heap.uordblks) + int(heap.hblkhd)


class HeapPages:
    """The pages of malloc's heaps, for what is counted as free and takes no memory.

    Nobody has written such pages yet, or ``malloc_trim`` has given them back from between others. What malloc
    maps by itself is never free.
    """

    def __init__(self, proc: Path, page: int) -> None:
        self._maps, self._page = proc / "self" / "maps", page
        self._mincore = getattr(ctypes.CDLL(None), "mincore", None)

    def absent(self) -> float:
        """Return the bytes that are not in memory (0.1 ms, and 1 ms more for a GiB); 0 if unknown."""
        try:
            return float(sum(self._absent_of(*each) for each in self._heaps()))
        except OSError:
            return 0.0

    def _heaps(self) -> Iterator[tuple[int, int]]:
        last = (0, 0)
        for line in self._maps.read_bytes().splitlines():
            if _ANONYMOUS not in line:
                continue
            first, end = (int(each, 16) for each in line.partition(b" ")[0].split(b"-"))
            if line.endswith(b"[heap]"):
                yield first, end
            # What a thread's heap has not taken yet follows it, and is reserved.
            elif b" ---p " in line and first == last[1] and end - last[0] == _OF_A_THREAD:
                yield last
            last = (first, end) if b" rw-p " in line and not first % _OF_A_THREAD else (0, 0)

    def _absent_of(self, start: int, stop: int) -> int:
        pages = (stop - start) // self._page
        there = ctypes.create_string_buffer(pages)
        if self._mincore is None or self._mincore(
            ctypes.c_void_p(start), ctypes.c_size_t(stop - start), there
        ):
            return 0  # it has shrunk since
        return there.raw.count(b"\0") * self._page
