"""A scene's marks as SVG: its peak, where a budget was crossed, where memory ran out."""

from __future__ import annotations

from hfmem_widget.view import palette
from hfmem_widget.view.chart.curves import CASING
from hfmem_widget.view.chart.paint_svg import number, percent
from hfmem_widget.view.chart.scene import Scene
from hfmem_widget.view.html import shown

_CROSS = '<path d="M-4 -4l8 8m0 -8l-8 8" fill="none" stroke="{}" stroke-width="{}"/>'


def crossings(scene: Scene, height: int, offset: int) -> str:
    """Return where budgets were crossed."""
    triangle = f'<path d="M-4.5 4h9l-4.5 -8z" fill="{palette.PEAK}"/>'
    return "".join(
        _sign(scene, (one.crossed_at, one.level), height, offset, triangle)
        for one in scene.budgets
        if one.crossed_at is not None
    )


def marks(scene: Scene, height: int, offset: int) -> str:
    """Return where memory ran out."""
    cross = _CROSS.format(CASING, 4.4) + _CROSS.format(palette.PEAK, 2.6)
    told = [(one, f"<title>{shown(one.label).html}</title>") for one in scene.marks]
    return "".join(
        _sign(scene, (one.time, one.level), height, offset, f"<g>{title}{cross}</g>")
        for one, title in told
    )


def dot(scene: Scene, height: int, offset: int) -> str:
    """Return the peak's point."""
    if scene.peak is None:
        return ""
    y = number(offset + height * scene.frame.height(scene.peak.peak.value))
    x = percent(scene.frame, scene.peak.time)
    return f'<circle cx="{x}" cy="{y}" r="3.5" fill="{palette.PEAK}"/>'


def _sign(scene: Scene, point: tuple[float, float], height: int, offset: int, inside: str) -> str:
    time, level = point
    y = offset + height * scene.frame.height(level)
    x = percent(scene.frame, time)
    return f'<svg x="{x}" y="{y:.1f}" style="overflow:visible">{inside}</svg>'
