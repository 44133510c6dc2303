"""The picture of a comparison as inline SVG, for whoever has no Plotly: GitHub, nbviewer, printed pages."""

from __future__ import annotations

import numpy as np

from hfmem_widget.features.compare.align import Line
from hfmem_widget.features.compare.scene import ALL_ALLOCATED, ComparisonScene, Drawn, has_band
from hfmem_widget.features.compare.text import part_label
from hfmem_widget.view import palette
from hfmem_widget.view.html import CHART, drawing, shown

_WIDTH = 1000
"""Units across the stretched part; text stands outside of it and keeps its size."""

_HEIGHT, _FOOT = 170, 20
_GUTTER = 56
_BAR = 12


def svg(scene: ComparisonScene) -> str:
    """Return the lines with axes, and below them a bar for each cell."""
    return (
        f"{CHART}{_lines(scene) if scene.has_lines else ''}"
        f"{''.join(_row(cell, scene) for cell in scene.cells)}{_legend(scene)}</div>"
    )


def _lines(scene: ComparisonScene) -> str:
    drawn = [(cell, cell.line) for cell in scene.cells if cell.line is not None]
    bands = "".join(_band(cell, line, scene) for cell, line in drawn if has_band(line))
    paths = "".join(_path(cell, line, scene) for cell, line in drawn)
    inside = _grid(scene) + _frame(bands + paths) + _ticks(scene)
    said = shown(f"{scene.what}: {', '.join(cell.name for cell, _ in drawn)}").html
    height = _HEIGHT + _FOOT
    # JupyterLab gives every svg `height: auto`; only an inline style stands above that.
    chart = drawing(
        f'<svg role="img" aria-label="{said}" width="100%" height="{height}" '
        f'style="display:block;width:100%;height:{height}px;overflow:visible;font-size:11px" '
        f'fill="currentColor"><title>{said}</title>{inside}</svg>'
    )
    return (
        f'<div style="opacity:.8;margin:2px 4px 4px">{shown(scene.what).html}</div>'
        f'<div style="padding:2px 20px 0 {_GUTTER}px">'
        f"{chart}</div>"
    )


def _frame(inside: str) -> str:
    return (
        f'<svg width="100%" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'preserveAspectRatio="none" style="width:100%;height:{_HEIGHT}px;max-width:none">{inside}</svg>'
    )


def _points(at: np.ndarray, values: np.ndarray, scene: ComparisonScene) -> list[str]:
    """Return where the points stand; an empty text where the line is broken."""
    across = (at - scene.start) / (scene.stop - scene.start) * _WIDTH
    down = _HEIGHT * (1 - values / scene.top)
    return [
        "" if y != y else f"{_number(x)} {_number(y)}"  # noqa: PLR0124  (so NaN is told)
        for x, y in zip(across.tolist(), down.tolist(), strict=True)
    ]


def _path(cell: Drawn, line: Line, scene: ComparisonScene) -> str:
    drawn, pen = [], "M"
    for point in _points(line.at, line.middle, scene):
        drawn.append(f"{pen}{point}" if point else "")
        pen = "L" if point else "M"
    dash = palette.STROKES[cell.dash]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="{"".join(drawn)}" fill="none" stroke="{cell.colour}" stroke-width="1.6"{dashes} '
        'vector-effect="non-scaling-stroke"/>'
    )


def _band(cell: Drawn, line: Line, scene: ComparisonScene) -> str:
    there = [*_points(line.at, line.high, scene)]
    back = [*reversed(_points(line.at, line.low, scene))]
    return f'<path d="M{"L".join([*there, *back])}z" fill="{cell.colour}" fill-opacity=".2"/>'


def _grid(scene: ComparisonScene) -> str:
    divisor, _ = scene.unit
    drawn = []
    for value, text in zip(scene.levels.values, scene.levels.texts, strict=True):
        y = _number(_HEIGHT * (1 - value * divisor / scene.top))
        drawn.append(
            f'<line x1="0" x2="100%" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".14"/>'
            f'<text x="-6" y="{y}" dy=".35em" text-anchor="end" fill-opacity=".75">{text}</text> '
        )
    return "".join(drawn)


def _ticks(scene: ComparisonScene) -> str:
    drawn = []
    for value, text in zip(scene.ticks.values, scene.ticks.texts, strict=True):
        x = 100 * (value - scene.start) / (scene.stop - scene.start)
        drawn.append(
            f'<text x="{x:.2f}%" y="{_HEIGHT + 15}" text-anchor="middle" fill-opacity=".75">{text}</text> '
        )
    return "".join(drawn)


def _row(cell: Drawn, scene: ComparisonScene) -> str:
    dash = palette.STROKES[cell.dash]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    left, boxes = 0.0, []
    for name, size in cell.parts:
        width = 100 * size / scene.longest
        colour = palette.PARTS.get(name, ALL_ALLOCATED)
        boxes.append(
            f'<rect x="{left:.2f}%" width="{width:.2f}%" height="{_BAR}" fill="{colour}">'
            f"<title>{part_label(name) if name else 'allocated'}</title></rect>"
        )
        left += width
    bar = drawing(
        f'<svg width="100%" height="{_BAR}" aria-hidden="true" '
        f'style="display:block;width:100%;height:{_BAR}px;max-width:none">{"".join(boxes)}</svg>'
    )
    return (
        '<div style="margin:5px 4px 0"><svg width="22" height="8" aria-hidden="true" '
        f'style="width:22px;height:8px"><path d="M0 4H22" stroke="{cell.colour}" stroke-width="2"{dashes}/>'
        f'</svg> <strong style="overflow-wrap:anywhere">{shown(cell.name).html}</strong> '
        f'<span style="white-space:nowrap">{shown(cell.peak).html}</span>{bar}</div>'
    )


def _legend(scene: ComparisonScene) -> str:
    keys = "".join(
        '<span style="white-space:nowrap"><svg width="10" height="10" aria-hidden="true" '
        'style="width:10px;height:10px;vertical-align:-1px">'
        f'<rect width="10" height="10" rx="2" fill="{palette.PARTS[name]}"/></svg> '
        f"{shown(part_label(name)).html}</span> "
        for name in scene.part_names
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:0 14px;margin:6px 4px 0;opacity:.85">'
        f"{keys}</div>"
        if keys
        else ""
    )


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
