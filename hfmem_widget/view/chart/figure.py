"""The still chart as a Plotly figure: plain dicts for the notebook, a `Figure` on request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.session import Anatomy, Session, Span
from hfmem_widget.session.series import HOST
from hfmem_widget.text import for_plotly, format_duration, plain, unit_for
from hfmem_widget.view import palette
from hfmem_widget.view.anatomy import drawn_parts, moment_text
from hfmem_widget.view.chart import paint_plotly as paint
from hfmem_widget.view.chart.layers import lines_of
from hfmem_widget.view.chart.scene import Scene, build_scene
from hfmem_widget.view.chart.svg import chart_html

if TYPE_CHECKING:
    import plotly.graph_objects as go

PLOTLY_MIME = "application/vnd.plotly.v1+json"
MARK = "hfmem"

# Heights, in pixels.
PLOT = 262  # lanes and plot together
LANE, LANE_GAP = 15, 8
BAR_ROW = 34  # of an anatomy
TICKS, LEGEND_ROW, LEGEND_PAD = 26, 19, 12
LEGEND_COLUMNS = 3  # at every width, so that the height below the chart is known

# Plotly's ``autoexpand`` draws the legend by the former margins on a change of size.
MARGIN = {"l": 56, "r": 14, "t": 4, "autoexpand": False}
# Plotly's ``responsive`` leaves the height to the page, and an output of JupyterLab has none of its own.
CONFIG = {"displayModeBar": False}
HOVER, ON_HOVER = "rgba(32,36,42,.94)", "#f2f4f6"  # Plotly's own box is as clear as the background

POINTS = 2900  # of all lines together, about 11 bytes each
LAYER_COSTS = 1.5  # lines: a layer's points have three figures, a line's two


def figure(session: Session, span: Span | None = None) -> go.Figure:
    """Return a chart of a whole session, or of one span of it, as a Plotly figure."""
    import plotly.graph_objects as go

    drawn = figure_dict(session, span)
    data = [{key: paint.unpacked(value) for key, value in trace.items()} for trace in drawn["data"]]
    return go.Figure(data=data, layout=drawn["layout"])


def anatomy_figure(anatomies: Sequence[Anatomy]) -> go.Figure:
    """Return a horizontal bar for each anatomy, its parts one after the other."""
    import plotly.graph_objects as go

    return go.Figure(**anatomy_dict(anatomies))


def anatomy_dict(anatomies: Sequence[Anatomy]) -> dict[str, Any]:
    """Return the bars as Plotly's own JSON: ``data`` and ``layout``, of plain values."""
    names = drawn_parts(anatomies)
    labels = {part.name: part.label for anatomy in anatomies for part in anatomy.parts}
    divisor, unit = unit_for(max(anatomy.allocated for anatomy in anatomies))
    bars = [for_plotly(f"{anatomy.device.key} {moment_text(anatomy)}") for anatomy in anatomies]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": for_plotly(labels[name]),
            "y": bars,
            "x": [paint.short(max(0.0, anatomy.bytes(name)) / divisor) for anatomy in anatomies],
            "hovertemplate": f"%{{x:.4~g}} {unit}<extra>%{{fullData.name}}</extra>",
            "marker": {"color": palette.PARTS[name], "line": {"width": 0}},
        }
        for name in LABELS
        if name in labels and name in names
    ]
    plot, bottom = BAR_ROW * len(anatomies), TICKS + legend_height(len(data))
    layout = {
        "barmode": "stack",
        "height": MARGIN["t"] + plot + bottom,
        "margin": {"l": 10, "r": 20, "t": MARGIN["t"], "b": bottom},
        **paint.BASE,
        "xaxis": {"ticksuffix": f" {unit}", "gridcolor": palette.GRID, "zeroline": False},
        "yaxis": {"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
        "legend": {**_legend(plot), "traceorder": "normal"},
    }
    return {"data": data, "layout": layout}


def chart_bundle(session: Session, span: Span | None = None) -> dict[str, Any] | None:
    """Return the still chart by MIME type, with less than 60 kB of Plotly; None with too few samples."""
    scene = build_scene(session, span, columns=figure_columns(session))
    if scene is None:
        return None
    label = (span.label or span.kind) if span else session.label
    peak = f", {scene.peak.text}" if scene.peak else ""
    lasted = format_duration(scene.duration + scene.paused)
    summary = f"{plain(scene.device.key)} over {lasted}{plain(peak)}"
    return {
        PLOTLY_MIME: for_notebook(_drawn(scene)),
        "text/html": chart_html(session, span),
        "text/plain": f'memwatch "{plain(label)}" chart: {summary}',
    }


def for_notebook(drawn: dict[str, Any]) -> dict[str, Any]:
    """Return the figure with its words in the page's own colour."""
    # Plotly resolves colours before it draws, but leaves the style of a span within a text to the page.
    # A page without these variables shows the words in the figure's own ink, which is inherited.
    ink = "var(--vscode-descriptionForeground,var(--jp-ui-font-color2))"

    def inked(text: str) -> str:
        return f'<span style="color:{ink}">{text}</span>'

    layout = drawn["layout"]
    for trace in drawn["data"]:
        if "name" in trace and trace.get("showlegend", True):
            hover = trace.get("hovertemplate", "")
            if "fullData.name" in hover:
                trace["meta"] = trace["name"]
                trace["hovertemplate"] = hover.replace("fullData.name", "fullData.meta")
            trace["name"] = inked(trace["name"])
    for axis in filter(None, map(layout.get, ("xaxis", "yaxis"))):
        axis["ticktext"] = [*map(inked, axis["ticktext"])]
    for word in layout["annotations"]:
        if "color" not in word.get("font", {}):
            word["text"] = inked(word["text"])
    # Our style sheet in JupyterLab finds the chart by this class of the trace's element.
    drawn["data"][0]["uid"] = MARK
    return drawn


def figure_dict(session: Session, span: Span | None = None) -> dict[str, Any]:
    """Return the chart as Plotly's own JSON: ``data``, ``layout`` and ``config``, of plain values."""
    scene = build_scene(session, span, columns=figure_columns(session))
    if scene is None:
        note = {"text": "too short to chart", "x": 0.5, "y": 0.5, "showarrow": False}
        axes = {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
        words = {"annotations": [note | {"xref": "paper", "yref": "paper"}]}
        layout = paint.BASE | {"height": 120} | axes | words
        return {"data": [], "layout": layout, "config": dict(CONFIG)}
    return _drawn(scene)


def figure_columns(session: Session) -> int:
    """Return the number of columns that the time of the figure is divided into."""
    return max(72, min(360, int(POINTS / (2 * lines_of(session, LAYER_COSTS)))))


def _drawn(scene: Scene) -> dict[str, Any]:
    frame = scene.frame
    data: list[paint.Trace] = []
    for curve in scene.line_curves:
        data += paint.curve_traces(curve, frame)
    if scene.gaps:
        data.append(paint.gap_trace(scene.gaps, frame))
    data += paint.bar_traces(scene.bars, frame)
    for curve in scene.guide_curves:
        data += paint.curve_traces(curve, frame)
    data += paint.mark_traces(scene.marks, frame)
    entries = sum("name" in trace and trace.get("showlegend", True) for trace in data)
    return {"data": data, "layout": _layout(scene, entries), "config": dict(CONFIG)}


def _legend(plot: float) -> dict[str, Any]:
    across = {"orientation": "h", "x": 0, "xanchor": "left", "bgcolor": paint.CLEAR}
    below = {"y": -TICKS / plot, "yanchor": "top", "entrywidthmode": "fraction"}
    return across | below | {"entrywidth": 1 / LEGEND_COLUMNS}


def legend_height(entries: int) -> int:
    """Return the height of a legend in pixels."""
    return LEGEND_PAD + LEGEND_ROW * math.ceil(entries / LEGEND_COLUMNS)


def _layout(scene: Scene, entries: int) -> dict[str, Any]:
    bottom, lanes, frame = TICKS + legend_height(entries), scene.lanes, scene.frame
    above = (lanes * LANE + LANE_GAP) / PLOT if lanes else 0.0
    drawn = paint.axes(frame, top=round(1 - above, 4))
    drawn["xaxis"] |= {
        "hoverformat": ".4~g",
        "spikecolor": palette.INK,
        "spikethickness": 1,
        "spikedash": "solid",
        "ticksuffix": f" {frame.across[1]}",
    }
    if scene.highest_aside > frame.top:
        drawn["yaxis"] = paint.extensible(drawn["yaxis"], frame, scene.highest_aside)
    layout: dict[str, Any] = {
        "height": MARGIN["t"] + PLOT + bottom,
        "margin": {**MARGIN, "b": bottom},
        **paint.BASE,
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": HOVER, "bordercolor": HOVER, "font": {"color": ON_HOVER}},
        "barmode": "overlay",
        "legend": _legend(PLOT) | {"font": {"size": 10 if scene.device.key == HOST else 11}},
        **drawn,
        "shapes": [],
        "annotations": [paint.word_annotation(word, frame) for word in scene.words],
    }
    if scene.capacity is not None:
        y = paint.short(scene.capacity / frame.unit[0])
        stroke = {"color": palette.CAPACITY, "width": 1, "dash": "dot"}
        line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": stroke}
        layout["shapes"].append(line)
    if lanes:
        layout["yaxis2"] = {
            "range": [lanes - 0.5, -0.5],
            "domain": [round(1 - lanes * LANE / PLOT, 4), 1],
            "fixedrange": True,
            "visible": False,
            "anchor": "x",
        }
    return layout
