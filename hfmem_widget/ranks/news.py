"""What is new in the lines of a rank: what `stream` tells `overview`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hfmem_widget.ranks.aggregate import Floats
from hfmem_widget.session import SpanKind
from hfmem_widget.session.steps import PHASES

STEP_FIGURES = ("stop", "peak", "certainty", *PHASES)
STOP, PEAK, CERTAINTY = range(3)
IN_PHASES = slice(3, None)
"""What is kept of a step, and the places of these figures."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Readings of all columns, by the rank's own clock: shapes ``(samples,)`` and ``(samples, columns)``."""

    time: Floats
    values: Floats


@dataclass(slots=True)  # frozen, to make one takes three times as long
class Extremes:
    """The highest of all columns over a stretch of time, by the rank's own clock."""

    start: float
    stop: float
    high: Floats


@dataclass(slots=True)
class Finished:
    """Steps that have ended.

    Attributes
    ----------
    first, last : list of int
        Their numbers; the same where a row is one step.
    start : list of float
        By the rank's own clock.
    figures : list of lists of float
        Of each the `STEP_FIGURES`: when it ended, its peak, how that is known, and the peaks of its phases,
        on the device that counts. No arrays: a line has few steps, and those of all ranks become one.
    """

    first: list[int]
    last: list[int]
    start: list[float]
    figures: list[list[float]]


@dataclass(frozen=True, slots=True)
class Edge:
    """A coarse span that was opened or, if it has a `stop`, closed; by the rank's own clock."""

    id: int
    kind: SpanKind
    label: str
    start: float
    stop: float | None
    outcome: str
    counts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Began:
    """The stream said whose it is."""


News = Samples | Extremes | Finished | Edge | Began
