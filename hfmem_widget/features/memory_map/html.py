"""A memory map as a picture with its figures: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from hfmem_widget.features.memory_map.fragmentation import Fragmentation, Place
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.rows import ROWS
from hfmem_widget.features.memory_map.segments import Segment
from hfmem_widget.features.memory_map.sentences import place_name, sentences
from hfmem_widget.features.memory_map.svg import STEP, picture_html
from hfmem_widget.session import Part
from hfmem_widget.text import (
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_share,
    plain,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, Row, table

MOST_PIECES = 2400
"""Stretches of colour in all pictures of a bundle; what they leave of 60 kB is for the rest."""

LIVE_PIECES = 640
"""The same while a cell runs, for 20 kB."""

MOST_SEGMENTS = 8
"""Rows in all tables of the largest segments."""

ROWS_OF_A_HEAP = 4
"""With its scale."""

STRIP = 64
"""Characters of the picture in plain text."""

NOTE_LENGTH = 400
NOTHING = "nothing is reserved"
NONE = "\u2013"
COLUMNS = ("largest segments", "size", "free", "largest hole", "blocks")

_MARKS = {
    "used": "\u2588",
    "rounding": "\u2593",
    "pending": "\u2592",
    "hole": "\u2591",
    "whole": "\u00b7",
    "stream": "s",
    "pool": "p",
}

Moments = Sequence[tuple[str, MemoryMap]]


@dataclass(frozen=True, slots=True)
class _Group:
    """One device at one moment."""

    title: str
    note: str
    how: Fragmentation


def memory_map_bundle(found: MemoryMap) -> dict[str, str]:
    """Return one picture a device by MIME type."""
    return moments_bundle((("", found),))


def moments_bundle(moments: Moments) -> dict[str, str]:
    """Return maps of several moments by MIME type: for each and its devices a picture with what it means.

    Parameters
    ----------
    moments : sequence of (str, MemoryMap)
        What to call each moment, and what was there.
    """
    groups = [one for title, found in moments for one in _groups_of(title, found)]
    sections = (_section(one, len(groups)) for one in groups)
    return kit.bundle(kit.headed("memmap"), *sections, kit.note(_cost(moments)))


def live_bundle(found: MemoryMap) -> dict[str, str]:
    """Return what is shown while it changes, by MIME type: pictures and their legends, in some 20 kB."""
    groups = _groups_of("", found)
    return kit.bundle(kit.headed("memmap"), *(_live(one, len(groups)) for one in groups))


def _groups_of(title: str, found: MemoryMap) -> list[_Group]:
    """Return the devices there is something to say of; all of them where that is none."""
    there = {*found.notes, *(segment.device for segment in found.segments)}
    devices = [one for one in found.devices if one in there] or list(found.devices)
    return [_Group(title, found.notes.get(one, ""), found.fragmentation(one)) for one in devices]


def _cost(moments: Moments) -> str:
    blocks = sum(len(segment.blocks) for _, found in moments for segment in found.segments)
    seconds = sum(found.seconds for _, found in moments)
    return f"{format_counted(blocks, 'block')} read in {format_duration(seconds)}"


def _heading(group: _Group) -> tuple[str, str]:
    how = group.how
    segments = sum(len(place.segments) for place in how.places)
    told = [plain(group.title)] if group.title else []
    if not how.reserved:
        told += [] if group.note else [NOTHING]
    elif how.is_host:
        told.append(f"heap of {format_bytes(how.reserved)}")
    else:
        noun = "segment" if segments == 1 else "segments"
        told.append(f"{format_bytes(how.reserved)} reserved in {format_count(segments)} {noun}")
    return plain(how.device), " \u00b7 ".join(told)


def _notes(group: _Group) -> list[str]:
    return [plain(one, NOTE_LENGTH) for one in (*sentences(group.how), group.note) if one]


def _section(group: _Group, groups: int) -> kit.Fragment:
    how = group.how
    drawn = picture_html(how, MOST_PIECES // groups) if how.reserved else ""
    legend = table(
        [Column(), Column(), Column(is_quiet=True)], [_row(part, how) for part in how.parts]
    )
    return kit.section(
        *_heading(group),
        kit.Fragment(drawn + legend.html if how.reserved else "", "\n".join(_lines(group))),
        *(kit.line(one) for one in _notes(group)),
        kit.Fragment(_segments(how, MOST_SEGMENTS // groups).html),
    )


def _live(group: _Group, groups: int) -> kit.Fragment:
    """Return a picture that keeps its height while there are a few rows more or less, and a short legend."""
    how = group.how
    picture = picture_html(how, LIVE_PIECES // groups) if how.reserved else ""
    rows = ROWS_OF_A_HEAP if how.is_host else ROWS + 2
    legend = (
        kit.quiet(
            kit.marked(palette.BLOCKS[part.name], f"{part.label} {_size(part.bytes)}"),
            style="display:inline-block;margin:0 14px 0 0",
        )
        for part in how.parts
    )
    drawn = (
        f'<div style="min-height:{rows * STEP}px">{picture}</div>'
        f"{kit.block('font-size:12px', *legend).html}"
    )
    return kit.section(*_heading(group), kit.Fragment(drawn, "\n".join(_lines(group))))


def _row(part: Part, how: Fragmentation) -> Row:
    name = kit.marked(palette.BLOCKS[part.name], part.label)
    return Row((name, _size(part.bytes), _share(part.bytes, how)))


def _size(size: float) -> str:
    """Return bytes as text, in which a few, or none, are told as few."""
    return kit.size_text(size or 1.0)


def _share(size: float, how: Fragmentation) -> str:
    return format_share(size / how.reserved)


def _segments(how: Fragmentation, most: int) -> kit.Fragment:
    if how.is_host:
        return kit.Fragment("")
    every = [(one, place) for place in how.places for one in place.segments]
    largest = sorted(every, key=lambda pair: -pair[0].size)[: max(1, most)]
    rows = [
        Row((kit.code(name), *figures))
        for name, *figures in (_segment_row(*one) for one in largest)
    ]
    return table([*map(Column, COLUMNS)], rows)


def _segment_row(segment: Segment, place: Place) -> tuple[str, ...]:
    free = [block.size for block in segment.blocks if block.state == "free"]
    name = f"{segment.address:#x}"
    return (
        name if place.is_common else f"{name}, {place_name(place)}",
        format_bytes(segment.size),
        format_bytes(sum(free)) if free else NONE,
        format_bytes(max(free)) if free else NONE,
        format_count(len(segment.blocks)),
    )


def _lines(group: _Group) -> list[str]:
    how = group.how
    shown = [(_MARKS[part.name], _size(part.bytes), part) for part in how.parts]
    width = max((len(size) for _, size, _ in shown), default=0)
    legend = [
        f"{mark} {size:>{width}}  {_share(part.bytes, how):>6}  {part.label}"
        for mark, size, part in shown
    ]
    return [*([_strip(how)] if how.reserved else []), *legend]


def _strip(how: Fragmentation) -> str:
    """Return all segments end to end, the largest first: each character is what most of its bytes are."""
    cell = how.reserved / STRIP
    shares: list[dict[str, float]] = [{} for _ in range(STRIP)]
    start = 0.0
    for place in how.places:
        for name, size in chain.from_iterable(place.pieces):
            stop = start + size
            for at in range(int(start / cell), min(STRIP, int(stop / cell) + 1)):
                inside = min(stop, (at + 1) * cell) - max(start, at * cell)
                shares[at][name] = shares[at].get(name, 0.0) + inside
            start = stop
    return "".join(_MARKS[max(one, key=lambda name: one[name])] for one in shares if one)
