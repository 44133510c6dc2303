"""A scene's budgets and trends, as Plotly draws them."""

from __future__ import annotations

from typing import Any

from hfmem_widget.labels import for_plotly
from hfmem_widget.units import format_duration
from hfmem_widget.view import palette
from hfmem_widget.view.curve import Points
from hfmem_widget.view.guides import DrawnGuide
from hfmem_widget.view.scene import Scene
from hfmem_widget.view.traces import BAR_FONT, CLEAR, Trace, packed, short

HOVER_POINTS = 17
"""Plotly's pointer finds the points of a line, not what lies between them."""

BAND = "rgba(213,94,0,.2)"
CASING = "rgba(255,255,255,.7)"
"""What keeps a trend apart from whatever colour it lies on."""


def guide_traces(scene: Scene) -> list[Trace]:
    """Return the lines over the data, and the marks where a budget was crossed."""
    return [trace for guide in scene.guides for trace in _traces(guide, scene)]


def budget_words(scene: Scene) -> list[dict[str, Any]]:
    """Name each budget at the end of its line that the peak's label leaves free."""
    return [
        level_word(one.label, one.level, scene)
        | ({"bgcolor": palette.PEAK, "borderpad": 1} if one.is_crossed else {})
        | ({"yanchor": "top"} if _is_below_capacity(one, scene) else {})
        | {"font": {"size": BAR_FONT, **({"color": palette.ON_PEAK} if one.is_crossed else {})}}
        for one in scene.budgets
    ]


def level_word(text: str, level: float, scene: Scene) -> dict[str, Any]:
    """Return a word on a level line."""
    side, x = ("left", 0) if scene.words_at_left else ("right", 1)
    return {
        "text": for_plotly(text),
        "xref": "paper",
        "x": x,
        "xanchor": side,
        "y": short(level / scene.unit[0]),
        "yanchor": "bottom",
        "showarrow": False,
        "borderpad": 0,
        "font": {"size": BAR_FONT},
    }


def _is_below_capacity(guide: DrawnGuide, scene: Scene) -> bool:
    """Whether the capacity's line would run through its word."""
    return scene.capacity is not None and not scene.names_capacity and guide.level < scene.capacity


def _traces(guide: DrawnGuide, scene: Scene) -> list[Trace]:
    _, unit = scene.unit
    name = for_plotly(guide.label)
    line = _line(_between(*guide.line), scene) | {
        "name": name,
        "hovertemplate": f"%{{y:.4~g}} {unit}<extra>%{{fullData.name}}</extra>",
    }
    if guide.kind == "budget":
        drawn = [line | {"line": {"color": palette.PEAK, "width": 1, "dash": "6px,4px"}}]
        if guide.crossed_at is not None:
            drawn.append(_crossing(guide, guide.crossed_at, scene))
        return drawn
    stroke = line | {"line": {"color": palette.PEAK, "width": 1.6}}
    silent = {"hoverinfo": "skip", "name": name}
    casing = _line(guide.line, scene) | silent | {"line": {"color": CASING, "width": 3.4}}
    outline = guide.outline()
    if not outline:
        return [casing, stroke]
    band = _line(outline, scene) | silent
    return [
        band | {"fill": "toself", "fillcolor": BAND, "line": {"color": CLEAR, "width": 0}},
        casing,
        stroke,
    ]


def _crossing(guide: DrawnGuide, time: float, scene: Scene) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": for_plotly(guide.label),
        "x": [round(time, 4)],
        "y": [short(guide.level / scene.unit[0])],
        "showlegend": False,
        "hovertemplate": f"crossed at {format_duration(time)}<extra>%{{fullData.name}}</extra>",
        "marker": {"color": palette.PEAK, "size": 8, "symbol": "triangle-up"},
    }


def _line(points: Points, scene: Scene) -> Trace:
    divisor, _ = scene.unit
    return {
        "type": "scatter",
        "mode": "lines",
        "x": packed(time for time, _ in points),
        "y": packed(value / divisor for _, value in points),
        "showlegend": False,
    }


def _between(start: tuple[float, float], stop: tuple[float, float]) -> Points:
    shares = [at / (HOVER_POINTS - 1) for at in range(HOVER_POINTS)]
    (x, y), (right, top) = start, stop
    return [(x + share * (right - x), y + share * (top - y)) for share in shares]
