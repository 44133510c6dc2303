"""The still chart as inline SVG, for whoever has no Plotly: GitHub, nbviewer, printed pages."""

from __future__ import annotations

from itertools import pairwise

from hfmem_widget.analysis.curve import Points, grounded
from hfmem_widget.session import Session, Span
from hfmem_widget.text import format_duration
from hfmem_widget.view import palette
from hfmem_widget.view.chart.axis import time_ticks, value_ticks
from hfmem_widget.view.chart.guide_svg import (
    WIDTH,
    budget_words,
    guide_shapes,
    level_word,
    mark_word,
    marks,
)
from hfmem_widget.view.chart.layers import layers_of
from hfmem_widget.view.chart.scene import Line, Scene, build_scene
from hfmem_widget.view.html import CHART, drawing, shown

_CARD_COLUMNS, _CHART_COLUMNS = 160, 240
POINTS = 1900
"""For all lines together: about 10 bytes each."""

_CARD_HEIGHT, _CHART_HEIGHT = 52, 170
_LANE, _LANE_GAP = 9, 6
_FOOT = 20
_GUTTER = 56


def sparkline(session: Session, span: Span) -> str:
    """Return a small picture of allocated and reserved, without axes; empty where there is too little."""
    scene = build_scene(session, span, columns=_columns(session, _CARD_COLUMNS))
    if scene is None:
        return ""
    inside = _stretched(scene, _CARD_HEIGHT, 0) + _dot(scene, _CARD_HEIGHT, 0)
    inside += marks(scene, _CARD_HEIGHT, 0)
    return f'<div style="margin:10px 4px 0">{_svg(scene, _CARD_HEIGHT, inside)}</div>'


def chart_html(session: Session, span: Span | None = None) -> str:
    """Return the chart with axes, lanes and legend; empty where there is too little."""
    scene = build_scene(session, span, columns=_columns(session, _CHART_COLUMNS))
    if scene is None:
        return ""
    lanes = max((bar.lane + 1 for bar in scene.bars), default=0)
    offset = lanes * _LANE + _LANE_GAP if lanes else 0
    inside = "".join(
        (
            _grid(scene, offset),
            _bars(scene) if lanes else "",
            _stretched(scene, _CHART_HEIGHT, offset),
            _capacity(scene, offset),
            budget_words(scene, _CHART_HEIGHT, offset),
            _dot(scene, _CHART_HEIGHT, offset),
            _peak_label(scene, offset),
            marks(scene, _CHART_HEIGHT, offset),
            mark_word(scene, _CHART_HEIGHT, offset),
            _times(scene, offset),
        )
    )
    return (
        f'{CHART}<div style="padding:2px 20px 0 {_GUTTER}px">'
        f"{_svg(scene, offset + _CHART_HEIGHT + _FOOT, inside)}</div>{_legend(scene)}</div>"
    )


def _columns(session: Session, most: int) -> int:
    lines = len(session.devices) + 2 + layers_of(session)
    return max(50, min(most, POINTS // (2 * lines)))


def _svg(scene: Scene, height: int, inside: str) -> str:
    said = f"{scene.device.key} memory over {format_duration(scene.duration)}"
    if scene.peak is not None:
        said += f", {scene.peak.text}"
    lines = [one for one in scene.guides if one.kind != "oom"]
    said += "".join(f", {one.label}" for one in (*lines, *scene.marks[-1:]))
    # JupyterLab gives every svg `height: auto`; only an inline style stands above that.
    return drawing(
        f'<svg role="img" aria-label="{shown(said).html}" width="100%" height="{height}" '
        f'style="display:block;width:100%;height:{height}px;overflow:visible;font-size:11px" '
        f'fill="currentColor"><title>{shown(said).html}</title>{inside}</svg>'
    )


def _stretched(scene: Scene, height: int, offset: int) -> str:
    """Return the lines in a frame that fills any width, strokes unscaled."""
    shapes = [_shape(line, scene, height) for line in scene.lines]
    return _frame(height, offset, "".join((*shapes, guide_shapes(scene, height))))


def _frame(height: int, offset: int, inside: str) -> str:
    return (
        f'<svg y="{offset}" width="100%" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" style="width:100%;height:{height}px;max-width:none">{inside}</svg>'
    )


def _shape(line: Line, scene: Scene, height: int) -> str:
    runs = line.runs
    if line.device != scene.device.key:
        colour, dash = _style(line.device, scene)
        return _stroke(_path(runs, scene, height), colour, 1.2, palette.STROKES[dash])
    color, drawn = line.row.color, line.row.drawn
    if drawn == "dashes":
        return _stroke(_path(runs, scene, height), "currentColor", 1, "4 3", opacity=0.55)
    area = _path(runs, scene, height, closed=True)
    if drawn == "haze":
        return f'<path d="{area}" fill="{color}" fill-opacity=".25"/>'
    if scene.layers:
        # From the top down, each over the one above it: an edge is written once.
        areas = "".join(
            f'<path d="{_path(list(layer.runs), scene, height, closed=True)}" '
            f'fill="{palette.PARTS[layer.name]}"/>'
            for layer in reversed(scene.layers)
        )
        # In grey print parts are alike: a thin line keeps them apart.
        areas = f'<g stroke="#000" stroke-opacity=".3" stroke-width=".7">{areas}</g>'
        return areas + _stroke(_path(runs, scene, height), "currentColor", 1, opacity=0.6)
    filled = f'<path d="{area}" fill="{color}" fill-opacity=".3"/>'
    return filled + _stroke(_path(runs, scene, height), color, 1.3)


def _style(device: str, scene: Scene) -> tuple[str, str]:
    return palette.DEVICES[scene.devices.index(device) % len(palette.DEVICES)]


def _stroke(path: str, colour: str, width: float, dash: str = "", *, opacity: float = 1.0) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    faint = f' stroke-opacity="{opacity:g}"' if opacity < 1 else ""
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashes}{faint} '
        'vector-effect="non-scaling-stroke"/>'
    )


def _path(runs: list[Points], scene: Scene, height: int, *, closed: bool = False) -> str:
    drawn = []
    for run in runs:
        corners = _corners(grounded(run) if closed else run, scene, height)
        moves = [
            f"{_number((x - left) / 10)} {_number((y - above) / 10)}"
            for (left, above), (x, y) in pairwise(corners)
        ]
        x, y = corners[0]
        drawn.append(f"M{_number(x / 10)} {_number(y / 10)}l{'l'.join(moves)}{'z' * closed}")
    return "".join(drawn)


def _corners(run: Points, scene: Scene, height: int) -> list[tuple[int, int]]:
    """Return the points in tenths of a unit, less those in the middle of a level stretch."""
    corners: list[tuple[int, int]] = []
    for time, value in run:
        point = (
            round(10 * WIDTH * time / scene.duration),
            round(10 * height * (1 - value / scene.top)),
        )
        if len(corners) > 1 and corners[-2][1] == corners[-1][1] == point[1]:
            corners.pop()
        corners.append(point)
    return corners if len(corners) > 1 else corners * 2


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _percent(time: float, scene: Scene) -> str:
    return f"{100 * time / scene.duration:.2f}%"


def _dot(scene: Scene, height: int, offset: int) -> str:
    if scene.peak is None:
        return ""
    y = offset + height * (1 - scene.peak.peak.value / scene.top)
    x = _percent(scene.peak.time, scene)
    return f'<circle cx="{x}" cy="{_number(y)}" r="3.5" fill="{palette.PEAK}"/>'


def _peak_label(scene: Scene, offset: int) -> str:
    if scene.peak is None:
        return ""
    x = _percent(scene.peak.time, scene)
    foot = offset + _CHART_HEIGHT * (1 - scene.peak.label_at / scene.top)
    point = offset + _CHART_HEIGHT * (1 - scene.peak.peak.value / scene.top)
    anchor = {"right": "start", "left": "end"}.get(scene.peak_side, "middle")
    return (
        f'<line x1="{x}" x2="{x}" y1="{_number(foot)}" y2="{_number(point)}" stroke="{palette.PEAK}"/>'
        f'<text x="{x}" y="{_number(foot - 4)}" text-anchor="{anchor}" font-weight="600">'
        f"{shown(scene.peak.text).html}</text> "
    )


def _grid(scene: Scene, offset: int) -> str:
    divisor, unit = scene.unit
    ticks = value_ticks(scene.ceiling / divisor, unit)
    drawn = []
    for value, text in zip(ticks.values, ticks.texts, strict=True):
        y = _number(offset + _CHART_HEIGHT * (1 - value * divisor / scene.top))
        drawn.append(
            f'<line x1="0" x2="100%" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".14"/>'
            f'<text x="-6" y="{y}" dy=".35em" text-anchor="end" fill-opacity=".75">{text}</text> '
        )
    return "".join(drawn)


def _times(scene: Scene, offset: int) -> str:
    ticks = time_ticks(scene.duration)
    drawn = []
    for value, text in zip(ticks.values, ticks.texts, strict=True):
        drawn.append(
            f'<text x="{_percent(value, scene)}" y="{offset + _CHART_HEIGHT + 15}" text-anchor="middle" '
            f'fill-opacity=".75">{text}</text> '
        )
    return "".join(drawn)


def _capacity(scene: Scene, offset: int) -> str:
    if scene.capacity is None:
        return ""
    y = offset + _CHART_HEIGHT * (1 - scene.capacity / scene.top)
    line = (
        f'<line x1="0" x2="100%" y1="{_number(y)}" y2="{_number(y)}" stroke="{palette.CAPACITY}" '
        'stroke-dasharray="2 3"/>'
    )
    return line + level_word("capacity", y, scene) if scene.names_capacity else line


def _bars(scene: Scene) -> str:
    """Return the lanes: one path for each colour, since a run has hundreds of steps."""
    paths: dict[str, list[str]] = {}
    least = WIDTH / 500
    for bar in scene.bars:
        left = bar.start / scene.duration * WIDTH
        width = max((bar.stop - bar.start) / scene.duration * WIDTH, least)
        seam = 1.2 if width > 3 * least else 0.0
        colour = palette.bar(bar.kind, bar.lane, worst=bar.worst)
        box = f"M{_number(left)} {bar.lane * _LANE}h{_number(width - seam)}v{_LANE - 2}H{_number(left)}z"
        paths.setdefault(colour, []).append(box)
    lanes = max(bar.lane + 1 for bar in scene.bars)
    shapes = "".join(
        f'<path fill="{colour}" d="{"".join(boxes)}"/>' for colour, boxes in paths.items()
    )
    return _frame(lanes * _LANE, 0, shapes)


def _legend(scene: Scene) -> str:
    entries = [(_square(one.name), one.short_label) for one in scene.layers]
    entries += [(_key(line, scene), scene.name(line)) for line in scene.lines]
    keys = "".join(
        f'<span style="white-space:nowrap">{key} {shown(name).html}</span> '
        for key, name in entries
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:0 14px;'
        f'margin:2px 0 0 {_GUTTER}px;opacity:.85">{keys}</div>'
    )


def _square(part: str) -> str:
    return f'<span aria-hidden="true" style="color:{palette.PARTS[part]}">\u25a0</span>'


def _key(line: Line, scene: Scene) -> str:
    """Return a piece of a line as it is drawn."""
    if line.device != scene.device.key:
        colour, dash = _style(line.device, scene)
        shape = _stroke("M0 5H18", colour, 1.6, palette.STROKES[dash])
    elif line.row.drawn == "dashes":
        shape = _stroke("M0 5H18", "currentColor", 1, "4 3", opacity=0.55)
    elif line.row.drawn == "area" and scene.layers:
        shape = _stroke("M0 5H18", "currentColor", 1, opacity=0.6)
    else:
        shape = f'<rect width="18" height="10" rx="2" fill="{line.row.color}" fill-opacity=".55"/>'
    return (
        '<svg width="18" height="10" aria-hidden="true" '
        f'style="width:18px;height:10px;vertical-align:-1px">{shape}</svg>'
    )
