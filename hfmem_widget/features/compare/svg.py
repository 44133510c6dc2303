"""The picture of a comparison as inline SVG, for whoever has no Plotly: GitHub, nbviewer, printed pages."""

from __future__ import annotations

from hfmem_widget.features.compare.scene import ALL_ALLOCATED, ComparisonScene, Drawn
from hfmem_widget.features.compare.text import part_label
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart.paint_svg import (
    FOOT,
    GUTTER,
    axes,
    curves_svg,
    picture,
    stretched,
    swatch,
)

_HEIGHT, _BAR = 170, 12


def svg(scene: ComparisonScene) -> str:
    """Return the lines with axes, and below them a bar for each cell."""
    rows = "".join(_row(cell, scene) for cell in scene.cells)
    return f"{kit.CHART}{_lines(scene) if scene.has_lines else ''}{rows}{_legend(scene)}</div>"


def _lines(scene: ComparisonScene) -> str:
    names = ", ".join(cell.name for cell in scene.cells if cell.line is not None)
    # Nothing is told where a line is pointed at: its swatch has the name.
    drawn = stretched(_HEIGHT, curves_svg(scene.curves, scene.frame, _HEIGHT))
    inside = axes(scene.frame, _HEIGHT) + drawn
    return (
        f"{kit.block('opacity:.8;margin:2px 4px 4px', scene.what).html}"
        f'<div style="padding:2px 20px 0 {GUTTER}px">'
        f"{picture(f'{scene.what}: {names}', _HEIGHT + FOOT, inside)}</div>"
    )


def _row(cell: Drawn, scene: ComparisonScene) -> str:
    pieces = (
        (palette.PARTS.get(name, ALL_ALLOCATED), size, part_label(name) if name else "allocated")
        for name, size in cell.parts
    )
    drawn = kit.bar(pieces, scene.longest, "", height=_BAR)
    told = kit.words(
        kit.Fragment(swatch(cell.stroke, 22)),
        kit.strong(cell.name),
        kit.quiet(cell.peak, style="white-space:nowrap"),
    )
    return f'<div style="margin:5px 4px 0;overflow-wrap:anywhere">{told.html}{drawn}</div>'


def _legend(scene: ComparisonScene) -> str:
    keys = [
        kit.quiet(kit.marked(palette.PARTS[name], part_label(name)), style="white-space:nowrap")
        for name in scene.part_names
    ]
    style = "display:flex;flex-wrap:wrap;gap:0 14px;margin:6px 4px 0;opacity:.85"
    return kit.block(style, *keys).html
