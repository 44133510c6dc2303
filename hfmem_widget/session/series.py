"""What can be drawn of a device, one row each: ``series.json``, which the front end reads, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """How a series, or a part of a device's memory, is called and drawn.

    Colours are Okabe and Ito's, which colour-blind eyes tell apart; greys are for what nobody chose to have.
    `short` and `on_host` are labels for where there is little room, and for a process' own heap. A line is
    `drawn` as an "area", "dashes" or a "haze"; a part may be `stacked` below allocated. What is `sent`
    is a series that goes to the page. `held` is the place among what tensors are found to be, from 1.
    """

    label: str
    color: str
    short: str = ""
    on_host: str = ""
    drawn: str = ""
    stacked: bool = False
    sent: bool = False
    held: int = 0

    def called(self, *, is_host: bool) -> str:
        """Return what people read."""
        return self.on_host if is_host and self.on_host else self.label


_READ = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

TABLE: Mapping[str, Row] = {name: Row(**row) for name, row in _READ.items()}
"""By metric, or by the name of a part: the lines, then the parts from the bottom of a stack to its top."""

LINES = tuple(name for name, row in TABLE.items() if row.drawn)

PARTS: Mapping[str, Row] = {name: row for name, row in TABLE.items() if not row.drawn}

HELD = tuple(
    sorted((name for name in TABLE if TABLE[name].held), key=lambda name: TABLE[name].held)
)
"""The metrics of what a device's tensors were found to be; see `monitor.attribution`."""
