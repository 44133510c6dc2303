"""Which cell of a notebook a watch is in."""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a notebook."""

    number: int | None
    id: str  # the front end's, the same for all runs; empty if it has none
    first_line: str
