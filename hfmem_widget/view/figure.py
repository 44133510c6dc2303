"""The still chart as a Plotly figure: plain dicts for the notebook, a `Figure` for whoever asks for one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.labels import for_plotly, plain
from hfmem_widget.session import Anatomy, Session, Span
from hfmem_widget.units import format_duration, unit_for
from hfmem_widget.view import palette
from hfmem_widget.view.anatomy_bar import drawn_parts
from hfmem_widget.view.anatomy_table import moment_text
from hfmem_widget.view.axis import Ticks, time_ticks, value_ticks
from hfmem_widget.view.guide_traces import budget_words, guide_traces, level_word, mark_word
from hfmem_widget.view.layers import layers_of
from hfmem_widget.view.scene import Scene, build_scene
from hfmem_widget.view.sparkline import chart_html
from hfmem_widget.view.traces import AXIS, CLEAR, short, traces

if TYPE_CHECKING:
    import plotly.graph_objects as go

PLOTLY_MIME = "application/vnd.plotly.v1+json"

HEIGHT = 300
MARGIN = {"l": 56, "r": 20, "t": 4, "b": 46}
LEGEND_ROW = 19
BAR_ROW = 34
LANE = 15
LANE_GAP = 8

POINTS = 3000
"""For all lines together: about 11 bytes each."""

LAYER_COSTS = 1.5
"""A layer's points have three figures, a line's two."""

_FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_CONFIG = {"displaylogo": False, "responsive": True}


def figure(session: Session, span: Span | None = None) -> go.Figure:
    """Return a chart of a whole session, or of one span of it, as a Plotly figure.

    Parameters
    ----------
    session : Session
    span : Span, optional
        Show only its time.
    """
    import plotly.graph_objects as go

    drawn = figure_dict(session, span)
    return go.Figure(data=drawn["data"], layout=drawn["layout"])


def anatomy_figure(anatomies: Sequence[Anatomy]) -> go.Figure:
    """Return a horizontal bar for each anatomy, its parts one after the other."""
    import plotly.graph_objects as go

    drawn = anatomy_dict(anatomies)
    return go.Figure(data=drawn["data"], layout=drawn["layout"])


def anatomy_dict(anatomies: Sequence[Anatomy]) -> dict[str, Any]:
    """Return the bars as Plotly's own JSON: ``data`` and ``layout``, of plain values."""
    names = drawn_parts(anatomies)
    labels = {part.name: part.label for one in anatomies for part in one.parts}
    divisor, unit = unit_for(max(one.allocated for one in anatomies))
    bars = [for_plotly(f"{one.device.key} {moment_text(one)}") for one in anatomies]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": for_plotly(labels[name]),
            "y": bars,
            "x": [short(max(0.0, one.bytes(name)) / divisor) for one in anatomies],
            "hovertemplate": f"%{{x:.4~g}} {unit}<extra>%{{fullData.name}}</extra>",
            "marker": {"color": palette.PARTS[name], "line": {"width": 0}},
        }
        for name in LABELS
        if name in labels and name in names
    ]
    plot, bottom = BAR_ROW * len(anatomies), MARGIN["b"] + LEGEND_ROW * math.ceil(len(data) / 4)
    layout = {
        "barmode": "stack",
        "height": MARGIN["t"] + plot + bottom,
        "margin": {"l": 10, "r": 20, "t": MARGIN["t"], "b": bottom},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": _FONT, "size": 11, "color": palette.INK},
        "xaxis": {"ticksuffix": f" {unit}", "gridcolor": palette.GRID, "zeroline": False},
        "yaxis": {"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "y": -24 / plot,
            "yanchor": "top",
            "bgcolor": CLEAR,
        },
    }
    return {"data": data, "layout": layout}


def chart_bundle(session: Session, span: Span | None = None) -> dict[str, Any] | None:
    """Return the still chart by MIME type; None where there are too few samples for one.

    The Plotly part stays below 60 kB. The HTML part is an SVG, for front ends without Plotly.
    """
    scene = build_scene(session, span, columns=_columns(session))
    if scene is None:
        return None
    label = (span.label or span.kind) if span else session.label
    said = f"over {format_duration(scene.duration)}" + (
        f", {scene.peak.text}" if scene.peak else ""
    )
    return {
        PLOTLY_MIME: _drawn(scene),
        "text/html": chart_html(session, span),
        "text/plain": f'memwatch "{plain(label)}" chart: {plain(scene.device.key)} {said}',
    }


def figure_dict(session: Session, span: Span | None = None) -> dict[str, Any]:
    """Return the chart as Plotly's own JSON: ``data``, ``layout`` and ``config``, of plain values."""
    scene = build_scene(session, span, columns=_columns(session))
    if scene is None:
        return {"data": [], "layout": _tooshort(), "config": dict(_CONFIG)}
    return _drawn(scene)


def _columns(session: Session) -> int:
    lines = len(session.devices) + 2 + LAYER_COSTS * layers_of(session)
    return max(72, min(360, int(POINTS / (2 * lines))))


def _drawn(scene: Scene) -> dict[str, Any]:
    data = [*traces(scene), *guide_traces(scene)]
    return {"data": data, "layout": _layout(scene), "config": dict(_CONFIG)}


def _layout(scene: Scene) -> dict[str, Any]:
    divisor, unit = scene.unit
    height = _height(scene)
    plot = height - MARGIN["t"] - _bottom(scene)
    lanes = max((bar.lane + 1 for bar in scene.bars), default=0)
    above = (lanes * LANE + LANE_GAP) / plot if lanes else 0.0
    layout: dict[str, Any] = {
        "height": height,
        "autosize": True,
        "margin": {**MARGIN, "b": _bottom(scene), "pad": 0},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": _FONT, "size": 11, "color": palette.INK},
        "hovermode": "closest",
        "dragmode": "zoom",
        "barmode": "overlay",
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -24 / plot,
            "yanchor": "top",
            "bgcolor": CLEAR,
            # Where there are many devices, two columns of it fit the narrowest notebook.
            "font": {"size": 10 if len(scene.devices) > 1 else 11},
        },
        "xaxis": {
            **_axis(time_ticks(scene.duration)),
            "range": [0, scene.duration],
            "showgrid": False,
            "anchor": "y",
        },
        "yaxis": {
            **_axis(value_ticks(scene.ceiling / divisor, unit)),
            "range": [0, short(scene.top / divisor)],
            "domain": [0, round(1 - above, 4)],
            "fixedrange": True,
        },
        "shapes": _capacity_line(scene),
        "annotations": [
            *_capacity_word(scene),
            *budget_words(scene),
            *_peak_label(scene),
            *mark_word(scene),
        ],
    }
    if lanes:
        layout["yaxis2"] = {
            "range": [lanes - 0.5, -0.5],
            "domain": [round(1 - lanes * LANE / plot, 4), 1],
            "fixedrange": True,
            "visible": False,
            "anchor": "x",
        }
    return layout


def _axis(ticks: Ticks) -> dict[str, Any]:
    return AXIS | {
        "tickvals": [round(value, 6) for value in ticks.values],
        "ticktext": list(ticks.texts),
    }


def _legend_rows(scene: Scene) -> int:
    """Return how many rows the legend takes where the notebook is of a usual width."""
    return math.ceil((len(scene.lines) + len(scene.layers)) / 5)


def _bottom(scene: Scene) -> int:
    return MARGIN["b"] + LEGEND_ROW * (_legend_rows(scene) - 1)


def _height(scene: Scene) -> int:
    return HEIGHT + LEGEND_ROW * (_legend_rows(scene) - 1)


def _capacity_line(scene: Scene) -> list[dict[str, Any]]:
    if scene.capacity is None:
        return []
    y = short(scene.capacity / scene.unit[0])
    stroke = {"color": palette.CAPACITY, "width": 1, "dash": "dot"}
    return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": stroke}]


def _capacity_word(scene: Scene) -> list[dict[str, Any]]:
    """Name the line at the end that the peak's label leaves free."""
    if scene.capacity is None or not scene.names_capacity:
        return []
    return [level_word("capacity", scene.capacity, scene)]


def _peak_label(scene: Scene) -> list[dict[str, Any]]:
    if scene.peak is None:
        return []
    divisor, _ = scene.unit
    return [
        {
            "text": f"<b>{for_plotly(scene.peak.text)}</b>",
            "x": round(scene.peak.time, 4),
            "y": short(scene.peak.peak.value / divisor),
            "axref": "x",
            "ayref": "y",
            "ax": round(scene.peak.time, 4),
            "ay": short(scene.peak.label_at / divisor),
            "xanchor": {"right": "left", "left": "right"}.get(scene.peak_side, "center"),
            "yanchor": "bottom",
            "showarrow": True,
            "arrowhead": 0,
            "arrowwidth": 1,
            "arrowcolor": palette.PEAK,
            "standoff": 4,
            "borderpad": 0,
        }
    ]


def _tooshort() -> dict[str, Any]:
    return {
        "height": 120,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "annotations": [
            {
                "text": "too short to chart",
                "xref": "paper",
                "yref": "paper",
                "x": 0.5,
                "y": 0.5,
                "showarrow": False,
                "font": {"color": palette.INK},
            }
        ],
    }
