"""Which cell of a notebook runs."""

from __future__ import annotations

from typing import NamedTuple

from hfmem_widget.view.front_end import running_magics


class Cell(NamedTuple):
    """A cell of a notebook that runs."""

    number: int | None
    id: str
    """The front end's, the same for all runs; empty if it has none."""
    first_line: str


def running_cell() -> Cell | None:
    """Return the cell that runs on this thread; None outside a notebook, or without the extension."""
    magics = running_magics("MemwatchMagics")
    cell: Cell | None = None if magics is None else magics.running_cell()
    return cell
