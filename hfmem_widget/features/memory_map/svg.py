"""Segments as bars, blocks as stretches of colour: inline SVG that needs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfmem_widget.features.memory_map.fragmentation import LABELS, Fragmentation, StreamPool
from hfmem_widget.features.memory_map.rows import WIDTH, SegmentBar, layout
from hfmem_widget.features.memory_map.sentences import place_name
from hfmem_widget.text import format_bytes, format_count
from hfmem_widget.view import palette
from hfmem_widget.view.chart.paint_svg import number
from hfmem_widget.view.html import caption, drawing, shown

HEIGHT, STEP = 13, 17  # pixels of a bar, and from one row to the next
PIECES_PER_TITLE = 40  # for so many pieces one bar has a title on hover, the widest first


def picture_html(fragmentation: Fragmentation, most: int) -> str:
    """Return the bars of all places, each place with its heading, in at most about `most` pieces."""
    full, places = layout(fragmentation.places, most)
    bars = sorted((bar for _, bars in places for bar in bars), key=lambda bar: -bar.size)
    titled = {id(bar) for bar in bars[: most // PIECES_PER_TITLE]}
    drawn = "".join(_place_html(place, bars, full, titled, fragmentation) for place, bars in places)
    unit = "part" if fragmentation.is_host else "segment"
    scale = f"one bar per {unit}, all on one scale; full width {format_bytes(full)}"
    return drawn + caption(scale)


def _place_html(
    place: StreamPool,
    bars: Sequence[SegmentBar],
    full: float,
    titled: set[int],
    fragmentation: Fragmentation,
) -> str:
    # One path for each part: a level line as thick as a bar for each of its pieces.
    paths, titles = dict.fromkeys(LABELS, ""), ""
    for bar in bars:
        left = bar.left
        for name, size in bar.pieces:
            width = size * WIDTH / full
            middle = bar.row * STEP + HEIGHT / 2
            paths[name] += f"M{number(left, 2)} {middle:g}h{number(width, 2)}"
            left += width
        if id(bar) in titled:
            titles += (
                f'<rect x="{number(bar.left, 2)}" y="{bar.row * STEP}" '
                f'width="{number(left - bar.left, 2)}" height="{HEIGHT}" fill-opacity="0">'
                f"<title>{shown(bar_text(bar, fragmentation.labels), 400).html}</title></rect>"
            )
    shapes = "".join(
        f'<path fill="none" stroke="{palette.BLOCKS[name]}" stroke-width="{HEIGHT}" d="{path}"/>'
        for name, path in paths.items()
        if path
    )
    height = max(bar.row for bar in bars) * STEP + HEIGHT
    heading_text = (
        f"{place_name(place)}: {format_bytes(place.reserved)} reserved, "
        f"{format_bytes(place.free)} free"
    )
    heading = (
        f'<div style="margin:6px 0 0">{caption(heading_text)}</div>'
        if len(fragmentation.places) > 1
        else ""
    )
    # JupyterLab gives every svg `height: auto`; only an inline style stands above that.
    return heading + drawing(
        f'<svg role="img" aria-label="{shown(heading_text).html}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" '
        f'style="display:block;width:100%;height:{height}px">{shapes}{titles}</svg>'
    )


def bar_text(bar: SegmentBar, labels: Mapping[str, str]) -> str:
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
