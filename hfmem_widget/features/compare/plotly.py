"""The picture of a comparison as Plotly's JSON: plain values, drawn without a kernel."""

from __future__ import annotations

from typing import Any

from hfmem_widget.features.compare.scene import ALL_ALLOCATED, ComparisonScene, Drawn
from hfmem_widget.features.compare.text import part_label
from hfmem_widget.text import for_plotly
from hfmem_widget.view import palette
from hfmem_widget.view.chart.figure import CONFIG, legend_height
from hfmem_widget.view.chart.paint_plotly import BASE, CLEAR, Trace, axes, curve_traces, short

_LEFT, _RIGHT, _TOP = 56, 20, 22
_LINES, _TIMES = 220, 34
_ROW, _BAR = 36, 0.36
_SWATCH = 22


def plotly(scene: ComparisonScene) -> dict[str, Any]:
    """Return ``data``, ``layout`` and ``config``; below 60 kB for as many cells as are compared."""
    # The legend of a line is its swatch before the cell's name.
    data = [
        trace | {"showlegend": False}
        for curve in scene.curves
        for trace in curve_traces(curve, scene.frame, digits=".4~g")
    ]
    data += [_bars(name, scene) for name in scene.part_names]
    if any(name == "" for cell in scene.cells for name, _ in cell.parts):
        data.append(_bars("", scene))
    return {"data": data, "layout": _layout(scene), "config": dict(CONFIG)}


def _bars(name: str, scene: ComparisonScene) -> Trace:
    divisor, unit = scene.frame.unit
    sizes = [dict(cell.parts).get(name, 0.0) for cell in scene.cells]
    label = part_label(name) if name else "allocated"
    return {
        "type": "bar",
        "orientation": "h",
        "xaxis": "x2",
        "yaxis": "y2",
        "name": label,
        "x": [short(size / divisor) for size in sizes],
        "y": list(range(len(sizes))),
        "width": _BAR,
        "offset": 0.04,
        "hovertemplate": f"%{{x:.4~g}} {unit}<extra>{label}</extra>",
        "showlegend": bool(name),
        "marker": {"color": palette.PARTS.get(name, ALL_ALLOCATED), "line": {"width": 0}},
    }


def _layout(scene: ComparisonScene) -> dict[str, Any]:
    rows = len(scene.cells) * _ROW
    lines, between, top, left = (_LINES, _TIMES, _TOP, _LEFT) if scene.has_lines else (0, 0, 4, 12)
    bottom = 6 + legend_height(len(scene.part_names))
    plot = lines + between + rows
    layout: dict[str, Any] = {
        "height": top + plot + bottom,
        "margin": {"l": left, "r": _RIGHT, "t": top, "b": bottom, "autoexpand": False},
        **BASE,
        "hovermode": "closest",
        "barmode": "stack",
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -6 / plot, "yanchor": "top"}
        | {"bgcolor": CLEAR, "traceorder": "normal"},
        "xaxis2": {"range": [0, short(scene.longest / scene.frame.unit[0])], "visible": False}
        | {"anchor": "y2", "fixedrange": True},
        "yaxis2": {"range": [len(scene.cells) - 0.5, -0.5], "domain": [0, round(rows / plot, 4)]}
        | {"anchor": "x2", "visible": False, "fixedrange": True},
        "shapes": [_swatch(at, cell) for at, cell in enumerate(scene.cells)],
        "annotations": [_row_text(at, cell) for at, cell in enumerate(scene.cells)],
    }
    if lines:
        layout |= axes(scene.frame, foot=round((rows + between) / plot, 4))
        layout["annotations"].append(_title(scene))
    return layout


_TEXT = {"showarrow": False, "borderpad": 0}


def _title(scene: ComparisonScene) -> dict[str, Any]:
    left = {"xref": "paper", "x": 0, "xanchor": "left"}
    top = {"yref": "paper", "y": 1, "yanchor": "bottom"}
    shifts = {"xshift": 12 - _LEFT, "yshift": 4}
    return {"text": for_plotly(scene.what)} | left | top | _TEXT | shifts


def _swatch(at: int, cell: Drawn) -> dict[str, Any]:
    """Return the piece of its line before a cell's name, which is the legend of the lines."""
    axes = {"type": "line", "xref": "x2", "yref": "y2", "xsizemode": "pixel", "xanchor": 0}
    ends = {"x0": 0, "x1": _SWATCH, "y0": at - 0.2, "y1": at - 0.2}
    return axes | ends | {"line": {"color": cell.colour, "width": 2, "dash": cell.dash}}


def _row_text(at: int, cell: Drawn) -> dict[str, Any]:
    text = f"<b>{for_plotly(cell.name)}</b>  {for_plotly(cell.peak)}"
    left = {"xref": "x2", "x": 0, "xanchor": "left", "xshift": _SWATCH + 6}
    return {"text": text} | left | {"yref": "y2", "y": at - 0.2, "yanchor": "middle"} | _TEXT
