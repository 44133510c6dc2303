"""All colours: Okabe and Ito's, which colour-blind eyes can tell apart, and greys.

Plotly takes no CSS variables, so its drawings must be legible on white and on black, but for the words in
a notebook (`figure.for_notebook`). No grey has 4.5:1 on both #ffffff and #111111 (their own 18.9:1 allows
√18.9 = 4.35 at best); `INK` has that.
"""

from hfmem_widget.session import SpanKind, series

ALLOCATED = series.TABLE["allocated"].color
RESERVED = series.TABLE["reserved"].color
DEVICE_USED = series.TABLE["device_used"].color
PEAK = "#D55E00"
ON_PEAK = "#000000"  # ink on it: black has 5.4:1 there, white 3.9:1
CASING = "rgba(255,255,255,.7)"  # around a line, whatever colour is below it
CAPACITY = "#D55E00"
SAVE = "#B3A125"
INK = "#797979"
GRID = "rgba(128,128,128,0.22)"
GOOD = "#009E73"
STOPPED = "#E69F00"
BAD = "#D55E00"

DEVICES = tuple((series.TABLE[name].color, series.TABLE[name].dash) for name in series.SINGLY)
"""Colour and dash of the line of each device; the yellow is darkened, since #F0E442 is illegible on white."""

STROKES: dict[str, str] = {
    "solid": "",
    "dash": "6 4",
    "dot": "2 3",
    "dashdot": "6 3 2 3",
    "longdash": "10 4",
    "longdashdot": "10 3 2 3",
}
"""Plotly's names of dashes, with their SVG."""

PARTS = {name: row.color for name, row in series.PARTS.items()}
"""Colours of the parts; greys for overhead, and sand for memory from before the watch."""

BLOCKS: dict[str, str] = {
    "used": "#5F6875",
    "rounding": "#B4BBC3",
    "pending": "#009E73",
    "hole": "#D55E00",
    "whole": "rgba(128,128,128,.36)",
    "stream": "#CC79A7",
    "pool": "#B3A125",
}
"""Colours of the parts of a segment, other than those of weights and activations; grey for free memory."""

BANDS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"),
    *("#7E57A8", "#F0E442", "#A6761D", "#00466E", "#9C8A00"),
)
"""Colours of the holders of memory over time, the largest first."""

_DEPTHS = ("#5F6875", "#7D8794", "#9AA3AD", "#B4BBC3")
_KINDS: dict[SpanKind, tuple[str, str]] = {
    "evaluate": ("#CC79A7", "evaluation"),
    "predict": ("#CC79A7", "evaluation"),
    "save": (SAVE, "saving"),
    "oom": (PEAK, "out of memory"),
}


def bar(kind: SpanKind, lane: int, *, worst: bool = False) -> str:
    """Return the colour of a span's bar: grey by depth, or a hue for what happens between steps."""
    if worst:
        return PEAK
    return _KINDS[kind][0] if kind in _KINDS else _DEPTHS[min(lane, len(_DEPTHS) - 1)]


def bar_name(kind: SpanKind, *, worst: bool = False) -> str:
    """Return the name in the legend of a bar with its own colour; empty for the greys."""
    return "worst step" if worst else _KINDS.get(kind, ("", ""))[1]


def ink_on(background: str) -> str:
    """Return black or white, whichever reads better on the colour of a bar."""
    return "#ffffff" if background == _DEPTHS[0] else "#000000"  # the darkest grey
