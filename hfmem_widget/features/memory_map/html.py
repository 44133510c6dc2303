"""A memory map as a picture with figures and explanations: HTML without a script, and plain text."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from hfmem_widget.features.memory_map.picture import ROWS, STEP, picture_html
from hfmem_widget.session import Part
from hfmem_widget.session.segments import LABELS, Fragmentation, MemoryMap
from hfmem_widget.text import (
    MIB,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_share,
    plain,
    torch_module,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, TableRow, table

MOST_PIECES = 2400  # coloured pieces in all pictures of a bundle, which has at most 60 kB
LIVE_PIECES = 640  # the same while a cell runs, for 20 kB
MOST_SEGMENTS = 8  # rows in all tables of the largest segments
ROWS_OF_A_HEAP = 4  # with its scale
STRIP = 64  # characters of the picture in plain text
NOTE_LENGTH = 400
NONE = "\N{EN DASH}"
LEAST_SHARE = 0.01  # of reserved memory: smaller parts, or below 1 MiB, are only in the legend

_MARKS = dict(zip(LABELS, "█▓▒░·sp", strict=True))
_Sized = Iterator[tuple[float, str]]  # sentences with the bytes that decide whether they are shown


class _Group(NamedTuple):
    title: str
    note: str
    fragmentation: Fragmentation


def memory_map_bundle(memory_map: MemoryMap) -> dict[str, str]:
    """Return a picture for each device by MIME type."""
    return moments_bundle((("", memory_map),))


def moments_bundle(moments: Sequence[tuple[str, MemoryMap]]) -> dict[str, str]:
    """Return the maps of several moments by MIME type: a picture and sentences for each of their devices."""
    groups = [group for title, memory_map in moments for group in _groups_of(title, memory_map)]
    sections = (_section(group, len(groups)) for group in groups)
    maps = [memory_map for _, memory_map in moments]
    blocks = sum(len(segment.blocks) for each in maps for segment in each.segments)
    seconds = sum(each.seconds for each in maps)
    cost = f"{format_counted(blocks, 'block')} read in {format_duration(seconds)}"
    return kit.bundle(kit.headed("memory map"), *sections, kit.note(cost if seconds else ""))


def live_bundle(memory_map: MemoryMap) -> dict[str, str]:
    """Return the output of a running cell by MIME type: pictures and legends, of about 20 kB."""
    groups = _groups_of("", memory_map)
    return kit.bundle(kit.headed("memory map"), *(_live(group, len(groups)) for group in groups))


def _groups_of(title: str, memory_map: MemoryMap) -> list[_Group]:
    present = {*memory_map.notes, *(segment.device for segment in memory_map.segments)}
    devices = [device for device in memory_map.devices if device in present] or memory_map.devices
    return [
        _Group(title, memory_map.notes.get(device, ""), memory_map.fragmentation(device))
        for device in devices
    ]


def _heading(group: _Group) -> tuple[str, str]:
    fragmentation = group.fragmentation
    if not fragmentation.reserved:
        size = "" if group.note else "nothing is reserved"
    elif fragmentation.is_host:
        size = f"heap of {format_bytes(fragmentation.reserved)}"
    else:
        segments = format_counted(len(fragmentation.segments), "segment")
        size = f"{format_bytes(fragmentation.reserved)} reserved in {segments}"
    return plain(fragmentation.device), " \u00b7 ".join(filter(None, (plain(group.title), size)))


def _section(group: _Group, groups: int) -> kit.Fragment:
    fragmentation = group.fragmentation
    drawn = picture_html(fragmentation, MOST_PIECES // groups) if fragmentation.reserved else ""
    rows = [
        TableRow((_name(part), _size(part.bytes), _share(part.bytes, fragmentation)))
        for part in fragmentation.parts
    ]
    legend = table([Column(), Column(), Column(is_quiet=True)], rows)
    notes = (plain(text, NOTE_LENGTH) for text in (*sentences(fragmentation), group.note) if text)
    return kit.section(
        *_heading(group),
        kit.Fragment(drawn + legend.html, _text(fragmentation)),
        *map(kit.line, notes),
        kit.Fragment(_segments(fragmentation, MOST_SEGMENTS // groups).html),
    )


def _live(group: _Group, groups: int) -> kit.Fragment:
    fragmentation = group.fragmentation
    picture = picture_html(fragmentation, LIVE_PIECES // groups) if fragmentation.reserved else ""
    height = STEP * (ROWS_OF_A_HEAP if fragmentation.is_host else ROWS + 2)
    style = "display:inline-block;margin:0 14px 0 0"
    legend = (
        kit.faint(_name(part, f" {_size(part.bytes)}"), style=style) for part in fragmentation.parts
    )
    drawn = (
        f'<div style="min-height:{height}px">{picture}</div>'
        f"{kit.block('font-size:12px', *legend).html}"
    )
    return kit.section(*_heading(group), kit.Fragment(drawn, _text(fragmentation)))


def _name(part: Part, more: str = "") -> kit.Fragment:
    return kit.marked(palette.BLOCKS[part.name], f"{part.label}{more}")


def _size(size: float) -> str:
    return kit.size_text(size or 1.0)


def _share(size: float, fragmentation: Fragmentation) -> str:
    return format_share(size / fragmentation.reserved)


def _segments(fragmentation: Fragmentation, most: int) -> kit.Fragment:
    segments = [(segment, place) for place in fragmentation.places for segment in place.segments]
    if fragmentation.is_host:
        return kit.NOTHING
    rows = []
    for segment, place in sorted(segments, key=lambda pair: -pair[0].size)[: max(1, most)]:
        free = [block.size for block in segment.blocks if block.state == "free"]
        where = "" if place.is_common else f", {place.name}"
        figures = (
            format_bytes(segment.size),
            format_bytes(sum(free)) if free else NONE,
            format_bytes(max(free)) if free else NONE,
            format_count(len(segment.blocks)),
        )
        rows.append(TableRow((kit.code(f"{segment.address:#x}{where}"), *figures)))
    heads = "largest segments", "size", "free", "largest hole", "blocks"
    return table([*map(Column, heads)], rows)


def _text(fragmentation: Fragmentation) -> str:
    sizes = [_size(part.bytes) for part in fragmentation.parts]
    width = max(map(len, sizes), default=0)
    legend = [
        f"{_MARKS[part.name]} {size:>{width}}  {_share(part.bytes, fragmentation):>6}  {part.label}"
        for part, size in zip(fragmentation.parts, sizes, strict=True)
    ]
    return "\n".join([_strip(fragmentation), *legend] if fragmentation.reserved else legend)


def _strip(fragmentation: Fragmentation) -> str:
    """Return the segments end to end, the largest first; a character shows the largest part of its bytes."""
    cell = fragmentation.reserved / STRIP
    shares: list[dict[str, float]] = [{} for _ in range(STRIP)]
    start = 0.0
    for place in fragmentation.places:
        for name, size in chain.from_iterable(place.pieces):
            stop = start + size
            for at in range(int(start / cell), min(STRIP, int(stop / cell) + 1)):
                inside = min(stop, (at + 1) * cell) - max(start, at * cell)
                shares[at][name] = shares[at].get(name, 0.0) + inside
            start = stop
    return "".join(_MARKS[max(share, key=share.__getitem__)] for share in shares if share)


def sentences(fragmentation: Fragmentation) -> tuple[str, ...]:
    """Return sentences on a device's segments, most useful first."""
    if not fragmentation.reserved:
        return ()
    sized = _of_heap(fragmentation) if fragmentation.is_host else _of_gpu(fragmentation)
    least = max(MIB, LEAST_SHARE * fragmentation.reserved)
    return tuple(text for size, text in sized if size >= least)


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
    others = [place for place in fragmentation.places if not place.is_common]
    streams = [place for place in others if place.free and not place.is_private]
    if streams:
        free = sum(place.free for place in streams)
        free_part = streams[0].name if len(streams) == 1 else f"{len(streams)} streams, for each"
        text = (
            f"{format_bytes(free)} is free for {free_part} alone: memory allocated on one stream is never "
            "reused by another."
        )
        yield free, text
    pools = [place for place in others if place.is_private]
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
    mapped = sum(segment.size for segment in fragmentation.segments if segment.kind == "mapped")
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
