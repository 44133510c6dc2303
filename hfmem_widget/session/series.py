"""The label and look of each series and part; the front end reads the same ``series.json``."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SeriesLook:
    """The label and look of a series, or of a part of a device's memory.

    Colours are Okabe and Ito's, which colour-blind eyes can tell apart; overhead is grey.
    `short` is the label where there is little room, `on_host` the label on the host. A line is `drawn` as an
    "area", "dashes", a "haze", a "line" with a `dash` of `view.palette.STROKES`, or a "band" from there up to
    allocated; a part may be `stacked` below allocated. A line with a `least` is also a part; it is drawn only
    on the host, and only if it reaches that number of bytes. `sent` series go to the page. `held` is the
    place, from 1, among the purposes of tensors. Series that are `aside_on_host` are much larger than what
    the process uses, so on the host they are drawn only on request.
    """

    label: str
    color: str
    short: str = ""
    on_host: str = ""
    drawn: str = ""
    dash: str = "solid"
    stacked: bool = False
    sent: bool = False
    held: int = 0
    least: float = 0.0
    aside_on_host: bool = False

    def called(self, *, is_host: bool) -> str:
        """Return the label on the host, or on a GPU."""
        return self.on_host if is_host and self.on_host else self.label


TABLE: Mapping[str, SeriesLook] = {
    name: SeriesLook(**row)
    for name, row in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}
"""The rows by name of metric or part: first lines, then parts from the bottom of a stack to its top."""

LINES = tuple(name for name, row in TABLE.items() if row.drawn)

PARTS: Mapping[str, SeriesLook] = {
    name: row for name, row in TABLE.items() if not row.drawn or row.least
}

HOST = "cpu"
OVERVIEW = "ranks"
"""The key of the device that stands for all ranks of a run; a rank drawn by itself is ``rank:N``."""


def is_charted(device: str, metric: str) -> bool:
    """Return whether a metric of a device may be on its chart."""
    row = TABLE.get(metric)
    return row is not None and not (row.least and ":" in device)


SINGLY = tuple(name for name in TABLE if name.startswith("rank"))
"""The metrics of `OVERVIEW` that each show one rank, which a small world has."""

_BAND = ("lowest", "median", "allocated")


def row_of(device: str, metric: str) -> SeriesLook:
    """Return the look of a line; ``allocated`` of the overview is the highest rank's."""
    return TABLE["highest" if (device, metric) == (OVERVIEW, "allocated") else metric]


def over_ranks(metrics: Iterable[str], worst: int | None = None) -> list[str]:
    """Return the metrics of the overview to draw, in order: the single ranks, or else a band."""
    present = set(metrics)

    def place(name: str) -> int:
        # Solid lines are drawn first: they would hide dashed ones.
        is_solid = TABLE[name].dash == "solid"
        return 0 if is_solid else 2 if name == f"rank{worst}" else 1

    singly = sorted((name for name in SINGLY if name in present), key=place)
    return singly or [name for name in _BAND if name in present]


HELD = tuple(
    sorted((name for name in TABLE if TABLE[name].held), key=lambda name: TABLE[name].held)
)
"""The purposes of tensors, which are metrics of a device; see `monitor.attribution`."""

COUNTED = (*HELD, "python", "arrow")
"""The parts of allocated memory that are measured: tensors by purpose, and allocators other than malloc."""

USUAL = HELD[:4]
"""The purposes whose series every device with tensors has; the other series appear with their first bytes."""
