"""A scene's guides as SVG: words and marks beside their lines."""

from __future__ import annotations

from hfmem_widget.view import palette
from hfmem_widget.view.chart.curves import CASING
from hfmem_widget.view.chart.guides import DrawnGuide
from hfmem_widget.view.chart.scene import Scene
from hfmem_widget.view.html import shown

_LETTER = 5.9
"""Pixels that a letter of a word takes on average; asking for the width would take a script."""

_BOX = 15

_OFF_MARK = 9
"""Pixels from the middle of a mark to its word."""


def budget_words(scene: Scene, height: int, offset: int) -> str:
    """Return the budgets' names at the ends of their lines, and the marks where they were crossed."""
    rows = [(one, _row(one.level, scene, height, offset)) for one in scene.budgets]
    return "".join(_crossing(one, y, scene) + _word(one, y, scene) for one, y in rows)


def marks(scene: Scene, height: int, offset: int) -> str:
    """Return where memory ran out."""
    return "".join(
        f'<svg x="{_share(one.time, scene)}" y="{_row(one.level, scene, height, offset):.1f}" '
        f'style="overflow:visible"><g><title>{shown(one.label).html}</title>'
        f'<path d="M-4 -4l8 8m0 -8l-8 8" fill="none" stroke="{CASING}" stroke-width="4.4"/>'
        f'<path d="M-4 -4l8 8m0 -8l-8 8" fill="none" stroke="{palette.PEAK}" stroke-width="2.6"/></g></svg>'
        for one in scene.marks
    )


def mark_word(scene: Scene, height: int, offset: int) -> str:
    """Say at the newest mark what it is."""
    word = scene.mark_word
    if word is None:
        return ""
    label, y = word.mark.label, _row(word.level, scene, height, offset)
    width = _width(label)
    left = {"right": 0.0, "left": -width}.get(word.side, -width / 2)
    top = y - _OFF_MARK - _BOX if word.is_above else y + _OFF_MARK
    return _boxed(label, _share(word.mark.time, scene), left, top)


def level_word(text: str, y: float, scene: Scene, colour: str = "") -> str:
    """Return a word on a level line, at the end that the peak's label leaves free."""
    x, anchor = ("0", "start") if scene.words_at_left else ("100%", "end")
    ink = f'fill="{colour}"' if colour else 'fill-opacity=".75"'
    return f'<text x="{x}" y="{y - 4:.1f}" text-anchor="{anchor}" {ink}>{shown(text).html}</text> '


def _word(guide: DrawnGuide, y: float, scene: Scene) -> str:
    capacity = scene.capacity
    is_tight = capacity is not None and not scene.names_capacity and guide.level < capacity
    foot = y + _BOX if is_tight else y
    if not guide.is_crossed:
        return level_word(guide.label, foot, scene)
    x, left = ("0", 0.0) if scene.words_at_left else ("100%", -_width(guide.label))
    return _boxed(guide.label, x, left, foot - _BOX)


def _boxed(text: str, x: str, left: float, top: float) -> str:
    """Return a word on its own ground, since the data may lie behind it, `left` pixels from `x`."""
    width = _width(text)
    return (
        f'<rect x="{x}" y="{top:.1f}" width="{width:.0f}" height="{_BOX}" '
        f'transform="translate({left:.0f})" fill="{palette.PEAK}"/>'
        f'<text x="{x}" y="{top + _BOX - 4:.1f}" transform="translate({left + width / 2:.0f})" '
        f'text-anchor="middle" fill="{palette.ON_PEAK}">{shown(text).html}</text> '
    )


def _width(text: str) -> float:
    return _LETTER * len(text) + 8


def _row(level: float, scene: Scene, height: int, offset: int) -> float:
    return offset + height * (1 - level / scene.top)


def _share(time: float, scene: Scene) -> str:
    return f"{100 * time / scene.duration:.2f}%"


def _crossing(guide: DrawnGuide, y: float, scene: Scene) -> str:
    if guide.crossed_at is None:
        return ""
    return (
        f'<svg x="{_share(guide.crossed_at, scene)}" y="{y:.1f}" style="overflow:visible">'
        f'<path d="M-4.5 4h9l-4.5 -8z" fill="{palette.PEAK}"/></svg>'
    )
