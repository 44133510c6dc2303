"""Segments as bars, blocks as stretches of colour: inline SVG that needs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfmem_widget.features.memory_map.fragmentation import LABELS, Fragmentation, Place
from hfmem_widget.features.memory_map.rows import WIDTH, Bar, Layout, layout
from hfmem_widget.features.memory_map.sentences import place_name
from hfmem_widget.text import format_bytes, format_count
from hfmem_widget.view import palette
from hfmem_widget.view.html import caption, drawing, shown

HEIGHT = 13
STEP = 17
"""Pixels of a bar, and from one row to the next."""

PIECES_PER_TITLE = 40
"""For so many pieces one bar says more where it is pointed at, the widest first."""


def picture_html(how: Fragmentation, most: int) -> str:
    """Return the bars of all places, each place with its heading, in at most about `most` pieces."""
    found = layout(how.places, most)
    every = (bar for _, bars in found.places for bar in bars)
    told = sorted(every, key=lambda one: -one.size)[: most // PIECES_PER_TITLE]
    drawn = "".join(
        _place_html(place, bars, found.full, set(map(id, told)), how)
        for place, bars in found.places
    )
    return f"{drawn}{_scale(found, is_host=how.is_host)}"


def _place_html(
    place: Place, bars: Sequence[Bar], full: float, told: set[int], how: Fragmentation
) -> str:
    rows = 1 + max(bar.row for bar in bars)
    height = rows * STEP - (STEP - HEIGHT)
    said = f"{place_name(place)}: {format_bytes(place.reserved)} reserved, {format_bytes(place.free)} free"
    shapes = _strokes(bars, full) + "".join(
        _title(bar, full, how.labels) for bar in bars if id(bar) in told
    )
    heading = f'<div style="margin:6px 0 0">{caption(said)}</div>' if len(how.places) > 1 else ""
    # JupyterLab gives every svg `height: auto`; only an inline style stands above that.
    return heading + drawing(
        f'<svg role="img" aria-label="{shown(said).html}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" '
        f'style="display:block;width:100%;height:{height}px">{shapes}</svg>'
    )


def _strokes(bars: Sequence[Bar], full: float) -> str:
    """Return one path for each part: a horizontal line as thick as a bar for each of its pieces."""
    lines: dict[str, list[str]] = {name: [] for name in LABELS}
    for bar in bars:
        middle, left = bar.row * STEP + HEIGHT / 2, bar.left
        for name, size in bar.pieces:
            width = size * WIDTH / full
            lines[name].append(f"M{_short(left)} {middle:g}h{_short(width)}")
            left += width
    return "".join(
        f'<path fill="none" stroke="{palette.BLOCKS[name]}" stroke-width="{HEIGHT}" d="{"".join(drawn)}"/>'
        for name, drawn in lines.items()
        if drawn
    )


def _title(bar: Bar, full: float, labels: Mapping[str, str]) -> str:
    width = bar.size * WIDTH / full
    return (
        f'<rect x="{_short(bar.left)}" y="{bar.row * STEP}" width="{_short(width)}" height="{HEIGHT}" '
        f'fill-opacity="0"><title>{shown(bar_text(bar, labels), 400).html}</title></rect>'
    )


def bar_text(bar: Bar, labels: Mapping[str, str]) -> str:
    """Return what pointing at a bar says."""
    sums = dict.fromkeys(labels, 0)
    for name, size in bar.pieces:
        sums[name] += size
    parts = ", ".join(f"{format_bytes(size)} {labels[name]}" for name, size in sums.items() if size)
    if len(bar.segments) > 1:
        return f"{format_count(len(bar.segments))} smaller segments: {parts}"
    segment = bar.segments[0]
    where = f" at {segment.address:#x}" if segment.address else ""
    return f"{format_bytes(segment.size)}{where}: {parts}"


def _scale(found: Layout, *, is_host: bool) -> str:
    unit = "part" if is_host else "segment"
    told = f"one bar per {unit}, all on one scale; full width {format_bytes(found.full)}"
    return caption(told)


def _short(value: float) -> str:
    """Return a length without the digits that nobody sees."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
