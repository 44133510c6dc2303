"""The shapes of a chart, described once for both painters: SVG and Plotly.

Positions across are in the units of the frame's horizontal axis, heights in bytes; texts are plain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hfmem_widget.analysis.curve import Points, grounded, runs_of
from hfmem_widget.session import SpanKind
from hfmem_widget.view import palette
from hfmem_widget.view.chart.axis import Ticks


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
    points_at: float = (
        math.nan
    )  # the height of the point that a line leads to; the word is bold then


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
