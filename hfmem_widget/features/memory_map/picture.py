"""Segments as bars in rows on one scale, with coloured pieces for blocks: inline SVG without a script.

Blocks that are too small to be seen are merged.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import NamedTuple

from hfmem_widget.session.segments import LABELS, Fragmentation, Piece, StreamPool
from hfmem_widget.text import format_bytes
from hfmem_widget.view import palette
from hfmem_widget.view.chart.svg import trimmed
from hfmem_widget.view.html import caption, drawing, shown

WIDTH = 720  # units across; a unit is about a pixel where there is room
ROWS = 8  # rows that hold everything, but for space left at their ends
GAP = 2.0  # units between neighbouring bars
NARROW = 5.0  # units below which segments share bars, end to end
COARSE_BARS = 8  # the largest factor for `NARROW` if there are too many pieces
SLIVER = 0.1  # share of the finest length: shorter pieces are merged with later ones
HEIGHT, STEP = 13, 17  # pixels of a bar, and from one row to the next

Pieces = tuple[Piece, ...]

_ORDER = list(LABELS)


class SegmentBar(NamedTuple):
    """A segment, or several narrow ones end to end, which may take several bars."""

    pieces: Pieces  # from left to right
    row: int
    left: float  # units


class Layout(NamedTuple):
    """The bars of all places of a device."""

    full: float  # bytes of the whole width
    places: tuple[tuple[StreamPool, tuple[SegmentBar, ...]], ...]


def layout(places: Sequence[StreamPool], most: int) -> Layout:
    """Lay out the segments of a device in at most about `most` pieces."""
    total = sum(place.reserved for place in places)
    largest = max(place.segments[0].size for place in places)
    full = _full_width(largest, total / ROWS)
    pieces: list[Sequence[Pieces]] = [place.pieces for place in places]
    coarse = 1.0
    while True:
        finest = coarse * full / WIDTH
        # Merged pieces stay merged, so each round has fewer pieces.
        pieces = [[_joined(merged(each, finest)) for each in segments] for segments in pieces]
        laid = tuple(
            (place, _bars(place, segments, full, coarse))
            for place, segments in zip(places, pieces, strict=True)
        )
        count = sum(len(bar.pieces) for _, bars in laid for bar in bars)
        if count <= most or coarse > WIDTH:
            return Layout(full, laid)
        coarse *= 2


def _full_width(largest: int, wanted: float) -> float:
    """Return the bytes of a row: at least `wanted`, and a whole number of the largest bars."""
    abreast = max(1, math.ceil(wanted / largest))
    return abreast * largest * WIDTH / (WIDTH - (abreast - 1) * GAP)


def merged(pieces: Iterable[Piece], finest: float) -> Iterator[Piece]:
    """Merge neighbours of one kind, and those too small to be seen; the sums by kind do not change."""
    waiting: dict[str, int] = {}

    def drain(least: float) -> Iterator[Piece]:
        for name in sorted(waiting, key=_ORDER.index):
            if waiting[name] >= least:
                yield name, waiting.pop(name)

    for name, size in _joined(pieces):
        if size < finest:
            waiting[name] = waiting.get(name, 0) + size
        if size >= finest or sum(waiting.values()) >= finest:
            yield from drain(finest * SLIVER)
        if size >= finest:
            yield name, size
    yield from drain(0)


def _bars(
    place: StreamPool, pieces: Sequence[Pieces], full: float, coarse: float
) -> tuple[SegmentBar, ...]:
    finest, narrow = coarse * full / WIDTH, min(coarse, COARSE_BARS) * NARROW * full / WIDTH
    wide = sum(segment.size >= narrow for segment in place.segments)
    ends = accumulate(segment.size for segment in place.segments[wide:])
    # A bar of narrow segments may begin before its stretch, by less than one of them.
    bars = groupby(zip(ends, pieces[wide:], strict=True), lambda each: each[0] // (full - narrow))
    shared = (chain.from_iterable(each for _, each in bar) for _, bar in bars)
    strips = (_joined(merged(strip, finest)) for strip in shared)
    return tuple(_placed(chain(pieces[:wide], strips), full))


def _placed(stretches: Iterable[Pieces], full: float) -> Iterator[SegmentBar]:
    ends: list[float] = []
    for stretch in stretches:
        width = sum(size for _, size in stretch) * WIDTH / full
        row = next((row for row, end in enumerate(ends) if end + width <= WIDTH + 0.01), len(ends))
        if row == len(ends):
            ends.append(0.0)
        yield SegmentBar(stretch, row, ends[row])
        ends[row] += width + GAP


def _joined(pieces: Iterable[Piece]) -> Pieces:
    runs = groupby(pieces, key=itemgetter(0))
    return tuple((name, sum(size for _, size in run)) for name, run in runs)


def picture_html(fragmentation: Fragmentation, most: int) -> str:
    """Return the bars of all places with their headings, in at most about `most` pieces."""
    full, places = layout(fragmentation.places, most)
    is_one = len(places) == 1
    drawn = "".join(_place_html(place, bars, full, is_one=is_one) for place, bars in places)
    unit = "part" if fragmentation.is_host else "segment"
    scale = f"one bar per {unit}, all on one scale; full width {format_bytes(full)}"
    return drawn + caption(scale)


def _place_html(place: StreamPool, bars: Sequence[SegmentBar], full: float, *, is_one: bool) -> str:
    # One path for each kind: a horizontal line, as thick as a bar, for each of its pieces.
    paths = dict.fromkeys(LABELS, "")
    for bar in bars:
        left = bar.left
        for name, size in bar.pieces:
            width = size * WIDTH / full
            middle = bar.row * STEP + HEIGHT / 2
            paths[name] += f"M{trimmed(left, 2)} {middle:g}h{trimmed(width, 2)}"
            left += width
    shapes = "".join(
        f'<path fill="none" stroke="{palette.BLOCKS[name]}" stroke-width="{HEIGHT}" d="{path}"/>'
        for name, path in paths.items()
        if path
    )
    height = max(bar.row for bar in bars) * STEP + HEIGHT
    heading_text = (
        f"{place.name}: {format_bytes(place.reserved)} reserved, {format_bytes(place.free)} free"
    )
    heading = "" if is_one else f'<div style="margin:6px 0 0">{caption(heading_text)}</div>'
    # JupyterLab gives every svg `height: auto`, which only an inline style overrides.
    return heading + drawing(
        f'<svg role="img" aria-label="{shown(heading_text).html}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" style="display:block;width:100%;height:{height}px">{shapes}</svg>'
    )
