"""Paints shapes and axes as Plotly's JSON: plain values, drawn without a kernel."""

import base64
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from hfmem_widget.analysis.curve import Gap, Points
from hfmem_widget.text import for_plotly
from hfmem_widget.view import palette
from hfmem_widget.view.chart.shapes import (
    Bar,
    Curve,
    Frame,
    PointMark,
    Stroke,
    Ticks,
    Word,
    value_ticks,
)

Trace = dict[str, Any]

CLEAR = "rgba(0,0,0,0)"
BAR_HEIGHT = 0.84  # of a lane's
LAST = 2000  # in the legend: behind the lines, which have Plotly's own 1000
HOVER_POINTS = 17  # Plotly's pointer finds the points of a line, not what lies between them
WORD, _OFF = 10, 7  # pixels: the size of a word, and from the middle of a mark to its word

FONT = {
    "family": "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif",
    "size": 11,
    "color": palette.INK,
}
BASE: Trace = {"paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR, "font": FONT, "dragmode": "zoom"}
"""The keys of every layout."""

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
"""The look of every axis; the chart sets its ticks."""

_NARROW = 320  # pixels of a narrow plot, for which it is decided once whether a label fits its bar
_LETTER = 5.7  # pixels
_LEAST_LETTERS = 8

_SIGNS: dict[str, Trace] = {
    "dot": {"size": 7, "line": {"width": 0}},
    "triangle": {"size": 8, "symbol": "triangle-up"},
    "cross": {"size": 10, "symbol": "x", "line": {"color": palette.CASING, "width": 1}},
}


def packed(values: Iterable[float]) -> dict[str, str]:
    """Return numbers as Plotly's base64 of ``float32``, a third of a list in a saved notebook."""
    data = np.fromiter(values, dtype="<f4").tobytes()
    return {"dtype": "f4", "bdata": base64.b64encode(data).decode()}


def unpacked(value: Any) -> Any:
    """Return an array of `packed` as NumPy's, any other value unchanged; Plotly 5 reads no base64."""
    is_packed = isinstance(value, dict) and "bdata" in value
    return np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"]) if is_packed else value


def short(value: float) -> float:
    """Return a number rounded to five digits, which are all that a screen can show."""
    return float(f"{value:.5g}")


def _across(at: float, frame: Frame) -> float:
    return round(at / frame.across[0], 4)


def _up(value: float, frame: Frame) -> float:
    return short(value / frame.unit[0])


def curve_traces(curve: Curve, frame: Frame) -> list[Trace]:
    """Return a curve as one trace, or an area with breaks and its line as two."""
    is_broken = len(curve.runs) > 1
    line = {"line": _line(curve.stroke)} | ({"visible": "legendonly"} if curve.is_aside else {})
    hover = _hover(curve, frame)
    if not curve.fill:
        points = curve.points
        if not curve.is_key and curve.tip and len(points) == 2:
            (x, y), (right, top) = points
            shares = np.linspace(0, 1, HOVER_POINTS)
            points = [(x + share * (right - x), y + share * (top - y)) for share in shares]
        return [_points(points, frame, is_line=len(curve.points) > 1) | hover | line]
    fill = {
        "fill": "toself" if curve.is_closed else "tozeroy",
        "fillcolor": _translucent(curve.fill, curve.opacity),
    }
    if curve.stroke is None or curve.is_layer or not is_broken:
        # Plotly fills across breaks.
        whole = curve.outline if is_broken or curve.stroke is None else curve.points
        return [_points(whole, frame) | hover | fill | line]
    silent = {"hoverinfo": "skip", "showlegend": False}
    area = _points(curve.outline, frame) | silent | fill | {"line": _line(None)}
    return [area, _points(curve.points, frame) | hover | line]


def _points(points: Points, frame: Frame, *, is_line: bool = True) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines" if is_line else "markers",
        "x": packed(_across(at, frame) for at, _ in points),
        "y": packed(value / frame.unit[0] for _, value in points),
    }


def _hover(curve: Curve, frame: Frame) -> Trace:
    divisor, unit = frame.unit
    digits = ".1f" if frame.top >= 100 * divisor else ".2f"  # as the labels of the axis
    hover: Trace = {"name": for_plotly(curve.name)} if curve.name else {}
    if not curve.is_key:
        hover["showlegend"] = False
    if not curve.tip:
        return hover | {"hoverinfo": "skip"}
    if not curve.heights:
        # Not the name itself, in which a template would replace variables.
        place = {"legendrank": curve.rank} if curve.rank else {}
        template = f"%{{y:{digits}}} {unit}<extra>%{{fullData.name}}</extra>"
        return hover | {"hovertemplate": template, **place}
    heights = list(curve.heights)
    if len(curve.runs) > 1:
        ends, heights = list(curve.heights), []
        for run in curve.runs:
            here, ends = ends[: len(run)], ends[len(run) :]
            heights += [here[0], *here, here[-1]]
    return hover | {
        "customdata": packed(value / divisor for value in heights),
        "hovertemplate": f"%{{customdata:{digits}}} {unit}<extra>{for_plotly(curve.tip)}</extra>",
        "legendrank": curve.rank,
    }


def _line(stroke: Stroke | None) -> Trace:
    if stroke is None:
        return {"color": CLEAR, "width": 0}
    line: Trace = {"color": stroke.colour, "width": stroke.width}
    if not stroke.dash:
        return line
    pixels = ",".join(f"{length}px" for length in stroke.dash.split())
    return line | {"dash": stroke.dash if stroke.dash in palette.STROKES else pixels}


def _translucent(colour: str, opacity: float) -> str:
    if opacity == 1:
        return colour
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def mark_traces(marks: Iterable[PointMark], frame: Frame) -> list[Trace]:
    """Return a trace for each kind of marks."""
    drawn = []
    for sign, group in groupby(marks, key=lambda mark: mark.sign):
        of_sign = list(group)
        tips = [for_plotly(mark.tip) for mark in of_sign]
        hover = {"hovertext": tips, "hoverinfo": "text"} if any(tips) else {"hoverinfo": "skip"}
        drawn.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": of_sign[0].name,
                "x": [_across(mark.at, frame) for mark in of_sign],
                "y": [_up(mark.level, frame) for mark in of_sign],
                "cliponaxis": False,
                "showlegend": False,
                **hover,
                "marker": {"color": palette.PEAK, **_SIGNS[sign]},
            }
        )
    return drawn


def gap_trace(gaps: Sequence[Gap], frame: Frame) -> Trace:
    """Return the hatching of the stretches without samples."""
    ink = {"fgcolor": palette.INK, "fgopacity": 0.45, "bgcolor": CLEAR}
    hatching = {"shape": "/", "size": 6, "solidity": 0.18, **ink}
    return {
        "type": "bar",
        "name": "not sampled",
        "x": [_across((start + stop) / 2, frame) for start, stop in gaps],
        "width": [_across(stop - start, frame) for start, stop in gaps],
        "y": [_up(frame.top, frame)] * len(gaps),
        # Hovering finds a bar from far beyond its sides.
        "hoverinfo": "skip",
        "legendrank": LAST,
        "marker": {"color": CLEAR, "line": {"width": 0}, "pattern": hatching},
    }


def bar_traces(bars: Sequence[Bar], frame: Frame) -> list[Trace]:
    """Return the lanes' bars and their labels, and the legend's entries for colours with a meaning.

    The bars are vertical ones along the time axis, since hovering finds horizontal ones by their ends alone.
    They are one trace, of which it finds the narrowest bar at the pointer.
    """
    if not bars:
        return []
    duration = frame.stop - frame.start
    least = duration / 400
    lengths = [max(bar.stop - bar.start, least) for bar in bars]
    # A sliver of the page between neighbours, where there is room for it.
    widths = [length - least * 0.6 * (length > 3 * least) for length in lengths]
    boxes = {
        "type": "bar",
        "yaxis": "y2",
        "base": packed(bar.lane - BAR_HEIGHT / 2 for bar in bars),
        "y": packed(BAR_HEIGHT for _ in bars),
        "x": packed(
            _across(bar.start + width / 2, frame) for bar, width in zip(bars, widths, strict=True)
        ),
        "width": packed(_across(width, frame) for width in widths),
        "hovertext": ["<br>".join(map(for_plotly, bar.lines)) for bar in bars],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": False,
        "marker": {"color": [bar.colour for bar in bars], "line": {"width": 0}},
    }
    labels = {
        bar: text
        for bar, length in zip(bars, lengths, strict=True)
        if (text := _fitting(bar, length / duration))
    }
    words = {
        "type": "scatter",
        "mode": "text",
        "yaxis": "y2",
        "x": [_across(bar.start, frame) for bar in labels],
        "y": [bar.lane for bar in labels],
        "text": [f"\N{NO-BREAK SPACE}{text}" for text in labels.values()],
        "textposition": "middle right",
        "textfont": {"size": WORD, "color": [palette.ink_on(bar.colour) for bar in labels]},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    # The legend's entries need traces of their own, without a bar.
    names = {palette.bar_name(bar.kind, worst=bar.worst): bar.colour for bar in bars}
    nowhere = {"type": "bar", "x": [None], "y": [None]}
    entries = (
        {"name": name, "legendrank": LAST - 1, "marker": {"color": colour, "line": {"width": 0}}}
        for name, colour in names.items()
        if name
    )
    return [boxes, words, *(nowhere | entry for entry in entries)]


def _fitting(bar: Bar, share: float) -> str:
    """Return the label, shortened to fit its bar; empty where too little of it would fit."""
    label = bar.label
    letters = int((share * _NARROW - 8) / _LETTER)
    if letters >= len(label):
        return for_plotly(label)
    # All bars of steps would read "steps…".
    fits = letters >= _LEAST_LETTERS and bar.kind != "step"
    return for_plotly(label[: letters - 1] + "…") if fits else ""


def word_annotation(word: Word, frame: Frame) -> Trace:
    """Return a word, and the line from it to its point."""
    x, y = _across(word.at or 0.0, frame), _up(word.level, frame)
    annotation: Trace = {
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
        point = {"text": f"<b>{annotation['text']}</b>", "y": _up(word.points_at, frame)}
        return annotation | arrow | ends | point
    if word.at is None:
        annotation |= {"xref": "paper", "x": int(word.side == "left")}
    if word.is_off:
        annotation["yshift"] = _OFF if word.is_above else -_OFF
    ink = {"color": palette.ON_PEAK} if word.is_boxed else {}
    box = {"bgcolor": palette.PEAK, "borderpad": 1} if word.is_boxed else {}
    return annotation | box | {"font": {"size": WORD, **ink}}


def axes(frame: Frame, top: float) -> Trace:
    """Return both axes; the vertical one ends at the share `top` of the height."""
    return {
        "xaxis": AXIS
        | _ticks(frame.ticks, frame.across[0])
        | {"range": [_across(frame.start, frame), _across(frame.stop, frame)]}
        | {"showgrid": False, "anchor": "y"},
        "yaxis": AXIS
        | _ticks(frame.levels)
        | {"range": [0, _up(frame.top, frame)]}
        | {"domain": [0, top], "fixedrange": True},
    }


def extensible(axis: Trace, frame: Frame, highest: float) -> Trace:
    """Return the vertical axis up to its frame's top, or to `highest` bytes once a line there is shown."""
    divisor, unit = frame.unit
    above = _ticks(value_ticks(highest / divisor, unit))
    # Plotly leaves a twentieth of room above the frame's top, where a tick would be in sight.
    seen = 1.06 * frame.top / divisor
    places = [at for at, value in enumerate(above["tickvals"]) if value > seen]
    more = {name: axis[name] + [labels[at] for at in places] for name, labels in above.items()}
    fits = {"rangemode": "tozero", "autorangeoptions": {"include": axis["range"][1]}}
    return axis | more | fits | {"autorange": True}


def _ticks(ticks: Ticks, divisor: float = 1.0) -> Trace:
    values = [round(value / divisor, 6) for value in ticks.values]
    return {"tickvals": values, "ticktext": list(ticks.texts)}
