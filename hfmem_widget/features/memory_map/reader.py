"""Segments and blocks, read from PyTorch's caching allocator and from the C heap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from hfmem_widget.features.memory_map.model import (
    NO_POOL,
    Block,
    BlockState,
    MemoryMap,
    Segment,
    SegmentKind,
)
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import Allocator, keys_of, reading_of
from hfmem_widget.sources.malloc import Mallinfo, ReadHeap, find_glibc_heap
from hfmem_widget.text import format_bytes, plain

HOST: Final = "cpu"
_STATES: Final[dict[str, BlockState]] = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    # The same state, as the documentation of torch calls it.
    "active_awaiting_free": "pending",
    "inactive": "free",
}


class SegmentReader:
    """Reads memory maps: by default of the allocator of the torch that is loaded when it reads.

    `find_heap` returns how to read the C heap, or None where that cannot be known.
    """

    def __init__(
        self,
        allocator: Allocator | None = None,
        find_heap: Callable[[], ReadHeap | None] = find_glibc_heap,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._given = allocator
        self._find_heap = find_heap
        self._clock = clock

    @cached_property
    def _heap(self) -> ReadHeap | None:
        return self._find_heap()

    def devices(self) -> tuple[str, ...]:
        """Return the devices that have maps; GPUs once the user's code has initialised them."""
        return (*keys_of(self._allocator()), HOST)

    def read(self, device: str = "") -> MemoryMap:
        """Return the map of one device, or else of all GPUs, or of the C heap where there is none.

        Where the allocator cannot list its segments, the map has a note instead.
        """
        started = self._clock()
        allocator = self._allocator()
        gpus = keys_of(allocator)
        segments: tuple[Segment, ...] = ()
        if device == HOST or not gpus:
            wanted: tuple[str, ...] = (HOST,)
            segments, notes = self._heap_segments()
        else:
            wanted, notes = tuple(key for key in gpus if key == device or not device), {}
            try:
                listed = segments_of(allocator.snapshot(), allocator.device_type)
                segments = tuple(segment for segment in listed if segment.device in wanted)
            except Exception as error:  # noqa: BLE001  (allocators that keep no list raise what they like)
                notes = {key: _unlisted(allocator, gpus.index(key), key, error) for key in wanted}
        return MemoryMap(wanted, segments, self._clock() - started, notes)

    def _allocator(self) -> Allocator:
        return self._given or loaded_allocator()

    def _heap_segments(self) -> tuple[tuple[Segment, ...], dict[str, str]]:
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
        allocated, reserved, *_ = reading_of(allocator.stats(index))
    except Exception:  # noqa: BLE001  (the same allocators)
        allocated = reserved = NOT_AVAILABLE
    sums = f"{format_bytes(allocated)} in use of {format_bytes(reserved)} reserved"
    return (
        f"The allocator of {device} ({plain(error)}) does not list its segments, so fragmentation cannot be "
        f"shown; its totals are {sums}."
    )


def segments_of(listed: Iterable[Mapping[str, Any]], kind: str = "cuda") -> tuple[Segment, ...]:
    """Return the segments of `torch.cuda.memory_snapshot`, of devices of a kind."""
    return tuple(
        Segment(
            device=f"{kind}:{each['device']}",
            address=each["address"],
            size=each["total_size"],
            kind="small" if each["segment_type"] == "small" else "large",
            blocks=_blocks_of(each),
            stream=each.get("stream", 0),
            pool=tuple(each.get("segment_pool_id", NO_POOL)),
            expandable=bool(each.get("is_expandable", False)),
        )
        for each in listed
    )


def _blocks_of(segment: Mapping[str, Any]) -> tuple[Block, ...]:
    blocks, address = [], segment["address"]
    for block in segment["blocks"]:
        size, state = block["size"], _STATES.get(block["state"], "allocated")
        # Blocks that have been freed still have the size of the request.
        requested = min(block.get("requested_size", size), size) if state == "allocated" else 0
        blocks.append(Block(address, size, requested, state))
        address += size
    return tuple(blocks)


def heap_segments(heap: Mallinfo) -> tuple[Segment, ...]:
    """Return a C heap as segments: the heap in pieces, its free top, and what was mapped by itself."""
    top = min(int(heap.keepcost), int(heap.fordblks))
    parts: tuple[tuple[SegmentKind, int, int], ...] = (
        ("heap", int(heap.uordblks), int(heap.fordblks) - top),
        ("mapped", int(heap.hblkhd), 0),
        ("top", 0, top),
    )
    segments = []
    for kind, used, free in parts:
        halves = (Block(0, used, used, "allocated"), Block(used, free, 0, "free"))
        blocks = tuple(block for block in halves if block.size)
        if used + free > 0:
            segments.append(Segment(HOST, 0, used + free, kind, blocks))
    return tuple(segments)
