"""Which cell of a notebook runs: the magics know it, and say it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a notebook that runs."""

    number: int | None
    id: str
    """The front end's, the same for all runs; empty if it has none."""
    first_line: str


_asked: list[Callable[[], Cell | None]] = []


def running_cell() -> Cell | None:
    """Return the cell that runs on this thread; None outside a notebook, or without the extension."""
    return next(filter(None, (ask() for ask in _asked)), None)


def ask(teller: Callable[[], Cell | None]) -> None:
    """Ask it from now on, until `forget`."""
    _asked.append(teller)


def forget(teller: Callable[[], Cell | None]) -> None:
    """Ask it no longer; harmless if it was not asked."""
    if teller in _asked:
        _asked.remove(teller)
