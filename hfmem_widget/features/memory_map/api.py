"""``hfmem_widget.memory_map``: the layout of an allocator's memory."""

import time
from collections.abc import Callable
from typing import Final

from hfmem_widget.errors import OptionError
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.segments import Block, MemoryMap, Segment, SegmentKind, segments_of
from hfmem_widget.session.series import HOST
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import Allocator, reading_of
from hfmem_widget.sources.malloc import Mallinfo, ReadHeap, find_glibc_heap
from hfmem_widget.text import format_bytes, plain

NO_HEAP: Final = (
    "This C library does not report the layout of its heap. That needs Linux with glibc 2.33 or "
    "newer, and no other malloc preloaded."
)
TOTALS_ONLY: Final = (
    "malloc reports totals only, so this shows how much, not where. Small Python objects are not "
    "included."
)


def read_map(
    device: str = "",
    allocator: Allocator | None = None,
    find_heap: Callable[[], ReadHeap | None] = find_glibc_heap,
    clock: Callable[[], float] = time.perf_counter,
) -> MemoryMap:
    """Return the map of a device, by default of all GPUs, or else the C heap; notes say what failed.

    Raise OptionError if there is no such device; GPUs are there once the user's code has initialised them.
    """
    started = clock()
    allocator = allocator or loaded_allocator()
    gpus = tuple(map(allocator.key, allocator.devices()))
    available = *gpus, HOST
    if device and device not in available:
        raise OptionError(f"no memory map for {plain(device)!r}; available: {', '.join(available)}")
    segments: tuple[Segment, ...] = ()
    if device == HOST or not gpus:
        wanted: tuple[str, ...] = (HOST,)
        read_heap = find_heap()
        segments = () if read_heap is None else heap_segments(read_heap())
        notes = {HOST: NO_HEAP if read_heap is None else TOTALS_ONLY}
    else:
        wanted, notes = tuple(key for key in gpus if key == device or not device), {}
        try:
            listed = segments_of(allocator.snapshot(), allocator.device_type)
            segments = tuple(segment for segment in listed if segment.device in wanted)
        except Exception as error:  # noqa: BLE001  (allocators without a list may raise anything)
            notes = {key: _unlisted(allocator, gpus.index(key), key, error) for key in wanted}
    return MemoryMap(wanted, segments, clock() - started, notes)


def _unlisted(allocator: Allocator, index: int, device: str, error: Exception) -> str:
    try:
        allocated, reserved, *_ = reading_of(allocator.stats(index))
    except Exception:  # noqa: BLE001  (as above)
        allocated = reserved = NOT_AVAILABLE
    sums = f"{format_bytes(allocated)} in use of {format_bytes(reserved)} reserved"
    return (
        f"The allocator of {device} ({plain(error)}) does not list its segments, so fragmentation cannot be "
        f"shown; its totals are {sums}."
    )


def heap_segments(heap: Mallinfo) -> tuple[Segment, ...]:
    """Return a C heap as segments: the heap in pieces, its free top, and separately mapped requests."""
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


def memory_map(device: str = "") -> MemoryMap:
    """Read the segments that an allocator has reserved, and their blocks.

    Nothing is allocated on a device, freed or waited for. Without a GPU, or before CUDA is initialised, the
    map is that of this process's C heap, which reports only sums.

    Parameters
    ----------
    device : str, optional
        Such as "cuda:0", or "cpu" for the heap; by default all GPUs.

    Returns
    -------
    MemoryMap
        In a notebook, one picture for each device.

    Raises
    ------
    OptionError
        If there is no such device.

    Examples
    --------
    >>> hfmem_widget.memory_map("cuda:0").fragmentation().bytes("hole")
    734003200
    """
    return read_map(device)
