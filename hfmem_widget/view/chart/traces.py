"""What a scene holds, as Plotly's traces."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np

from hfmem_widget.analysis.curve import Points, grounded
from hfmem_widget.text import for_plotly
from hfmem_widget.view import palette
from hfmem_widget.view.chart.bar import Bar
from hfmem_widget.view.chart.layers import Layer
from hfmem_widget.view.chart.scene import Line, PeakMark, Scene

Trace = dict[str, Any]

CLEAR = "rgba(0,0,0,0)"
BAR_FONT = 10
BAR_HEIGHT = 0.84
"""Of a lane's."""

AXIS: Trace = {
    "type": "linear",
    "tickmode": "array",
    "tickangle": 0,
    "ticks": "outside",
    "ticklen": 4,
    "tickcolor": CLEAR,
    "zeroline": False,
    "showline": False,
    "gridcolor": palette.GRID,
}
"""How every axis looks; where its ticks are is for the chart to say."""

_NARROW = 320
"""Pixels; whether a label fits its bar is judged for a plot this narrow, since nobody asks again."""

LAST = 2000
"""In the legend: behind the lines, which have Plotly's own 1000."""

_LETTER = 5.7
_LEAST_LETTERS = 8

SEAM = "rgba(0,0,0,.3)"
"""Between parts, which in grey print are alike."""

_OPACITY = {"haze": 0.22, "area": 0.28}


def traces(scene: Scene) -> list[Trace]:
    """Return everything that is drawn between the axes, in order of drawing."""
    styles = dict(zip(scene.devices, _cycle(len(scene.devices)), strict=True))
    drawn = [trace for line in scene.lines for trace in _line(line, scene, styles[line.device])]
    if scene.gaps:
        drawn.append(_gaps(scene))
    if scene.peak is not None:
        drawn.append(_peak(scene.peak, scene))
    return drawn + _lanes(scene)


def packed(values: Iterable[float]) -> dict[str, str]:
    """Return numbers as Plotly's base64 of ``float32``.

    Seven digits in five bytes each; a list costs three times that, since notebooks are saved
    with every number on a line of its own.
    """
    data = np.fromiter(values, dtype="<f4").tobytes()
    return {"dtype": "f4", "bdata": base64.b64encode(data).decode()}


def short(value: float) -> float:
    """Return a number to the five digits that a screen can show."""
    return float(f"{value:.5g}")


def instant(time: float, scene: Scene) -> float:
    """Return seconds in the unit of the time axis."""
    return round(time / scene.time_unit[0], 4)


def figures(scene: Scene) -> str:
    """Return Plotly's format for as many digits as the peak's label has."""
    return ".1f" if scene.top >= 100 * scene.unit[0] else ".2f"


def _cycle(count: int) -> list[tuple[str, str]]:
    known = palette.DEVICES
    return [known[index % len(known)] for index in range(count)]


def _line(line: Line, scene: Scene, style: tuple[str, str]) -> list[Trace]:
    trace = _points(line.points, scene) | {
        "name": for_plotly(scene.name(line)),
        # Not the name itself: a template would fill in what it finds in it.
        "hovertemplate": f"%{{y:{figures(scene)}}} {scene.unit[1]}<extra>%{{fullData.name}}</extra>",
    }
    if line.device != scene.device.key:
        return [trace | {"line": {"color": style[0], "width": 1.2, "dash": style[1]}}]
    color, drawn = line.row.color, line.row.drawn
    if drawn == "dashes":
        return [trace | {"line": {"color": color, "width": 1, "dash": "4px,3px"}}]
    fill = {"fill": "tozeroy", "fillcolor": _translucent(color, _OPACITY[drawn])}
    bare = {"line": {"color": CLEAR, "width": 0}}
    if drawn == "haze":
        return [trace | _points(_grounded(line), scene) | fill | bare]
    if scene.layers:
        # From the top down, each over the one above it: side by side, the page would shine through.
        stacked = [_layer(layer, scene) for layer in reversed(scene.layers)]
        return [*stacked, trace | {"line": {"color": palette.INK, "width": 1}}]
    stroke = {"line": {"color": color, "width": 1.3}}
    if len(line.runs) == 1:
        return [trace | fill | stroke]
    area = (
        _points(_grounded(line), scene) | fill | bare | {"hoverinfo": "skip", "showlegend": False}
    )
    return [area, trace | stroke]


def _layer(layer: Layer, scene: Scene) -> Trace:
    divisor, unit = scene.unit
    if len(layer.runs) == 1:
        (edge,), (heights,) = layer.runs, layer.heights
    else:
        edge = [point for run in layer.runs for point in grounded(run)]
        heights = [one for run in layer.heights for one in (run[0], *run, run[-1])]
    return _points(edge, scene) | {
        "name": layer.short_label,
        "customdata": packed(value / divisor for value in heights),
        "hovertemplate": f"%{{customdata:{figures(scene)}}} {unit}<extra>{layer.label}</extra>",
        "fill": "tozeroy",
        "fillcolor": palette.PARTS[layer.name],
        # Down the sides of a gap run the lines of all layers, over each other.
        "line": {"color": SEAM, "width": 1 if len(layer.runs) == 1 else 0.4},
        # In the legend from the bottom up, before the lines.
        "legendrank": 1 + scene.layers.index(layer),
    }


def _points(points: Points, scene: Scene) -> Trace:
    divisor, _ = scene.unit
    return {
        "type": "scatter",
        "mode": "lines",
        "x": packed(instant(time, scene) for time, _ in points),
        "y": packed(value / divisor for _, value in points),
    }


def _grounded(line: Line) -> Points:
    """Return the points with every run brought down to zero, since Plotly fills across breaks."""
    return [point for run in line.runs for point in grounded(run)]


def _gaps(scene: Scene) -> Trace:
    divisor, _ = scene.unit
    return {
        "type": "bar",
        "name": "not sampled",
        "x": [instant((start + stop) / 2, scene) for start, stop in scene.gaps],
        "width": [instant(stop - start, scene) for start, stop in scene.gaps],
        "y": [short(scene.top / divisor)] * len(scene.gaps),
        # Plotly's pointer finds a bar from far beyond its sides.
        "hoverinfo": "skip",
        "legendrank": LAST,
        "marker": {
            "color": CLEAR,
            "line": {"width": 0},
            "pattern": {
                "shape": "/",
                "size": 6,
                "solidity": 0.18,
                "fgcolor": palette.INK,
                "fgopacity": 0.45,
                "bgcolor": CLEAR,
            },
        },
    }


def _peak(mark: PeakMark, scene: Scene) -> Trace:
    divisor, _ = scene.unit
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "peak",
        "x": [instant(mark.time, scene)],
        "y": [short(mark.peak.value / divisor)],
        "cliponaxis": False,
        "showlegend": False,
        "hoverinfo": "skip",
        "marker": {"color": palette.PEAK, "size": 7, "line": {"width": 0}},
    }


def _lanes(scene: Scene) -> list[Trace]:
    """Return the bars and their labels, and the legend's entries for colours with a meaning.

    The bars stand side by side along the time axis: lying ones would be found by their ends, wherever
    in them the pointer is. They are one trace, of which it finds the narrowest below it.
    """
    if not scene.bars:
        return []
    least = scene.duration / 400
    lengths = [max(bar.stop - bar.start, least) for bar in scene.bars]
    # A sliver of the page between neighbours, where there is room for it.
    widths = [length - least * 0.6 * (length > 3 * least) for length in lengths]
    middles = [bar.start + width / 2 for bar, width in zip(scene.bars, widths, strict=True)]
    colours = [_colour(bar) for bar in scene.bars]
    boxes = {
        "type": "bar",
        "yaxis": "y2",
        "base": packed(bar.lane - BAR_HEIGHT / 2 for bar in scene.bars),
        "y": packed(BAR_HEIGHT for _ in scene.bars),
        "x": packed(instant(middle, scene) for middle in middles),
        "width": packed(instant(width, scene) for width in widths),
        "hovertext": ["<br>".join(for_plotly(told) for told in bar.told) for bar in scene.bars],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": False,
        "marker": {"color": colours, "line": {"width": 0}},
    }
    labels = {
        bar: text
        for bar, length in zip(scene.bars, lengths, strict=True)
        if (text := _fitting(bar, length / scene.duration))
    }
    words = {
        "type": "scatter",
        "mode": "text",
        "yaxis": "y2",
        "x": [instant(bar.start, scene) for bar in labels],
        "y": [bar.lane for bar in labels],
        "text": [f"\N{NO-BREAK SPACE}{text}" for text in labels.values()],
        "textposition": "middle right",
        "textfont": {
            "size": BAR_FONT,
            "color": [palette.ink_on(_colour(bar)) for bar in labels],
        },
        "hoverinfo": "skip",
        "showlegend": False,
    }
    names = {palette.bar_name(bar.kind, worst=bar.worst): _colour(bar) for bar in scene.bars}
    return [boxes, words, *(_key(name, colour) for name, colour in names.items() if name)]


def _key(name: str, colour: str) -> Trace:
    """Return an entry of the legend for bars, which the traces of lanes cannot have."""
    return {
        "type": "bar",
        "x": [None],
        "y": [None],
        "name": name,
        "legendrank": LAST - 1,
        "marker": {"color": colour, "line": {"width": 0}},
    }


def _colour(bar: Bar) -> str:
    return palette.bar(bar.kind, bar.lane, worst=bar.worst)


def _fitting(bar: Bar, share: float) -> str:
    """Return the label, shortened to its bar, or nothing where too little of it would fit."""
    label = bar.label
    letters = int((share * _NARROW - 8) / _LETTER)
    if letters >= len(label):
        return for_plotly(label)
    # "steps…" would stand in all of them.
    fits = letters >= _LEAST_LETTERS and bar.kind != "step"
    return for_plotly(label[: letters - 1] + "…") if fits else ""


def _translucent(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
