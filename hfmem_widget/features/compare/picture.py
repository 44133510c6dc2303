"""The picture of a comparison, as SVG and Plotly's JSON: lines by step or time, and a bar for each cell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hfmem_widget.analysis.curve import Points
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.features.compare.model import AlignedLine, Comparison
from hfmem_widget.features.compare.text import name_of, part_label
from hfmem_widget.session import Peak
from hfmem_widget.text import MIB, for_plotly, unit_for
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart import paint_svg as paint
from hfmem_widget.view.chart.axis import Ticks, round_up, time_ticks, value_ticks
from hfmem_widget.view.chart.figure import CONFIG, legend_height
from hfmem_widget.view.chart.paint_plotly import BASE, CLEAR, Trace, axes, curve_traces, short
from hfmem_widget.view.chart.shapes import Curve, Frame, Stroke
from hfmem_widget.view.line import peak_text

ALL_ALLOCATED = "#7D8794"
"""The colour of a bar without parts."""

NAME_LENGTH = 24  # characters that fit beside a peak on a page of 360 pixels

_ROOM_ABOVE = 1.06

# Pixels: of the SVG's lines and bars; and of the figure's margins, lines, rows and swatches.
_HEIGHT, _BAR_HEIGHT = 170, 12
_LEFT, _RIGHT, _TOP = 56, 20, 22
_LINES, _TIMES = 220, 34
_ROW, _BAR = 36, 0.36
_SWATCH = 22


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One cell: name and peak as plain text, the stroke of its line, and the parts of its bar.

    The parts are pairs of name and bytes, from left to right; one part without a name where they are unknown.
    """

    name: str
    peak: str
    stroke: Stroke
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonScene:
    """What is drawn of a comparison."""

    cells: tuple[Drawn, ...]
    curves: tuple[Curve, ...]  # the ranges of the cells' runs, and over them their lines
    frame: Frame  # of the lines; its unit is that of the bars too
    longest: float  # the upper end of the bars' axis, in bytes
    what: str  # a title of the lines, such as "allocated, highest of each step"

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts of all bars, in order."""
        there = {name for cell in self.cells for name, _ in cell.parts}
        return tuple(name for name in OF_ALLOCATED if name in there)


def build_scene(comparison: Comparison) -> ComparisonScene:
    """Return the scene of a comparison."""
    cells = tuple(
        Drawn(
            name_of(cell, NAME_LENGTH),
            peak_text(Peak(cell.figures["peak"].middle, cell.certainty)),
            _stroke(at),
            _parts(cell.at_peak, cell.figures["peak"].middle),
        )
        for at, cell in enumerate(comparison.cells)
    )
    lines = [cell.line for cell in comparison.cells if cell.line is not None]
    heights = [float(np.nanmax(line.high)) for line in lines if not np.isnan(line.high).all()]
    highest = max(heights, default=0.0) or MIB
    longest = max((sum(size for _, size in cell.parts) for cell in cells), default=1.0) or 1.0
    by_step = comparison.by == "step"
    start = min((float(line.at[0]) for line in lines), default=0.0) if by_step else 0.0
    stop = max((float(line.at[-1]) for line in lines), default=1.0)
    top = _ROOM_ABOVE * highest
    divisor, unit = unit_for(max(top, longest))
    ticks = step_ticks(start, stop) if by_step else time_ticks(max(stop, 1e-3))
    levels = value_ticks(highest / divisor, unit)
    frame = Frame(start, max(stop, start + 1e-3), top, (divisor, unit), ticks, levels)
    pairs = zip(cells, comparison.cells, strict=True)
    drawn = [(cell, compared.line) for cell, compared in pairs if compared.line is not None]
    curves = (
        *(_band(cell, line) for cell, line in drawn if (line.high > line.low).any()),
        *(
            Curve(_points(line.at, line.middle), cell.stroke, name=cell.name, tip=cell.name)
            for cell, line in drawn
        ),
    )
    return ComparisonScene(cells, curves, frame, longest, _what(comparison))


def _stroke(at: int) -> Stroke:
    colour, dash = palette.DEVICES[at % len(palette.DEVICES)]
    return Stroke(colour, 1.6, dash)


def _band(cell: Drawn, line: AlignedLine) -> Curve:
    edge = [*_points(line.at, line.high), *reversed(_points(line.at, line.low))]
    return Curve(edge, fill=cell.stroke.colour, opacity=0.2, is_closed=True, is_key=False)


def _points(at: np.ndarray, values: np.ndarray) -> Points:
    return list(zip(at.tolist(), values.tolist(), strict=True))


def step_ticks(first: float, last: float) -> Ticks:
    """Return about six ticks at round numbers of steps; the first has the word "step"."""
    width = int(round_up(max(1.0, (last - first) / 6), (1, 2, 5)))
    numbers = [step for step in range(0, math.floor(last) + 1, width) if step >= first]
    if not numbers or numbers[0] > first + width / 2:
        numbers.insert(0, math.ceil(first))
    texts = [f"{step:,}" for step in numbers]
    texts[0] = f"step {texts[0]}"
    return Ticks(tuple(map(float, numbers)), tuple(texts))


def _parts(sizes: Mapping[str, float], peak: float) -> tuple[tuple[str, float], ...]:
    parts = tuple((name, sizes[name]) for name in OF_ALLOCATED if sizes.get(name, 0.0) > 0)
    return parts or ((("", peak),) if peak > 0 else ())


def _what(comparison: Comparison) -> str:
    spread = ", median and range" if any(cell.runs > 1 for cell in comparison.cells) else ""
    if comparison.by == "time":
        return f"{comparison.allocated_label} since the start of the cell{spread}"
    point = "step" if comparison.steps_a_point == 1 else f"{comparison.steps_a_point} steps"
    return f"{comparison.allocated_label}, highest of each {point}{spread}"


def svg(scene: ComparisonScene) -> str:
    """Return the lines with axes, and below them a bar for each cell, for front ends without Plotly."""
    rows = "".join(_row(cell, scene) for cell in scene.cells)
    parts = (kit.marked(palette.PARTS[name], part_label(name)) for name in scene.part_names)
    lines = _lines(scene) if scene.curves else ""
    return f"{kit.CHART}{lines}{rows}{kit.keys(parts, ';margin:6px 4px 0').html}</div>"


def _lines(scene: ComparisonScene) -> str:
    names = ", ".join(curve.name for curve in scene.curves if curve.name)
    # The lines have no tips: their swatches have the names.
    inside = paint.axes(scene.frame, _HEIGHT)
    inside += paint.stretched(_HEIGHT, paint.curves_svg(scene.curves, scene.frame, _HEIGHT))
    return (
        f"{kit.block('opacity:.8;margin:2px 4px 4px', scene.what).html}"
        f'<div style="padding:2px 20px 0 {paint.GUTTER}px">'
        f"{paint.picture(f'{scene.what}: {names}', _HEIGHT + paint.FOOT, inside)}</div>"
    )


def _row(cell: Drawn, scene: ComparisonScene) -> str:
    pieces = (
        (palette.PARTS.get(name, ALL_ALLOCATED), size, part_label(name) if name else "allocated")
        for name, size in cell.parts
    )
    bar = kit.bar(pieces, scene.longest, "", height=_BAR_HEIGHT)
    words = kit.words(
        kit.Fragment(paint.swatch(cell.stroke, 22)), kit.strong(cell.name), kit.faint(cell.peak)
    )
    return f'<div style="margin:5px 4px 0;overflow-wrap:anywhere">{words.html}{bar}</div>'


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
    lines, between, top, left = (_LINES, _TIMES, _TOP, _LEFT) if scene.curves else (0, 0, 4, 12)
    bottom = 6 + legend_height(len(scene.part_names), columns=2)
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
    return (
        axes | ends | {"line": {"color": cell.stroke.colour, "width": 2, "dash": cell.stroke.dash}}
    )


def _row_text(at: int, cell: Drawn) -> dict[str, Any]:
    text = f"<b>{for_plotly(cell.name)}</b>  {for_plotly(cell.peak)}"
    left = {"xref": "x2", "x": 0, "xanchor": "left", "xshift": _SWATCH + 6}
    return {"text": text} | left | {"yref": "y2", "y": at - 0.2, "yanchor": "middle"} | _TEXT
