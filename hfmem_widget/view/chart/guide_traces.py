"""A scene's guides, as Plotly draws them."""

from __future__ import annotations

from typing import Any

from hfmem_widget.text import for_plotly, format_bytes, format_duration
from hfmem_widget.view import palette
from hfmem_widget.view.chart.curves import CASING, guide_curves
from hfmem_widget.view.chart.guides import DrawnGuide
from hfmem_widget.view.chart.paint_plotly import Trace, curve_traces, short
from hfmem_widget.view.chart.scene import Scene
from hfmem_widget.view.chart.traces import BAR_FONT, instant

OFF_MARK = 7
"""Pixels from the middle of a mark to its word."""


def guide_traces(scene: Scene) -> list[Trace]:
    """Return the lines over the data, and the marks where a budget was crossed or memory ran out."""
    lines = [one for one in scene.guides if one.kind != "oom"]
    drawn = [trace for guide in lines for trace in _traces(guide, scene)]
    return [*drawn, *([_marks(scene)] if scene.marks else [])]


def budget_words(scene: Scene) -> list[dict[str, Any]]:
    """Name each budget at the end of its line that the peak's label leaves free."""
    return [
        level_word(one.label, one.level, scene)
        | ({"bgcolor": palette.PEAK, "borderpad": 1} if one.is_crossed else {})
        | ({"yanchor": "top"} if _is_below_capacity(one, scene) else {})
        | {"font": {"size": BAR_FONT, **({"color": palette.ON_PEAK} if one.is_crossed else {})}}
        for one in scene.budgets
    ]


def mark_word(scene: Scene) -> list[dict[str, Any]]:
    """Say at the newest mark what it is."""
    word = scene.mark_word
    if word is None:
        return []
    return [
        {
            "text": for_plotly(word.mark.label),
            "x": instant(word.mark.time, scene),
            "y": short(word.level / scene.unit[0]),
            "xanchor": {"right": "left", "left": "right"}.get(word.side, "center"),
            "yanchor": "bottom" if word.is_above else "top",
            "yshift": OFF_MARK if word.is_above else -OFF_MARK,
            "showarrow": False,
            "bgcolor": palette.PEAK,
            "borderpad": 1,
            "font": {"size": BAR_FONT, "color": palette.ON_PEAK},
        }
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
    frame = scene.frame
    drawn = [trace for curve in guide_curves(guide) for trace in curve_traces(curve, frame)]
    if guide.crossed_at is not None:
        drawn.append(_crossing(guide, guide.crossed_at, scene))
    return drawn


def _marks(scene: Scene) -> Trace:
    divisor, _ = scene.unit
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "out of memory",
        "x": [instant(one.time, scene) for one in scene.marks],
        "y": [short(one.level / divisor) for one in scene.marks],
        "cliponaxis": False,
        "showlegend": False,
        "hovertext": [for_plotly(_told(one)) for one in scene.marks],
        "hoverinfo": "text",
        "marker": {
            "color": palette.PEAK,
            "size": 10,
            "symbol": "x",
            "line": {"color": CASING, "width": 1},
        },
    }


def _told(mark: DrawnGuide) -> str:
    return (
        f"{mark.label}, with {format_bytes(mark.level)} allocated, at {format_duration(mark.time)}"
    )


def _crossing(guide: DrawnGuide, time: float, scene: Scene) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": for_plotly(guide.label),
        "x": [instant(time, scene)],
        "y": [short(guide.level / scene.unit[0])],
        "showlegend": False,
        "hovertemplate": f"crossed at {format_duration(time)}<extra>%{{fullData.name}}</extra>",
        "marker": {"color": palette.PEAK, "size": 8, "symbol": "triangle-up"},
    }
