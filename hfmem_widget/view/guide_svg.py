"""A scene's budgets and trends as SVG: shapes for its stretched frame, and words beside them."""

from __future__ import annotations

from hfmem_widget.labels import for_html
from hfmem_widget.view import palette
from hfmem_widget.view.curve import Points
from hfmem_widget.view.guides import DrawnGuide
from hfmem_widget.view.scene import Scene

WIDTH = 1000
"""Units across the stretched part."""

_LETTER = 5.9
"""Pixels that a letter of a word takes on average; asking for the width would take a script."""

_BOX = 15


def guide_shapes(scene: Scene, height: int) -> str:
    """Return the lines, for a frame of `WIDTH` times `height` units that fills any width."""
    return "".join(_shapes(guide, scene, height) for guide in scene.guides)


def budget_words(scene: Scene, height: int, offset: int) -> str:
    """Return the budgets' names at the ends of their lines, and the marks where they were crossed."""

    def place(level: float) -> float:
        return offset + height * (1 - level / scene.top)

    return "".join(
        _crossing(one, place(one.level), scene) + _word(one, place(one.level), scene)
        for one in scene.budgets
    )


def level_word(text: str, y: float, scene: Scene, colour: str = "") -> str:
    """Return a word on a level line, at the end that the peak's label leaves free."""
    x, anchor = ("0", "start") if scene.words_at_left else ("100%", "end")
    ink = f'fill="{colour}"' if colour else 'fill-opacity=".75"'
    return f'<text x="{x}" y="{y - 4:.1f}" text-anchor="{anchor}" {ink}>{for_html(text)}</text> '


def _word(guide: DrawnGuide, y: float, scene: Scene) -> str:
    is_tight = scene.capacity is not None and not scene.names_capacity
    foot = y + _BOX if is_tight and guide.level < (scene.capacity or 0.0) else y
    if not guide.is_crossed:
        return level_word(guide.label, foot, scene)
    # On its own ground, since the data may lie behind it.
    width = _LETTER * len(guide.label) + 8
    x, shift = ("0", 0.0) if scene.words_at_left else ("100%", -width)
    middle = shift + width / 2
    return (
        f'<rect x="{x}" y="{foot - _BOX:.1f}" width="{width:.0f}" height="{_BOX}" '
        f'transform="translate({shift:.0f})" fill="{palette.PEAK}"/>'
        f'<text x="{x}" y="{foot - 4:.1f}" transform="translate({middle:.0f})" text-anchor="middle" '
        f'fill="{palette.ON_PEAK}">{for_html(guide.label)}</text> '
    )


def _crossing(guide: DrawnGuide, y: float, scene: Scene) -> str:
    if guide.crossed_at is None:
        return ""
    x = f"{100 * guide.crossed_at / scene.duration:.2f}%"
    return (
        f'<svg x="{x}" y="{y:.1f}" style="overflow:visible">'
        f'<path d="M-4.5 4h9l-4.5 -8z" fill="{palette.PEAK}"/></svg>'
    )


def _shapes(guide: DrawnGuide, scene: Scene, height: int) -> str:
    line = _path(guide.line, scene, height)
    if guide.kind == "budget":
        return _stroke(line, palette.PEAK, 1, ' stroke-dasharray="6 4"')
    outline = guide.outline()
    band = (
        f'<path d="{_path(outline, scene, height)}z" fill="{palette.PEAK}" fill-opacity=".2"/>'
        if outline
        else ""
    )
    casing = _stroke(line, "#fff", 3.4, ' stroke-opacity=".7"')
    told = f"<title>{for_html(guide.label)}</title>"
    return f"{band}{casing}<g>{told}{_stroke(line, palette.PEAK, 1.6)}</g>"


def _stroke(path: str, colour: str, width: float, more: str = "") -> str:
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{more} '
        'vector-effect="non-scaling-stroke"/>'
    )


def _path(points: Points, scene: Scene, height: int) -> str:
    drawn = []
    for time, value in points:
        x = WIDTH * time / scene.duration
        y = height * (1 - min(value, scene.top) / scene.top)
        drawn.append(f"{x:.1f} {y:.1f}")
    return f"M{'L'.join(drawn)}"
