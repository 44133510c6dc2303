"""The axes and shapes of a chart, described once for both painters: SVG and Plotly.

Positions across are in the units of the frame's horizontal axis, heights in bytes; texts are plain.
Ticks are at the same round figures as in the live chart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hfmem_widget.analysis.curve import Points, grounded, runs_of
from hfmem_widget.session import SpanKind
from hfmem_widget.view import palette

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 20, 30),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 20, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
)


@dataclass(frozen=True, slots=True)
class Ticks:
    """The positions of ticks, and their labels."""

    values: tuple[float, ...]
    texts: tuple[str, ...]


def value_ticks(top: float, unit: str, count: int = 5) -> Ticks:
    """Return about `count` ticks from 0 to `top`; only the highest names the unit."""
    step = round_up(top / count, (1, 2, 2.5, 5, 10))
    is_quarter = math.isclose(step / 10.0 ** math.floor(math.log10(step) + 1e-9), 2.5)
    values = _multiples(step, top)
    texts = [f"{value:,.{_decimals(step, is_quarter)}f}" for value in values]
    return Ticks(values, (*texts[:-1], f"{texts[-1]} {unit}"))


def time_ticks(stop: float, count: int = 6) -> Ticks:
    """Return at most `count` ticks, and the one at 0, at round times up to `stop` seconds."""
    least = stop / count
    if least < 1:
        step = round_up(max(least, 1e-6), (1, 2, 5, 10))
    else:
        fits = (step for step in _TIME_STEPS if step >= least)
        step = next(fits, math.ceil(least / _DAY) * _DAY)
    values = _multiples(step, stop)
    return Ticks(values, tuple(time_text(value, step, stop) for value in values))


def time_text(seconds: float, step: float, end: float) -> str:
    """Return the label of a tick, such as ``2.5 s`` or ``1:30``; ticks are `step` apart, and end at `end`."""
    decimals = _decimals(step)
    if seconds == 0:
        return "0 s"
    if end < 1:
        return f"{seconds * 1000:.{max(0, decimals - 3)}f} ms"
    if step < _MINUTE:
        if seconds < _MINUTE:
            return f"{seconds:.{decimals}f} s"
        width = decimals + 3 if decimals else 2
        return f"{int(seconds // 60)}:{seconds % 60:0{width}.{decimals}f}"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes:02d}" if minutes else f"{hours} h"


def round_up(least: float, mantissas: tuple[float, ...]) -> float:
    """Return the smallest product of a mantissa and a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    fits = (mantissa * power for mantissa in mantissas if mantissa * power >= least * (1 - 1e-9))
    return next(fits, 10 * power)


def _multiples(step: float, stop: float) -> tuple[float, ...]:
    return tuple(index * step for index in range(math.floor(stop / step + 1e-9) + 1))


def _decimals(step: float, more: int = 0) -> int:
    return max(0, math.ceil(-math.log10(step) - 1e-9) + more)


@dataclass(frozen=True, slots=True)
class Stroke:
    """The look of a line."""

    colour: str
    width: float = 1.0  # pixels
    dash: str = ""  # a name of `palette.STROKES`, or lengths in pixels such as "4 3"
    faint: float = 0.0  # above 0: the opacity of a line in the page's own ink


@dataclass(frozen=True, slots=True)
class Curve:
    """A line, an area, or both."""

    points: Points  # a height of NaN breaks the line
    stroke: Stroke | None = None
    fill: str = ""  # the colour of the area; empty without one
    opacity: float = 1.0  # of the area
    is_closed: bool = False  # the points go around the area; else it reaches down to zero
    name: str = ""  # in the legend
    tip: str = ""  # on hover; without one, hovering does not find the curve
    heights: Sequence[float] = ()  # on hover, where they differ from those of the points
    is_key: bool = True  # it has an entry in the legend
    rank: int = 0  # in the legend, curves with a rank come first
    is_aside: bool = False  # hidden until a click in the legend

    @property
    def is_layer(self) -> bool:
        """Whether it belongs to a stack, and hides whatever is behind it."""
        return bool(self.fill) and self.opacity == 1 and not self.is_closed

    @property
    def runs(self) -> list[Points]:
        """The points between breaks."""
        return runs_of(self.points)

    @property
    def outline(self) -> Points:
        """The points with each run brought down to zero, for a painter that fills across breaks."""
        if self.is_closed:
            return self.points
        return [point for run in self.runs for point in grounded(run)]


@dataclass(frozen=True, slots=True)
class PointMark:
    """A sign at a point; hovering shows its tip, if it has one."""

    sign: Literal["dot", "triangle", "cross"]
    at: float
    level: float
    name: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a lane: a span, steps, or similar neighbours; in seconds of the view, cut to it."""

    lane: int  # 0 is the top
    kind: SpanKind
    label: str
    start: float
    stop: float
    worst: bool = False  # the step with the highest peak
    lines: tuple[str, ...] = ()  # on hover

    @property
    def colour(self) -> str:
        """Its colour: grey by depth, or a hue with a meaning."""
        return palette.bar(self.kind, self.lane, worst=self.worst)


@dataclass(frozen=True, slots=True)
class Word:
    """A word at a point, or at an end of a level line."""

    text: str
    level: float
    side: str  # "left" or "right" of its point; empty for the middle
    at: float | None = None  # without one, the end of the plot opposite to its side
    is_above: bool = True  # or below its level
    is_boxed: bool = False  # with a background, since data may lie behind it
    is_off: bool = False  # away from a mark at its point
    points_at: float = math.nan
    """The height of the point that a line leads to; the word is bold then."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Both axes; the lower end of the vertical one is 0."""

    start: float  # of the horizontal axis
    stop: float
    top: float  # of the vertical axis, in bytes
    unit: tuple[float, str]  # divisor and name, of the vertical axis
    ticks: Ticks  # of the horizontal axis
    levels: Ticks  # of the vertical one, in units
    across: tuple[float, str] = (1.0, "")  # divisor and name, of the horizontal axis

    def share(self, at: float) -> float:
        """Return the distance from the left end, from 0 to 1."""
        return (at - self.start) / (self.stop - self.start)

    def height(self, value: float) -> float:
        """Return the distance from the top, from 0 to 1."""
        return 1 - min(value, self.top) / self.top
