"""The still chart as inline SVG, for whoever has no Plotly: GitHub, nbviewer, printed pages."""

from __future__ import annotations

from hfmem_widget.session import Session, Span
from hfmem_widget.text import format_duration
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart.curves import curves_of, guide_curves, words_of
from hfmem_widget.view.chart.guide_svg import crossings, dot, marks
from hfmem_widget.view.chart.layers import layers_of
from hfmem_widget.view.chart.paint_svg import (
    FOOT,
    GUTTER,
    WIDTH,
    axes,
    curves_svg,
    legend,
    number,
    picture,
    stretched,
    word_svg,
)
from hfmem_widget.view.chart.scene import Scene, build_scene

_CARD_COLUMNS, _CHART_COLUMNS = 160, 240
POINTS = 1900
"""For all lines together: about 10 bytes each."""

_CARD_HEIGHT, _CHART_HEIGHT = 52, 170
_LANE, _LANE_GAP = 9, 6


def sparkline(session: Session, span: Span) -> str:
    """Return a small picture of allocated and reserved, without axes; empty where there is too little."""
    scene = build_scene(session, span, columns=_columns(session, _CARD_COLUMNS))
    if scene is None:
        return ""
    inside = _stretched(scene, _CARD_HEIGHT, 0) + dot(scene, _CARD_HEIGHT, 0)
    inside += marks(scene, _CARD_HEIGHT, 0)
    return f'<div style="margin:10px 4px 0">{_svg(scene, _CARD_HEIGHT, inside)}</div>'


def chart_html(session: Session, span: Span | None = None) -> str:
    """Return the chart with axes, lanes and legend; empty where there is too little."""
    scene = build_scene(session, span, columns=chart_columns(session))
    return "" if scene is None else chart_svg(scene)


def chart_svg(scene: Scene) -> str:
    """Return a scene with axes, lanes and legend."""
    lanes = max((bar.lane + 1 for bar in scene.bars), default=0)
    offset = lanes * _LANE + _LANE_GAP if lanes else 0
    inside = "".join(
        (
            axes(scene.frame, _CHART_HEIGHT, offset),
            _bars(scene) if lanes else "",
            _stretched(scene, _CHART_HEIGHT, offset),
            _capacity(scene, offset),
            crossings(scene, _CHART_HEIGHT, offset),
            dot(scene, _CHART_HEIGHT, offset),
            marks(scene, _CHART_HEIGHT, offset),
            *(word_svg(one, scene.frame, _CHART_HEIGHT, offset) for one in words_of(scene)),
        )
    )
    return (
        f'{kit.CHART}<div style="padding:2px 20px 0 {GUTTER}px">'
        f"{_svg(scene, offset + _CHART_HEIGHT + FOOT, inside)}</div>{_legend(scene)}</div>"
    )


def chart_columns(session: Session) -> int:
    """Return into how many columns the time of the chart is divided."""
    return _columns(session, _CHART_COLUMNS)


def _columns(session: Session, most: int) -> int:
    lines = len(session.devices) + 2 + layers_of(session)
    return max(50, min(most, POINTS // (2 * lines)))


def _svg(scene: Scene, height: int, inside: str) -> str:
    said = f"{scene.device.key} memory over {format_duration(scene.duration)}"
    if scene.peak is not None:
        said += f", {scene.peak.text}"
    lines = [one for one in scene.guides if one.kind != "oom"]
    said += "".join(f", {one.label}" for one in (*lines, *scene.marks[-1:]))
    return picture(said, height, inside)


def _stretched(scene: Scene, height: int, offset: int) -> str:
    """Return the lines in a frame that fills any width, strokes unscaled."""
    guides = (curve for one in scene.guides if one.kind != "oom" for curve in guide_curves(one))
    return stretched(height, curves_svg([*curves_of(scene), *guides], scene.frame, height), offset)


def _capacity(scene: Scene, offset: int) -> str:
    if scene.capacity is None:
        return ""
    y = offset + _CHART_HEIGHT * (1 - scene.capacity / scene.top)
    ends = f'x1="0" x2="100%" y1="{number(y)}" y2="{number(y)}"'
    return f'<line {ends} stroke="{palette.CAPACITY}" stroke-dasharray="2 3"/>'


def _bars(scene: Scene) -> str:
    """Return the lanes: one path for each colour, since a run has hundreds of steps."""
    paths: dict[str, list[str]] = {}
    least = WIDTH / 500
    for bar in scene.bars:
        left = bar.start / scene.duration * WIDTH
        width = max((bar.stop - bar.start) / scene.duration * WIDTH, least)
        seam = 1.2 if width > 3 * least else 0.0
        colour = palette.bar(bar.kind, bar.lane, worst=bar.worst)
        box = (
            f"M{number(left)} {bar.lane * _LANE}h{number(width - seam)}v{_LANE - 2}H{number(left)}z"
        )
        paths.setdefault(colour, []).append(box)
    lanes = max(bar.lane + 1 for bar in scene.bars)
    shapes = "".join(
        f'<path fill="{colour}" d="{"".join(boxes)}"/>' for colour, boxes in paths.items()
    )
    return stretched(lanes * _LANE, shapes)


def _legend(scene: Scene) -> str:
    return legend(curves_of(scene), f";margin:2px 0 0 {GUTTER}px")
