"""What is drawn between two axes, described once for whoever paints it: SVG or Plotly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hfmem_widget.analysis.curve import Points, grounded, runs_of
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
        Above 0, the line takes the page's own ink where the painter knows it, as opaque as this.
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
        In the units of its frame; where the height is NaN, it is broken.
    stroke : Stroke or None
    fill : str
        The colour of its area; empty without one.
    opacity : float
        Of the area.
    is_closed : bool
        True where the points go round the area; else it reaches down to zero.
    name, tip : str
        Plain text, in the legend and where it is pointed at; without a tip the pointer does not find it.
    heights : sequence of float
        What pointing at it says, where that is not the height of the point.
    is_key : bool
        True for what the legend has.
    rank : int
        In the legend: those with one come first.
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
        """Whether it is one of a stack, which hides what is behind it."""
        return bool(self.fill) and self.opacity == 1 and not self.is_closed

    @property
    def runs(self) -> list[Points]:
        """The points between breaks."""
        return runs_of(self.points)

    @property
    def outline(self) -> Points:
        """The points with every run brought down to zero, for who fills across breaks."""
        return (
            self.points if self.is_closed else [one for run in self.runs for one in grounded(run)]
        )


@dataclass(frozen=True, slots=True)
class Word:
    """A word at a point, or at an end of a level line.

    Attributes
    ----------
    text : str
        Plain text.
    level : float
        The height, in bytes.
    side : {"left", "right", ""}
        Which side of its point it stands on; empty for the middle.
    at : float or None
        Where across; None at the end of the plot from where it goes to its side.
    is_above : bool
        Whether it stands above its level; else below.
    is_boxed : bool
        Whether it has its own ground, since the data may lie behind it.
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
    """What curves are drawn in.

    Attributes
    ----------
    start, stop : float
        The range of the horizontal axis.
    top : float
        The upper end of the vertical axis, in bytes; the lower is 0.
    unit : (float, str)
        Divisor of bytes, and what that unit is called.
    ticks, levels : Ticks
        Of the horizontal axis, and of the vertical one in units.
    across : (float, str)
        Divisor of the horizontal axis, and what that unit is called.
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
