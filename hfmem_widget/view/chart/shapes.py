"""What a chart is drawn of, described once for whoever paints it: SVG or Plotly.

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
    """How a line is drawn.

    Attributes
    ----------
    colour : str
    width : float
        Pixels.
    dash : str
        A name of `palette.STROKES`, or lengths in pixels such as ``4 3``.
    faint : float
        Above 0: the opacity of a line in the page's own ink, where the painter knows that ink.
    """

    colour: str
    width: float = 1.0
    dash: str = ""
    faint: float = 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A line, an area, or both.

    Attributes
    ----------
    points : sequence of (float, float)
        A height of NaN breaks the line.
    stroke : Stroke or None
    fill : str
        The colour of the area; empty without one.
    opacity : float
        Of the area.
    is_closed : bool
        Whether the points go round the area; otherwise it reaches down to zero.
    name, tip : str
        The name in the legend, and on hover; hovering does not find a curve without a tip.
    heights : sequence of float
        The values on hover, where they are not the heights of the points.
    is_key : bool
        Whether the legend has it.
    rank : int
        In the legend, curves with a rank come first.
    """

    points: Points
    stroke: Stroke | None = None
    fill: str = ""
    opacity: float = 1.0
    is_closed: bool = False
    name: str = ""
    tip: str = ""
    heights: Sequence[float] = ()
    is_key: bool = True
    rank: int = 0

    @property
    def is_layer(self) -> bool:
        """Whether it is one of a stack, and hides what is behind it."""
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
class Mark:
    """A sign at a point; marks of one name are one entry on hover, if they have a tip."""

    sign: Literal["dot", "triangle", "cross"]
    at: float
    level: float
    name: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a lane: a span, steps, or alike neighbours.

    Attributes
    ----------
    lane : int
        0 is the top.
    kind : str
    label : str
    start, stop : float
        Seconds since the view begins, cut to it.
    worst : bool
        Whether it is the step with the highest peak.
    lines : tuple of str
        What hovering says.
    """

    lane: int
    kind: SpanKind
    label: str
    start: float
    stop: float
    worst: bool = False
    lines: tuple[str, ...] = ()

    @property
    def colour(self) -> str:
        """Its colour: grey by depth, or a hue with a meaning."""
        return palette.bar(self.kind, self.lane, worst=self.worst)


@dataclass(frozen=True, slots=True)
class Word:
    """A word at a point, or at an end of a level line.

    Attributes
    ----------
    text : str
    level : float
        Bytes.
    side : {"left", "right", ""}
        The side of its point on which it stands; empty for the middle.
    at : float or None
        Where across; None for the end of the plot opposite to its side.
    is_above : bool
        Whether it stands above its level, or below.
    is_boxed : bool
        Whether it has a background, since data may lie behind it.
    is_off : bool
        Whether it keeps off a mark at its point.
    points_at : float
        The height that a line leads to from it; NaN without one. Such a word is bold.
    """

    text: str
    level: float
    side: str
    at: float | None = None
    is_above: bool = True
    is_boxed: bool = False
    is_off: bool = False
    points_at: float = math.nan


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes that shapes are drawn between.

    Attributes
    ----------
    start, stop : float
        The range of the horizontal axis.
    top : float
        The upper end of the vertical axis, in bytes; the lower end is 0.
    unit, across : (float, str)
        Divisor and name of the unit of the vertical and the horizontal axis.
    ticks, levels : Ticks
        Of the horizontal axis; of the vertical one, in units.
    """

    start: float
    stop: float
    top: float
    unit: tuple[float, str]
    ticks: Ticks
    levels: Ticks
    across: tuple[float, str] = (1.0, "")

    def share(self, at: float) -> float:
        """Return how far right something stands, from 0 to 1."""
        return (at - self.start) / (self.stop - self.start)

    def height(self, value: float) -> float:
        """Return how far down from the top something stands, from 0 to 1."""
        return 1 - min(value, self.top) / self.top
