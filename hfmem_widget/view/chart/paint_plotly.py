"""Paints curves and axes as Plotly's JSON: plain values, drawn without a kernel."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hfmem_widget.analysis.curve import Points
from hfmem_widget.text import for_plotly
from hfmem_widget.view import palette
from hfmem_widget.view.chart.axis import Ticks
from hfmem_widget.view.chart.shapes import Curve, Frame, Stroke, Word

Trace = dict[str, Any]

CLEAR = "rgba(0,0,0,0)"
HOVER_POINTS = 17
"""Plotly's pointer finds the points of a line, not what lies between them."""

WORD, _OFF = 10, 7
"""Pixels: the size of a word, and from the middle of a mark to its word."""

FONT = {
    "family": "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif",
    "size": 11,
    "color": palette.INK,
}
BASE: Trace = {
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
    "font": FONT,
    "dragmode": "zoom",
}
"""What every layout has."""

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


def figures(frame: Frame) -> str:
    """Return Plotly's format for as many digits as the labels of a frame have."""
    return ".1f" if frame.top >= 100 * frame.unit[0] else ".2f"


def curve_traces(curve: Curve, frame: Frame, digits: str = "") -> list[Trace]:
    """Return a curve as one trace, or an area with breaks and its line as two."""
    digits = digits or figures(frame)
    is_broken = len(curve.runs) > 1
    line = {"line": _line(curve.stroke)}
    told = _told(curve, frame, digits)
    if not curve.fill:
        points = curve.points
        if not curve.is_key and curve.tip:
            points = _between(*points)
        return [_points(points, frame, len(curve.points)) | told | line]
    fill = {
        "fill": "toself" if curve.is_closed else "tozeroy",
        "fillcolor": _translucent(curve.fill, curve.opacity),
    }
    if curve.stroke is None or curve.is_layer or not is_broken:
        # Plotly fills across breaks.
        whole = curve.outline if is_broken or curve.stroke is None else curve.points
        return [_points(whole, frame) | told | fill | line]
    silent = {"hoverinfo": "skip", "showlegend": False}
    area = _points(curve.outline, frame) | silent | fill | {"line": _line(None)}
    return [area, _points(curve.points, frame) | told | line]


def _points(points: Points, frame: Frame, count: int = 2) -> Trace:
    divisor, (across, _) = frame.unit[0], frame.across
    return {
        "type": "scatter",
        "mode": "lines" if count > 1 else "markers",
        "x": packed(round(at / across, 4) for at, _ in points),
        "y": packed(value / divisor for _, value in points),
    }


def _told(curve: Curve, frame: Frame, digits: str) -> Trace:
    divisor, unit = frame.unit
    told: Trace = {"name": for_plotly(curve.name)} if curve.name else {}
    if not curve.is_key:
        told["showlegend"] = False
    if not curve.tip:
        return told | {"hoverinfo": "skip"}
    if not curve.heights:
        # Not the name itself: a template would fill in what it finds in it.
        return told | {"hovertemplate": f"%{{y:{digits}}} {unit}<extra>%{{fullData.name}}</extra>"}
    heights = list(curve.heights)
    if len(curve.runs) > 1:
        ends, heights = list(curve.heights), []
        for run in curve.runs:
            here, ends = ends[: len(run)], ends[len(run) :]
            heights += [here[0], *here, here[-1]]
    return told | {
        "customdata": packed(value / divisor for value in heights),
        "hovertemplate": f"%{{customdata:{digits}}} {unit}<extra>{for_plotly(curve.tip)}</extra>",
        "legendrank": curve.rank,
    }


def _line(stroke: Stroke | None) -> Trace:
    if stroke is None:
        return {"color": CLEAR, "width": 0}
    told: Trace = {"color": stroke.colour, "width": stroke.width}
    return told | ({"dash": dash(stroke)} if stroke.dash else {})


def dash(stroke: Stroke) -> str:
    """Return a dash as Plotly writes it."""
    known = stroke.dash in palette.STROKES
    return stroke.dash if known else ",".join(f"{one}px" for one in stroke.dash.split())


def _between(start: tuple[float, float], stop: tuple[float, float]) -> Points:
    shares = [at / (HOVER_POINTS - 1) for at in range(HOVER_POINTS)]
    (x, y), (right, top) = start, stop
    return [(x + share * (right - x), y + share * (top - y)) for share in shares]


def _translucent(colour: str, opacity: float) -> str:
    if opacity == 1:
        return colour
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def word_annotation(word: Word, frame: Frame) -> Trace:
    """Return a word, and what leads from it to its point."""
    divisor, (across, _) = frame.unit[0], frame.across
    x, y = round((word.at or 0.0) / across, 4), short(word.level / divisor)
    told: Trace = {
        "text": for_plotly(word.text),
        "x": x,
        "y": y,
        "xanchor": {"right": "left", "left": "right"}.get(word.side, "center"),
        "yanchor": "bottom" if word.is_above else "top",
        "showarrow": False,
        "borderpad": 0,
    }
    if not math.isnan(word.points_at):
        arrow = {"arrowhead": 0, "arrowwidth": 1, "arrowcolor": palette.PEAK, "standoff": 4}
        ends = {"axref": "x", "ayref": "y", "ax": x, "ay": y, "showarrow": True}
        point = {"text": f"<b>{told['text']}</b>", "y": short(word.points_at / divisor)}
        return told | arrow | ends | point
    if word.at is None:
        told |= {"xref": "paper", "x": int(word.side == "left")}
    if word.is_off:
        told["yshift"] = _OFF if word.is_above else -_OFF
    ink = {"color": palette.ON_PEAK} if word.is_boxed else {}
    box = {"bgcolor": palette.PEAK, "borderpad": 1} if word.is_boxed else {}
    return told | box | {"font": {"size": WORD, **ink}}


def axes(frame: Frame, foot: float = 0, top: float = 1) -> Trace:
    """Return both axes, the vertical one between two shares of the height."""
    divisor, (across, _) = frame.unit[0], frame.across
    return {
        "xaxis": AXIS
        | _ticks(frame.ticks, across)
        | {"range": [round(frame.start / across, 4), round(frame.stop / across, 4)]}
        | {"showgrid": False, "anchor": "y"},
        "yaxis": AXIS
        | _ticks(frame.levels)
        | {"range": [0, short(frame.top / divisor)]}
        | {"domain": [foot, top], "fixedrange": True},
    }


def _ticks(ticks: Ticks, divisor: float = 1.0) -> Trace:
    return {
        "tickvals": [round(value / divisor, 6) for value in ticks.values],
        "ticktext": list(ticks.texts),
    }
