"""Which cell of a notebook a watch is in."""

from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a notebook."""

    number: int | None
    id: str  # the front end's, or a digest of the source: the same for all runs
    first_line: str
