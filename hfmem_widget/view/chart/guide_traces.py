"""A scene's guides, as Plotly draws them."""

from __future__ import annotations

from hfmem_widget.text import for_plotly, format_bytes, format_duration
from hfmem_widget.view import palette
from hfmem_widget.view.chart.curves import CASING, guide_curves
from hfmem_widget.view.chart.guides import DrawnGuide
from hfmem_widget.view.chart.paint_plotly import Trace, curve_traces, short
from hfmem_widget.view.chart.scene import Scene
from hfmem_widget.view.chart.traces import instant


def guide_traces(scene: Scene) -> list[Trace]:
    """Return the lines over the data, and the marks where a budget was crossed or memory ran out."""
    lines = [one for one in scene.guides if one.kind != "oom"]
    drawn = [trace for guide in lines for trace in _traces(guide, scene)]
    return [*drawn, *([_marks(scene)] if scene.marks else [])]


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
