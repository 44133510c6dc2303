"""What a cell of a notebook is known by."""

from __future__ import annotations

from typing import NamedTuple

UNLABELLED = "cell "
"""How the identity of a cell without a label begins."""


class Cell(NamedTuple):
    """A cell of a notebook."""

    number: int | None
    id: str
    """The front end's, the same for all runs; empty if it has none."""
    first_line: str
