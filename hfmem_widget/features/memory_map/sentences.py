"""What a memory map means, in sentences with a figure; what is not there is not mentioned."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hfmem_widget.features.memory_map.fragmentation import Fragmentation, StreamPool
from hfmem_widget.text import MIB, format_bytes, format_share, torch_module

LEAST_SHARE = 0.01
"""Share of reserved memory: a part that is smaller, or below 1 MiB, is in the legend only."""

_Sized = Iterator[tuple[float, str]]
"""Sentences, each with the bytes that decide whether it is worth saying."""


def sentences(fragmentation: Fragmentation) -> tuple[str, ...]:
    """Return what a person should know of a device's segments, most useful first."""
    if not fragmentation.reserved:
        return ()
    sized = _of_heap(fragmentation) if fragmentation.is_host else _of_gpu(fragmentation)
    return tuple(text for size, text in sized if _worth_telling(size, fragmentation))


def place_name(place: StreamPool) -> str:
    """Return the name of a place: whose requests it serves."""
    stream = f"stream {place.stream:#x}" if place.stream else "the default stream"
    if not place.is_private:
        return stream
    pool = f"private pool {place.pool[0]}.{place.pool[1]}"
    return f"{pool}, {stream}" if place.stream else pool


def _worth_telling(size: float, fragmentation: Fragmentation) -> bool:
    return size >= max(MIB, LEAST_SHARE * fragmentation.reserved)


def _of_gpu(fragmentation: Fragmentation) -> _Sized:
    largest = format_bytes(fragmentation.fits)
    fits = f"Largest request that fits without more memory from the driver: {largest}."
    none = "No cached memory is free for ordinary code: the next request goes to the driver."
    yield math.inf, fits if fragmentation.fits else none
    yield _holes(fragmentation)
    whole, pending = fragmentation.bytes("whole"), fragmentation.bytes("pending")
    noun = "pages" if fragmentation.expandable else "segments"
    text = (
        f"{format_bytes(whole)} is free in whole {noun}: new tensors take it first, and "
        f"{torch_module(fragmentation.device)}.empty_cache() returns it to the device."
    )
    yield whole, text
    text = (
        f"{format_bytes(pending)} was freed while another stream may still use it "
        "(record_stream); it becomes free when that stream has passed that point."
    )
    yield pending, text
    streams = [
        place
        for place in fragmentation.places
        if not (place.is_common or place.is_private) and place.free
    ]
    if streams:
        free = sum(place.free for place in streams)
        free_part = (
            place_name(streams[0]) if len(streams) == 1 else f"{len(streams)} streams, for each"
        )
        text = (
            f"{format_bytes(free)} is free for {free_part} alone: memory allocated on one stream is never "
            "reused by another."
        )
        yield free, text
    pools = [place for place in fragmentation.places if place.is_private]
    reserved, free = sum(place.reserved for place in pools), sum(place.free for place in pools)
    noun = "a private pool" if len(pools) == 1 else f"{len(pools)} private pools"
    free_part = "" if free < MIB else f"; {format_bytes(free)} of that is free, for its owner only"
    pool = f"CUDA graph or {torch_module(fragmentation.device)}.MemPool"
    text = f"{format_bytes(reserved)} is reserved in {noun} ({pool}){free_part}."
    yield reserved, text
    if fragmentation.expandable:
        text = (
            "Segments are expandable: they can grow and return single pages. PyTorch's own counter of holes "
            "(inactive_split) stays at 0 for them, so holes are counted from the blocks here."
        )
        yield math.inf, text


def _holes(fragmentation: Fragmentation) -> tuple[float, str]:
    size = fragmentation.bytes("hole")
    size_words = (
        f"{format_bytes(size)} ({format_share(size / fragmentation.reserved)} of reserved memory) "
    )
    empty = f"{torch_module(fragmentation.device)}.empty_cache()"
    if fragmentation.expandable:
        return size, size_words + (
            f"lies beside tensors, on partly used pages: {empty} cannot return it, but "
            "requests that fit can use it."
        )
    sizes = (
        block.size
        for place in fragmentation.places
        if place.is_common
        for segment in place.segments
        if segment.in_use
        for block in segment.blocks
        if block.state == "free"
    )
    return size, size_words + (
        f"lies between tensors, in partly used segments: {empty} cannot return it, and no "
        f"request above {format_bytes(max(sizes, default=0))} fits into it."
    )


def _of_heap(fragmentation: Fragmentation) -> _Sized:
    hole, top = fragmentation.bytes("hole"), fragmentation.bytes("whole")
    segments = (segment for place in fragmentation.places for segment in place.segments)
    mapped = sum(segment.size for segment in segments if segment.kind == "mapped")
    text = (
        f"{format_bytes(hole)} ({format_share(hole / fragmentation.reserved)}) is free between blocks in "
        "use: malloc reuses it for requests that fit, but it is not returned to the system automatically."
    )
    yield hole, text
    text = (
        f"{format_bytes(top)} is free at the top of the heap: malloc returns it once it exceeds the trim "
        "threshold."
    )
    yield top, text
    text = (
        f"{format_bytes(mapped)} was mapped for single large requests: it returns to the system as "
        "soon as it is freed."
    )
    yield mapped, text
