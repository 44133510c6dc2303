"""A scene as shapes: its lines, areas and guides as curves, its points as marks, its labels as words."""

from __future__ import annotations

from dataclasses import replace

from hfmem_widget.analysis.curve import joined
from hfmem_widget.session.series import SINGLY
from hfmem_widget.text import format_bytes, format_duration
from hfmem_widget.view import palette
from hfmem_widget.view.chart.guides import DrawnGuide
from hfmem_widget.view.chart.layers import Layer
from hfmem_widget.view.chart.scene import Line, Scene
from hfmem_widget.view.chart.shapes import Curve, PointMark, Stroke, Word

SEAM = "rgba(0,0,0,.3)"  # between parts, which look alike in grey print

_OPACITY = {"haze": 0.22, "area": 0.28, "band": 0.4}

BAND = "lowest to highest rank"


def line_curves(scene: Scene) -> list[Curve]:
    """Return the lines in order of drawing, and what stands below them."""
    return [
        replace(curve, is_aside=line.is_aside)
        for line in scene.lines
        for curve in _of_line(line, scene)
    ]


def guide_curves(scene: Scene) -> list[Curve]:
    """Return the lines of budgets, and those of trends with their ranges."""
    return [curve for guide in scene.guides if guide.kind != "oom" for curve in _of_guide(guide)]


def marks_of(scene: Scene) -> list[PointMark]:
    """Return where budgets were crossed, the peak, and where memory ran out, in order of drawing."""
    marks = [
        PointMark("triangle", at, budget.level, "crossed", _tip(budget, "crossed at", at))
        for budget in scene.budgets
        if (at := budget.crossed_at) is not None
    ]
    if scene.peak is not None:
        marks.append(PointMark("dot", scene.peak.time, scene.peak.peak.value, "peak"))
    for oom in scene.marks:
        allocated = f"with {format_bytes(oom.level)} allocated, at"
        tip = _tip(oom, allocated, oom.time)
        marks.append(PointMark("cross", oom.time, oom.level, "out of memory", tip))
    return marks


def words_of(scene: Scene) -> list[Word]:
    """Return the names of level lines, where the peak leaves room, of the peak and of the newest mark."""
    side, capacity = "right" if scene.words_at_left else "left", scene.capacity
    names_it = capacity is not None and scene.names_capacity
    words = [Word("capacity", capacity, side)] if capacity is not None and names_it else []
    for budget in scene.budgets:
        # Otherwise the capacity's line would run through it.
        is_above = capacity is None or names_it or budget.level >= capacity
        word = Word(budget.label, budget.level, side, None, is_above, is_boxed=budget.is_crossed)
        words.append(word)
    if (peak := scene.peak) is not None:
        where = (peak.label_at, scene.peak_side, peak.time)
        words.append(Word(peak.text, *where, points_at=peak.peak.value))
    return words if scene.mark_word is None else [*words, scene.mark_word]


def _tip(guide: DrawnGuide, happened: str, at: float) -> str:
    return f"{guide.label}, {happened} {format_duration(at)}"


def _of_guide(guide: DrawnGuide) -> list[Curve]:
    line, name = guide.line, guide.label
    if guide.kind == "budget":
        return [Curve(line, Stroke(palette.PEAK, 1, "6 4"), name=name, tip=name, is_key=False)]
    outline = guide.outline()
    band = Curve(outline, fill=palette.PEAK, opacity=0.2, is_closed=True, name=name, is_key=False)
    return [
        *([band] if outline else []),
        Curve(line, Stroke(palette.CASING, 3.4), name=name, is_key=False),
        Curve(line, Stroke(palette.PEAK, 1.6), name=name, tip=name, is_key=False),
    ]


def _of_line(line: Line, scene: Scene) -> list[Curve]:
    points, name = line.points, scene.name(line)
    if line.device != scene.device.key:
        strokes = palette.DEVICES
        colour, dash = strokes[scene.devices.index(line.device) % len(strokes)]
        return [Curve(points, Stroke(colour, 1.2, dash), name=name, tip=name)]
    fill, drawn = line.row.color, line.row.drawn
    if drawn == "dashes":
        return [Curve(points, Stroke(fill, 1, "4 3", faint=0.55), name=name, tip=name)]
    if drawn == "area" and scene.layers:
        # From the top down, each over the one above it: side by side, the page would shine through.
        stacked = [_of_layer(at, layer) for at, layer in enumerate(scene.layers, start=1)]
        top = Stroke(palette.INK, 1, faint=0.6)
        return [*reversed(stacked), Curve(points, top, name=name, tip=name)]
    if drawn == "line":
        place = SINGLY.index(line.metric) + 1 if line.metric in SINGLY else 0
        return [Curve(points, Stroke(fill, 1.4, line.row.dash), name=name, tip=name, rank=place)]
    if drawn == "band":
        edge = Curve(points, Stroke(fill, 0.8), name=name, tip=name, is_key=False)
        return [*_band(line, scene), edge]
    stroke = Stroke(fill, 1.3) if drawn == "area" else None
    return [Curve(points, stroke, fill, _OPACITY[drawn], name=name, tip=name)]


def _band(lowest: Line, scene: Scene) -> list[Curve]:
    """Return the area from the lowest to the highest, run by run."""
    runs = [line.runs for line in scene.lines if line.metric == "allocated"]
    if not runs or len(runs[0]) != len(lowest.runs):
        return []
    outline = joined(
        [*high, *reversed(low)] for high, low in zip(runs[0], lowest.runs, strict=True)
    )
    colour = lowest.row.color
    return [Curve(outline, fill=colour, opacity=_OPACITY["band"], is_closed=True, name=BAND)]


def _of_layer(rank: int, layer: Layer) -> Curve:
    # Down the sides of a gap run the lines of all layers, over each other.
    seam = Stroke(SEAM, 1 if len(layer.runs) == 1 else 0.4)
    heights = [height for run in layer.heights for height in run]
    return Curve(
        joined(layer.runs),
        seam,
        palette.PARTS[layer.name],
        name=layer.short_label,
        tip=layer.label,
        heights=heights,
        rank=rank,
    )
