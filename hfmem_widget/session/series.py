"""What can be drawn of a device, one row each: ``series.json``, which the front end reads, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Row:
    """How one series, or part of a device's memory, is called and shown.

    Attributes
    ----------
    label : str
        What people read.
    color : str
        One of Okabe and Ito's, which colour-blind eyes tell apart; grey for what nobody chose to have there.
    short : str
        What people read where there is little room.
    on_host : str
        The label where memory is the process' own heap.
    drawn : {"area", "dashes", "haze", ""}
        How the chart draws it as a line; empty for a part.
    stacked : bool
        Whether it is a layer of the stack below the allocated line.
    sent : bool
        Whether it is a series that goes to the page.
    held : int
        Its place among what a device's tensors are found to be, from 1; 0 for anything else.
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


_FILE = Path(__file__).with_suffix(".json")

TABLE: Mapping[str, Row] = MappingProxyType(
    {name: Row(**row) for name, row in json.loads(_FILE.read_text(encoding="utf-8")).items()}
)
"""By metric, or by the name of a part: the lines, then the parts from the bottom of a stack to its top."""

LINES = tuple(name for name, row in TABLE.items() if row.drawn)

PARTS: Mapping[str, Row] = MappingProxyType(
    {name: row for name, row in TABLE.items() if not row.drawn}
)

HELD = tuple(
    sorted((name for name in TABLE if TABLE[name].held), key=lambda name: TABLE[name].held)
)
"""The metrics of what a device's tensors were found to be; see `monitor.attribution`."""
