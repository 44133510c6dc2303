"""What a memory map means, in sentences with a figure; what is not there is not spoken of."""

from __future__ import annotations

from collections.abc import Iterator

from hfmem_widget.features.memory_map.fragmentation import Fragmentation, Place
from hfmem_widget.text import MIB, format_bytes, format_share

LEAST_SHARE = 0.01
"""Of what is reserved: what is less, or less than a MiB, stands in the legend only."""


def sentences(found: Fragmentation) -> tuple[str, ...]:
    """Return what a person should know of a device's segments, most useful first."""
    return tuple(_of_heap(found) if found.is_host else _of_gpu(found))


def place_name(place: Place) -> str:
    """Return what a place is called: whose requests it serves."""
    stream = f"stream {place.stream:#x}" if place.stream else "the default stream"
    if not place.is_private:
        return stream
    pool = f"private pool {place.pool[0]}.{place.pool[1]}"
    return f"{pool}, {stream}" if place.stream else pool


def _worth_telling(size: float, found: Fragmentation) -> bool:
    return size >= max(MIB, LEAST_SHARE * found.reserved)


def _of_gpu(found: Fragmentation) -> Iterator[str]:
    if not found.reserved:
        return
    if found.fits:
        yield (
            f"Largest request that fits without more memory from the driver: {format_bytes(found.fits)}."
        )
    else:
        yield "No cached memory is free for ordinary code: the next request goes to the driver."
    if _worth_telling(found.bytes("hole"), found):
        yield _of_holes(found)
    if _worth_telling(found.bytes("whole"), found):
        yield (
            f"{format_bytes(found.bytes('whole'))} is free in whole "
            f"{'pages' if found.expandable else 'segments'}: new tensors take it first, and "
            "torch.cuda.empty_cache() returns it to the device."
        )
    if _worth_telling(found.bytes("pending"), found):
        yield (
            f"{format_bytes(found.bytes('pending'))} was freed while another stream may still use it "
            "(record_stream); it becomes free when that stream has passed that point."
        )
    yield from _of_other_streams(found)
    yield from _of_private_pools(found)
    if found.expandable:
        yield (
            "Segments are expandable: they can grow and return single pages. PyTorch's own counter of holes "
            "(inactive_split) stays at 0 for them, so holes are counted from the blocks here."
        )


def _of_holes(found: Fragmentation) -> str:
    size = found.bytes("hole")
    told = f"{format_bytes(size)} ({format_share(size / found.reserved)} of reserved memory) "
    if found.expandable:
        return told + (
            "lies beside tensors, on partly used pages: torch.cuda.empty_cache() cannot return it, but "
            "requests that fit can use it."
        )
    return told + (
        "lies between tensors, in partly used segments: torch.cuda.empty_cache() cannot return it, and no "
        f"request above {format_bytes(_largest_hole(found))} fits into it."
    )


def _largest_hole(found: Fragmentation) -> int:
    return max(
        (
            block.size
            for place in found.places
            if place.is_common
            for segment in place.segments
            if segment.in_use
            for block in segment.blocks
            if block.state == "free"
        ),
        default=0,
    )


def _of_other_streams(found: Fragmentation) -> Iterator[str]:
    streams = [one for one in found.places if not (one.is_common or one.is_private) and one.free]
    free = sum(one.free for one in streams)
    if _worth_telling(free, found):
        whose = place_name(streams[0]) if len(streams) == 1 else f"{len(streams)} streams, for each"
        yield (
            f"{format_bytes(free)} is free for {whose} alone: memory allocated on one stream is never reused "
            "by another."
        )


def _of_private_pools(found: Fragmentation) -> Iterator[str]:
    pools = [one for one in found.places if one.is_private]
    reserved, free = sum(one.reserved for one in pools), sum(one.free for one in pools)
    if _worth_telling(reserved, found):
        noun = "a private pool" if len(pools) == 1 else f"{len(pools)} private pools"
        whose = "" if free < MIB else f"; {format_bytes(free)} of that is free, for its owner only"
        yield (
            f"{format_bytes(reserved)} is reserved in {noun} (CUDA graph or torch.cuda.MemPool){whose}."
        )


def _of_heap(found: Fragmentation) -> Iterator[str]:
    hole, top = found.bytes("hole"), found.bytes("whole")
    if _worth_telling(hole, found):
        yield (
            f"{format_bytes(hole)} ({format_share(hole / found.reserved)}) is free between blocks in use: "
            "malloc reuses it for requests that fit, but it is not returned to the system automatically."
        )
    if _worth_telling(top, found):
        yield (
            f"{format_bytes(top)} is free at the top of the heap: malloc returns it once it exceeds the trim "
            "threshold."
        )
    mapped = sum(
        one.size for place in found.places for one in place.segments if one.kind == "mapped"
    )
    if _worth_telling(mapped, found):
        yield (
            f"{format_bytes(mapped)} was mapped for single large requests: it returns to the system as "
            "soon as it is freed."
        )
