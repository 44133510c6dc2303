"""The still chart as inline SVG, for front ends without Plotly: GitHub, nbviewer, printed pages."""

from __future__ import annotations

from hfmem_widget.session import Session, Span
from hfmem_widget.text import format_duration
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart import paint_svg as paint
from hfmem_widget.view.chart.layers import lines_of
from hfmem_widget.view.chart.scene import Scene, build_scene
from hfmem_widget.view.chart.shapes import Curve

_CARD_COLUMNS, _CHART_COLUMNS = 160, 240
POINTS = 1850  # for all lines together: about 10 bytes each

_CARD_HEIGHT, _CHART_HEIGHT = 52, 170
_LANE_GAP = 6


def sparkline(session: Session, span: Span) -> str:
    """Return a small picture of allocated and reserved, without axes; empty where there is too little."""
    scene = build_scene(session, span, columns=chart_columns(session, _CARD_COLUMNS))
    if scene is None:
        return ""
    signs = (mark for mark in scene.marks if mark.sign != "triangle")
    drawn = [_curves(scene, _CARD_HEIGHT, 0)]
    drawn += [paint.mark_svg(mark, scene.frame, _CARD_HEIGHT) for mark in signs]
    return f'<div style="margin:10px 4px 0">{_svg(scene, _CARD_HEIGHT, drawn)}</div>'


def chart_html(session: Session, span: Span | None = None) -> str:
    """Return the chart with axes, lanes and legend; empty where there is too little."""
    scene = build_scene(session, span, columns=chart_columns(session))
    if scene is None:
        return ""
    frame, height = scene.frame, _CHART_HEIGHT
    offset = scene.lanes * paint.LANE + _LANE_GAP if scene.lanes else 0
    drawn = [
        paint.axes(frame, height, offset),
        paint.bars_svg(scene.bars, frame) if scene.bars else "",
        _curves(scene, height, offset),
        _capacity(scene, offset),
        *(paint.mark_svg(mark, frame, height, offset) for mark in scene.marks),
        *(paint.word_svg(word, frame, height, offset) for word in scene.words),
    ]
    return (
        f'{kit.CHART}<div style="padding:2px 20px 0 {paint.GUTTER}px">'
        f"{_svg(scene, offset + height + paint.FOOT, drawn)}</div>"
        f"{paint.legend(_lines(scene), f';margin:2px 0 0 {paint.GUTTER}px')}</div>"
    )


def chart_columns(session: Session, most: int = _CHART_COLUMNS) -> int:
    """Return into how many columns the time of the chart is divided."""
    return max(50, min(most, int(POINTS / (2 * lines_of(session)))))


def _svg(scene: Scene, height: int, drawn: list[str]) -> str:
    phrases = [f"{scene.device.key} memory over {format_duration(scene.duration + scene.paused)}"]
    phrases += [scene.peak.text] if scene.peak is not None else []
    phrases += [guide.label for guide in scene.guides if guide.kind != "oom"]
    phrases += [mark.label for mark in scene.ooms[-1:]]
    return paint.picture(", ".join(phrases), height, "".join(drawn))


def _curves(scene: Scene, height: int, offset: int) -> str:
    curves = [*_lines(scene), *scene.guide_curves]
    return paint.stretched(height, paint.curves_svg(curves, scene.frame, height), offset)


def _lines(scene: Scene) -> list[Curve]:
    # Nobody can click here.
    return [curve for curve in scene.line_curves if not curve.is_aside]


def _capacity(scene: Scene, offset: int) -> str:
    if scene.capacity is None:
        return ""
    y = paint.number(offset + _CHART_HEIGHT * scene.frame.height(scene.capacity))
    ends = f'x1="0" x2="100%" y1="{y}" y2="{y}"'
    return f'<line {ends} stroke="{palette.CAPACITY}" stroke-dasharray="2 3"/>'
