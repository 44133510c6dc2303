"""Segments and blocks, read from PyTorch's caching allocator and from the C heap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.segments import (
    NO_POOL,
    Block,
    BlockState,
    Segment,
    SegmentKind,
)
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import Allocator, keys_of
from hfmem_widget.sources.counters import readings
from hfmem_widget.sources.host import Mallinfo, ReadHeap, find_glibc_heap
from hfmem_widget.text import format_bytes, plain

HOST: Final = "cpu"
ALLOCATED, RESERVED = 0, 1
"""Where `readings` has them."""

_STATES: Final[dict[str, BlockState]] = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    # What the documentation of torch calls the same.
    "active_awaiting_free": "pending",
    "inactive": "free",
}


class SegmentReader:
    """Reads memory maps.

    Parameters
    ----------
    allocator : Allocator, optional
        By default that of the torch that is loaded when it reads.
    find_heap : callable
        Returns how to read the C heap, or None where that cannot be known.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        allocator: Allocator | None = None,
        find_heap: Callable[[], ReadHeap | None] = find_glibc_heap,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._given = allocator
        self._find_heap = find_heap
        self._heap: ReadHeap | None = None
        self._looked_for_heap = False
        self._clock = clock

    def devices(self) -> tuple[str, ...]:
        """Return the devices there are maps of; GPUs once the user's code has initialised them."""
        return (*keys_of(self._allocator()), HOST)

    def read(self, device: str = "") -> MemoryMap:
        """Return the map of one device, or else of all GPUs, or of the C heap where there is none.

        Where the allocator cannot list its segments the map has none, and a note that says so.
        """
        started = self._clock()
        allocator = self._allocator()
        gpus = keys_of(allocator)
        if device == HOST or not gpus:
            segments, notes = self._heap_segments()
            return MemoryMap((HOST,), segments, self._clock() - started, notes)
        wanted = tuple(one for one in gpus if one == device or not device)
        try:
            listed = segments_of(allocator.snapshot(), allocator.device_type)
            segments, notes = tuple(one for one in listed if one.device in wanted), {}
        except Exception as error:  # noqa: BLE001  (allocators that keep no list raise what they like)
            segments = ()
            notes = {one: _unlisted(allocator, gpus.index(one), one, error) for one in wanted}
        return MemoryMap(wanted, segments, self._clock() - started, notes)

    def _allocator(self) -> Allocator:
        return self._given or loaded_allocator()

    def _heap_segments(self) -> tuple[tuple[Segment, ...], Mapping[str, str]]:
        if not self._looked_for_heap:
            self._heap, self._looked_for_heap = self._find_heap(), True
        if self._heap is None:
            note = (
                "This C library does not report the layout of its heap. That needs Linux with glibc 2.33 or "
                "newer, and no other malloc preloaded."
            )
            return (), {HOST: note}
        note = (
            "malloc reports totals only, so this shows how much, not where. Small Python objects are not "
            "included."
        )
        return heap_segments(self._heap()), {HOST: note}


def _unlisted(allocator: Allocator, index: int, device: str, error: Exception) -> str:
    try:
        found = readings(allocator.stats(index))
    except Exception:  # noqa: BLE001  (the same allocators)
        found = (NOT_AVAILABLE, NOT_AVAILABLE)
    sums = f"{format_bytes(found[ALLOCATED])} in use of {format_bytes(found[RESERVED])} reserved"
    return (
        f"The allocator of {device} ({plain(error)}) does not list its segments, so fragmentation cannot be "
        f"shown; its totals are {sums}."
    )


def segments_of(listed: Iterable[Mapping[str, Any]], kind: str = "cuda") -> tuple[Segment, ...]:
    """Return the segments of `torch.cuda.memory_snapshot`, of devices of a kind."""
    return tuple(
        Segment(
            device=f"{kind}:{one['device']}",
            address=one["address"],
            size=one["total_size"],
            kind="small" if one["segment_type"] == "small" else "large",
            blocks=_blocks_of(one),
            stream=one.get("stream", 0),
            pool=_pool_of(one),
            expandable=bool(one.get("is_expandable", False)),
        )
        for one in listed
    )


def _pool_of(segment: Mapping[str, Any]) -> tuple[int, int]:
    first, second = segment.get("segment_pool_id", NO_POOL)
    return first, second


def _blocks_of(segment: Mapping[str, Any]) -> tuple[Block, ...]:
    blocks, address = [], segment["address"]
    for one in segment["blocks"]:
        size, state = one["size"], _STATES.get(one["state"], "allocated")
        # What was asked for stays noted in blocks that have been freed since.
        asked = min(one.get("requested_size", size), size) if state == "allocated" else 0
        blocks.append(Block(address, size, asked, state))
        address += size
    return tuple(blocks)


def heap_segments(heap: Mallinfo) -> tuple[Segment, ...]:
    """Return a C heap as segments: the heap in pieces, its free top, and what was mapped by itself."""
    top = min(int(heap.keepcost), int(heap.fordblks))
    used, free = int(heap.uordblks), int(heap.fordblks) - top
    parts: tuple[tuple[SegmentKind, int, int], ...] = (
        ("heap", used, free),
        ("mapped", int(heap.hblkhd), 0),
        ("top", 0, top),
    )
    return tuple(
        Segment(HOST, 0, used + free, kind, _halves(used, free))
        for kind, used, free in parts
        if used + free > 0
    )


def _halves(used: int, free: int) -> tuple[Block, ...]:
    blocks = (Block(0, used, used, "allocated"), Block(used, free, 0, "free"))
    return tuple(one for one in blocks if one.size)
