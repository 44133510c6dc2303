"""The series and parts that can be drawn, one row each: ``series.json``, which the front end reads, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SeriesLook:
    """The label and look of a series, or of a part of a device's memory.

    Colours are Okabe and Ito's, which colour-blind eyes can tell apart; overhead is grey.
    `short` is the label where there is little room, `on_host` that of the process' private memory. A line is
    `drawn` as an "area", "dashes", a "haze", a "line" with a `dash` of `view.palette.STROKES`, or a "band"
    from there up to allocated; a part may be `stacked` below allocated. A line with a `least` is a part, too,
    and drawn on the host alone, where it reaches so many bytes. `sent` series go to the page. `held` is the
    place, from 1, among the purposes of tensors. On the host, where they would squeeze what the process uses,
    series `aside_on_host` are drawn only for who asks for them.
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
        """Return the label."""
        return self.on_host if is_host and self.on_host else self.label


TABLE: Mapping[str, SeriesLook] = {
    name: SeriesLook(**row)
    for name, row in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}
"""By metric, or by the name of a part: the lines, then the parts from the bottom of a stack to its top."""

LINES = tuple(name for name, row in TABLE.items() if row.drawn)

PARTS: Mapping[str, SeriesLook] = {
    name: row for name, row in TABLE.items() if not row.drawn or row.least
}

HOST = "cpu"
OVERVIEW = "ranks"
"""The device that stands for all ranks of a run; those that are drawn by themselves are ``rank:N``."""


def is_charted(device: str, metric: str) -> bool:
    """Return whether a metric of a device may be on its chart."""
    row = TABLE.get(metric)
    return row is not None and not (row.least and ":" in device)


SINGLY = tuple(name for name in TABLE if name.startswith("rank"))
"""The metrics of that device that are a rank each, in a world of so few."""

_BAND = ("lowest", "median", "allocated")


def row_of(device: str, metric: str) -> SeriesLook:
    """Return how a line is drawn: what was allocated by all ranks is that of the highest."""
    return TABLE["highest" if (device, metric) == (OVERVIEW, "allocated") else metric]


def over_ranks(metrics: Iterable[str], worst: int | None = None) -> list[str]:
    """Return which metrics of all ranks are drawn, in order: each rank by itself, or else a band."""
    present = set(metrics)

    def place(name: str) -> int:
        # Lines with gaps lie on those without, which else would hide them.
        is_solid = TABLE[name].dash == "solid"
        return 0 if is_solid else 2 if name == f"rank{worst}" else 1

    singly = sorted((name for name in SINGLY if name in present), key=place)
    return singly or [name for name in _BAND if name in present]


HELD = tuple(
    sorted((name for name in TABLE if TABLE[name].held), key=lambda name: TABLE[name].held)
)
"""The purposes of tensors, which are metrics of a device; see `monitor.attribution`."""

COUNTED = (*HELD, "python", "arrow")
"""The parts of allocated memory that are read: purposes of tensors, and allocators beside malloc."""

USUAL = HELD[:4]
"""The purposes whose series every device with tensors has; the others appear once there are some."""
