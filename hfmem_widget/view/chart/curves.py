"""A scene's lines, areas and guides as curves, and its labels as words."""

from __future__ import annotations

from hfmem_widget.analysis.curve import joined
from hfmem_widget.view import palette
from hfmem_widget.view.chart.guides import DrawnGuide
from hfmem_widget.view.chart.layers import Layer
from hfmem_widget.view.chart.scene import Line, Scene
from hfmem_widget.view.chart.shapes import Curve, Stroke, Word

CASING = "rgba(255,255,255,.7)"
"""What keeps a line apart from whatever colour it lies on."""

SEAM = "rgba(0,0,0,.3)"
"""Between parts, which in grey print are alike."""

_OPACITY = {"haze": 0.22, "area": 0.28}


def curves_of(scene: Scene) -> list[Curve]:
    """Return the lines in order of drawing, and what stands below them."""
    return [curve for line in scene.lines for curve in _line(line, scene)]


def guide_curves(guide: DrawnGuide) -> list[Curve]:
    """Return a budget's line, or a trend's with its range."""
    line, name = guide.line, guide.label
    if guide.kind == "budget":
        return [Curve(line, Stroke(palette.PEAK, 1, "6 4"), name=name, tip=name, is_key=False)]
    outline = guide.outline()
    band = Curve(outline, fill=palette.PEAK, opacity=0.2, is_closed=True, name=name, is_key=False)
    return [
        *([band] if outline else []),
        Curve(line, Stroke(CASING, 3.4), name=name, is_key=False),
        Curve(line, Stroke(palette.PEAK, 1.6), name=name, tip=name, is_key=False),
    ]


def _line(line: Line, scene: Scene) -> list[Curve]:
    name = scene.name(line)
    if line.device != scene.device.key:
        known = palette.DEVICES
        colour, dash = known[scene.devices.index(line.device) % len(known)]
        return [Curve(line.points, Stroke(colour, 1.2, dash), name=name, tip=name)]
    fill, drawn = line.row.color, line.row.drawn
    if drawn == "dashes":
        thin = Stroke(fill, 1, "4 3", faint=0.55)
        return [Curve(line.points, thin, name=name, tip=name)]
    opacity = _OPACITY[drawn]
    if drawn == "haze":
        return [Curve(line.points, fill=fill, opacity=opacity, name=name, tip=name)]
    if scene.layers:
        # From the top down, each over the one above it: side by side, the page would shine through.
        stacked = [_layer(at, one) for at, one in enumerate(scene.layers)]
        top = Stroke(palette.INK, 1, faint=0.6)
        return [*reversed(stacked), Curve(line.points, top, name=name, tip=name)]
    stroke = Stroke(fill, 1.3)
    return [Curve(line.points, stroke, fill, opacity, name=name, tip=name)]


def _layer(at: int, layer: Layer) -> Curve:
    heights = [one for run in layer.heights for one in run]
    # Down the sides of a gap run the lines of all layers, over each other.
    seam = Stroke(SEAM, 1 if len(layer.runs) == 1 else 0.4)
    return Curve(
        joined(layer.runs),
        seam,
        palette.PARTS[layer.name],
        name=layer.short_label,
        tip=layer.label,
        heights=heights,
        rank=at + 1,
    )


def words_of(scene: Scene) -> list[Word]:
    """Return what levels, where the peak leaves room, the peak and the newest mark are called."""
    side, capacity = "right" if scene.words_at_left else "left", scene.capacity
    names_it = capacity is not None and scene.names_capacity
    words = [Word("capacity", capacity, side)] if capacity is not None and names_it else []
    for one in scene.budgets:
        # Else the capacity's line would run through it.
        is_above = capacity is None or names_it or one.level >= capacity
        words.append(Word(one.label, one.level, side, is_above=is_above, is_boxed=one.is_crossed))
    if (peak := scene.peak) is not None:
        where = (peak.label_at, scene.peak_side, peak.time)
        words.append(Word(peak.text, *where, points_at=peak.peak.value))
    if (mark := scene.mark_word) is not None:
        where = (mark.level, mark.side, mark.mark.time)
        words.append(Word(mark.mark.label, *where, mark.is_above, is_boxed=True, is_off=True))
    return words
