"""A bar in a lane: a span, steps, or neighbours that are alike."""

from __future__ import annotations

from dataclasses import dataclass

from hfmem_widget.session import SpanKind

TO = "\u2013"


@dataclass(frozen=True, slots=True)
class Bar:
    """What happened over a stretch of time, as it is drawn.

    Attributes
    ----------
    lane : int
        0 is the top.
    kind : str
    label : str
        Plain text.
    start, stop : float
        Seconds since the view begins, cut to it.
    worst : bool
        True for the step with the highest peak.
    told : tuple of str
        What hovering says, line by line; plain text.
    """

    lane: int
    kind: SpanKind
    label: str
    start: float
    stop: float
    worst: bool
    told: tuple[str, ...]
