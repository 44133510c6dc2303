"""What a scene holds, as Plotly's traces."""

from __future__ import annotations

from hfmem_widget.text import for_plotly
from hfmem_widget.view import palette
from hfmem_widget.view.chart.bar import Bar
from hfmem_widget.view.chart.curves import curves_of
from hfmem_widget.view.chart.paint_plotly import CLEAR, WORD, Trace, curve_traces, packed, short
from hfmem_widget.view.chart.scene import PeakMark, Scene

BAR_HEIGHT = 0.84
"""Of a lane's."""

_NARROW = 320
"""Pixels; whether a label fits its bar is judged for a plot this narrow, since nobody asks again."""

LAST = 2000
"""In the legend: behind the lines, which have Plotly's own 1000."""

_LETTER = 5.7
_LEAST_LETTERS = 8


def traces(scene: Scene) -> list[Trace]:
    """Return everything that is drawn between the axes, in order of drawing."""
    frame = scene.frame
    drawn = [trace for curve in curves_of(scene) for trace in curve_traces(curve, frame)]
    if scene.gaps:
        drawn.append(_gaps(scene))
    if scene.peak is not None:
        drawn.append(_peak(scene.peak, scene))
    return drawn + _lanes(scene)


def instant(time: float, scene: Scene) -> float:
    """Return seconds in the unit of the time axis."""
    return round(time / scene.time_unit[0], 4)


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
            "size": WORD,
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
