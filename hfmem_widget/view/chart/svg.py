"""The still chart as inline SVG, for front ends without Plotly: GitHub, nbviewer, printed pages."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby, pairwise

from hfmem_widget.analysis.curve import Points, grounded
from hfmem_widget.session import Session, Span
from hfmem_widget.text import format_duration
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart.layers import lines_of
from hfmem_widget.view.chart.scene import Scene, build_scene
from hfmem_widget.view.chart.shapes import Bar, Curve, Frame, PointMark, Stroke, Word

WIDTH = 1000  # units across the stretched part; text is outside of it and keeps its size
LANE = 9  # units from the top of a lane to the top of the next
GUTTER, FOOT = 56, 20  # pixels for the words of the axes
_LETTER = 5.9  # pixels of a word's letter on average; to measure the width would need a script
_BOX, _OFF = 15, 9  # pixels: the height of a word, and from the middle of a mark to its word

_CARD_COLUMNS, _CHART_COLUMNS = 160, 240
_CARD_HEIGHT, _CHART_HEIGHT = 52, 170
_LANE_GAP = 6
POINTS = 1850  # of all lines together, about 10 bytes each

_CROSS = '<path d="M-4 -4l8 8m0 -8l-8 8" fill="none" stroke="{}" stroke-width="{}"/>'
_SIGNS = {
    "triangle": f'<path d="M-4.5 4h9l-4.5 -8z" fill="{palette.PEAK}"/>',
    "cross": _CROSS.format(palette.CASING, 4.4) + _CROSS.format(palette.PEAK, 2.6),
}


def sparkline(session: Session, span: Span) -> str:
    """Return a small picture of allocated and reserved, without axes; empty with too few samples."""
    scene = build_scene(session, span, columns=chart_columns(session, _CARD_COLUMNS))
    if scene is None:
        return ""
    signs = (mark for mark in scene.marks if mark.sign != "triangle")
    drawn = [_curves(scene, _CARD_HEIGHT, 0)]
    drawn += [mark_svg(mark, scene.frame, _CARD_HEIGHT) for mark in signs]
    return f'<div style="margin:10px 4px 0">{_svg(scene, _CARD_HEIGHT, drawn)}</div>'


def chart_html(session: Session, span: Span | None = None) -> str:
    """Return the chart with axes, lanes and legend; empty with too few samples."""
    scene = build_scene(session, span, columns=chart_columns(session))
    if scene is None:
        return ""
    frame, height, capacity = scene.frame, _CHART_HEIGHT, ""
    offset = scene.lanes * LANE + _LANE_GAP if scene.lanes else 0
    if scene.capacity is not None:
        y = trimmed(offset + height * frame.height(scene.capacity))
        ends = f'x1="0" x2="100%" y1="{y}" y2="{y}"'
        capacity = f'<line {ends} stroke="{palette.CAPACITY}" stroke-dasharray="2 3"/>'
    drawn = [
        axes(frame, height, offset),
        _bars(scene.bars, frame) if scene.bars else "",
        _curves(scene, height, offset),
        capacity,
        *(mark_svg(mark, frame, height, offset) for mark in scene.marks),
        *(word_svg(word, frame, height, offset) for word in scene.words),
    ]
    return (
        f'{kit.CHART}<div style="padding:2px 20px 0 {GUTTER}px">'
        f"{_svg(scene, offset + height + FOOT, drawn)}</div>"
        f"{legend(_lines(scene), f';margin:2px 0 0 {GUTTER}px')}</div>"
    )


def chart_columns(session: Session, most: int = _CHART_COLUMNS) -> int:
    """Return the number of columns that the time of the chart is divided into."""
    return max(50, min(most, int(POINTS / (2 * lines_of(session)))))


def _svg(scene: Scene, height: int, drawn: list[str]) -> str:
    phrases = [f"{scene.device.key} memory over {format_duration(scene.duration + scene.paused)}"]
    phrases += [scene.peak.text] if scene.peak is not None else []
    phrases += [guide.label for guide in scene.guides if guide.kind != "oom"]
    phrases += [mark.label for mark in scene.ooms[-1:]]
    return picture(", ".join(phrases), height, "".join(drawn))


def _curves(scene: Scene, height: int, offset: int) -> str:
    curves = [*_lines(scene), *scene.guide_curves]
    return stretched(height, curves_svg(curves, scene.frame, height), offset)


def _lines(scene: Scene) -> list[Curve]:
    # Without a legend to click on, hidden lines stay hidden.
    return [curve for curve in scene.line_curves if not curve.is_aside]


def picture(label: str, height: int, inside: str) -> str:
    """Return a drawing with a label for screen readers."""
    text = kit.shown(label, kit.NOTE_LENGTH).html
    # JupyterLab gives every svg `height: auto`, which only an inline style overrides.
    return kit.drawing(
        f'<svg role="img" aria-label="{text}" width="100%" height="{height}" '
        f'style="display:block;width:100%;height:{height}px;overflow:visible;font-size:11px" '
        f'fill="currentColor"><title>{text}</title>{inside}</svg>'
    )


def stretched(height: int, inside: str, offset: int = 0) -> str:
    """Return a frame of `WIDTH` units that fills the width of its container."""
    return (
        f'<svg y="{offset}" width="100%" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" style="width:100%;height:{height}px;max-width:none">{inside}</svg>'
    )


def curves_svg(curves: Iterable[Curve], frame: Frame, height: int) -> str:
    """Return curves for a frame of `WIDTH` times `height` units, strokes unscaled."""
    drawn = []
    for is_layer, group in groupby(curves, lambda curve: curve.is_layer):
        shapes = "".join(_curve(curve, frame, height) for curve in group)
        # Thin lines separate the layers in grey print.
        seam = f'<g stroke="#000" stroke-opacity=".3" stroke-width=".7">{shapes}</g>'
        drawn.append(seam if is_layer else shapes)
    return "".join(drawn)


def _curve(curve: Curve, frame: Frame, height: int) -> str:
    drawn = ""
    if curve.fill:
        opacity = f"{curve.opacity:g}".lstrip("0")
        fade = "" if curve.opacity == 1 else f' fill-opacity="{opacity}"'
        runs = curve.runs if curve.is_closed else map(grounded, curve.runs)
        drawn = f'<path d="{_path(runs, frame, height, "z")}" fill="{curve.fill}"{fade}/>'
    if curve.stroke is not None and not curve.is_layer:
        drawn += _stroke(_path(curve.runs, frame, height), curve.stroke)
    has_title = curve.tip and not curve.is_key
    return f"<g><title>{kit.shown(curve.tip).html}</title>{drawn}</g>" if has_title else drawn


def _stroke(path: str, stroke: Stroke) -> str:
    dash = palette.STROKES.get(stroke.dash, stroke.dash)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    faint = f' stroke-opacity="{stroke.faint:g}"' if stroke.faint else ""
    return (
        f'<path d="{path}" fill="none" stroke="{"currentColor" if stroke.faint else stroke.colour}" '
        f'stroke-width="{stroke.width:g}"{dashes}{faint} vector-effect="non-scaling-stroke"/>'
    )


def _path(runs: Iterable[Points], frame: Frame, height: int, end: str = "") -> str:
    drawn = []
    for run in runs:
        corners = _corners(run, frame, height)
        moves = [
            f"{trimmed((x - left) / 10)} {trimmed((y - above) / 10)}"
            for (left, above), (x, y) in pairwise(corners)
        ]
        x, y = corners[0]
        drawn.append(f"M{trimmed(x / 10)} {trimmed(y / 10)}l{'l'.join(moves)}{end}")
    return "".join(drawn)


def _corners(run: Points, frame: Frame, height: int) -> list[tuple[int, int]]:
    """Return the points in tenths of a unit, without the inner points of level stretches."""
    corners: list[tuple[int, int]] = []
    for at, value in run:
        point = (round(10 * WIDTH * frame.share(at)), round(10 * height * frame.height(value)))
        if len(corners) > 1 and corners[-2][1] == corners[-1][1] == point[1]:
            corners.pop()
        corners.append(point)
    return corners if len(corners) > 1 else corners * 2


def _bars(bars: Iterable[Bar], frame: Frame) -> str:
    # One path for each colour, since a run has hundreds of steps.
    paths: dict[str, str] = {}
    least, lanes = WIDTH / 500, 0
    for bar in bars:
        left = frame.share(bar.start) * WIDTH
        width = max((frame.share(bar.stop) - frame.share(bar.start)) * WIDTH, least)
        seam = 1.2 if width > 3 * least else 0.0
        box = f"M{trimmed(left)} {bar.lane * LANE}h{trimmed(width - seam)}v{LANE - 2}H{trimmed(left)}z"
        paths[bar.colour] = paths.get(bar.colour, "") + box
        lanes = max(lanes, bar.lane + 1)
    shapes = (f'<path fill="{colour}" d="{boxes}"/>' for colour, boxes in paths.items())
    return stretched(lanes * LANE, "".join(shapes))


def mark_svg(mark: PointMark, frame: Frame, height: int, offset: int = 0) -> str:
    """Return a sign at its point, not stretched."""
    x, y = _percent(frame, mark.at), offset + height * frame.height(mark.level)
    if mark.sign == "dot":
        return f'<circle cx="{x}" cy="{trimmed(y)}" r="3.5" fill="{palette.PEAK}"/>'
    title = f"<title>{kit.shown(mark.tip).html}</title>" if mark.tip else ""
    sign = f"<g>{title}{_SIGNS[mark.sign]}</g>"
    return f'<svg x="{x}" y="{y:.1f}" style="overflow:visible">{sign}</svg>'


def word_svg(word: Word, frame: Frame, height: int, offset: int = 0) -> str:
    """Return a word, and the line from it to its point."""
    y = offset + height * frame.height(word.level)
    off = _OFF if word.is_off else 0
    top = y - off - _BOX if word.is_above else y + off
    x = ("100%" if word.side == "left" else "0") if word.at is None else _percent(frame, word.at)
    text = kit.shown(word.text).html
    if word.is_boxed:
        width = _LETTER * len(word.text) + 8
        left = {"right": 0.0, "left": -width}.get(word.side, -width / 2)
        return (
            f'<rect x="{x}" y="{top:.1f}" width="{width:.0f}" height="{_BOX}" '
            f'transform="translate({left:.0f})" fill="{palette.PEAK}"/>'
            f'<text x="{x}" y="{top + _BOX - 4:.1f}" transform="translate({left + width / 2:.0f})" '
            f'text-anchor="middle" fill="{palette.ON_PEAK}">{text}</text> '
        )
    anchor = {"right": "start", "left": "end"}.get(word.side, "middle")
    lead, ink = "", 'fill-opacity=".75"'
    if not math.isnan(word.points_at):
        point = offset + height * frame.height(word.points_at)
        ends = f'x1="{x}" x2="{x}" y1="{trimmed(y)}" y2="{trimmed(point)}"'
        lead, ink = f'<line {ends} stroke="{palette.PEAK}"/>', 'font-weight="600"'
    foot = trimmed(top + _BOX - 4)
    return f'{lead}<text x="{x}" y="{foot}" text-anchor="{anchor}" {ink}>{text}</text> '


def axes(frame: Frame, height: int, offset: int = 0) -> str:
    """Return the labels of both axes, and the lines of the grid."""
    drawn = []
    for value, text in zip(frame.levels.values, frame.levels.texts, strict=True):
        y = trimmed(offset + height * frame.height(value * frame.unit[0]))
        drawn.append(
            f'<line x1="0" x2="100%" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".14"/>'
            f'<text x="-6" y="{y}" dy=".35em" text-anchor="end" fill-opacity=".75">{text}</text> '
        )
    drawn += [
        f'<text x="{_percent(frame, value)}" y="{offset + height + 15}" text-anchor="middle" '
        f'fill-opacity=".75">{text}</text> '
        for value, text in zip(frame.ticks.values, frame.ticks.texts, strict=True)
    ]
    return "".join(drawn)


def legend(curves: Iterable[Curve], style: str = "") -> str:
    """Return the names of curves, those with a rank first, each behind a sample of its line."""
    entries = (curve for curve in curves if curve.is_key)
    ranked = sorted(entries, key=lambda curve: curve.rank or 1000)
    keys = (kit.words(kit.Fragment(_key(curve)), curve.name) for curve in ranked)
    return kit.keys(keys, style).html


def _key(curve: Curve) -> str:
    if curve.is_layer:
        return kit.marked(curve.fill).html
    if curve.fill:
        shape = f'<rect width="18" height="10" rx="2" fill="{curve.fill}" fill-opacity=".55"/>'
        return _small(shape, 18)
    return swatch(curve.stroke, 18) if curve.stroke else ""


def swatch(stroke: Stroke, width: int) -> str:
    """Return a short sample of a line."""
    thick = replace(stroke, width=max(stroke.width, 1.6)) if stroke.width > 1 else stroke
    return _small(_stroke(f"M0 5H{width}", thick), width)


def _small(shape: str, width: int) -> str:
    # marimo's style sheet makes every svg a block, which would be above its word.
    return (
        f'<svg width="{width}" height="10" aria-hidden="true" '
        f'style="display:inline-block;width:{width}px;height:10px;vertical-align:-1px">{shape}</svg>'
    )


def _percent(frame: Frame, at: float) -> str:
    return f"{100 * frame.share(at):.2f}%"


def trimmed(value: float, digits: int = 1) -> str:
    """Return a length in few digits, without trailing zeros."""
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
