"""The newest of many events, in arrays.

A tuple for each would be an object that Python's garbage collector goes through: it would collect far more
often than the user's code alone makes it, and an interrupt that comes while it collects can get lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from hfmem_widget.features.stacks.as_snapshot import Event, Stack

ACTIONS = ("alloc", "free_requested", "free_completed")

Made = tuple[str, Stack]
"""An operator, and the stack that led to it."""

NOWHERE: Made = ("", ())


class EventRing:
    """Keeps the newest events; the oldest make room.

    Parameters
    ----------
    most : int
        How many are kept.

    Attributes
    ----------
    seen : int
        How many there were.
    """

    def __init__(self, most: int) -> None:
        self.seen = 0
        self._most = most
        self._actions = array("B")
        self._addresses = array("Q")
        self._sizes = array("Q")
        self._times = array("d")
        self._places = array("L")
        self._known: dict[Made, int] = {NOWHERE: 0}
        self._made: list[Made] = [NOWHERE]

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._actions)

    def __iter__(self) -> Iterator[Event]:
        """Yield those that are kept, oldest first."""
        begin = self.seen % self._most if self.seen > self._most else 0
        for offset in range(len(self)):
            at = (begin + offset) % len(self)
            operator, stack = self._made[self._places[at]]
            action = ACTIONS[self._actions[at]]
            yield action, self._addresses[at], self._sizes[at], self._times[at], operator, stack

    def place(self, operator: str, stack: Stack) -> int:
        """Return the number of an operator and a stack, the same for equal ones."""
        made = (operator, stack)
        number = self._known.get(made)
        if number is None:
            number = self._known[made] = len(self._made)
            self._made.append(made)
        return number

    def made(self, place: int) -> Made:
        """Return what a number stands for."""
        return self._made[place]

    def add(self, action: int, address: int, size: int, time: float, place: int = 0) -> None:
        """Add an event, by the position of its action in `ACTIONS`."""
        columns: tuple[array[Any], ...] = (
            self._actions,
            self._addresses,
            self._sizes,
            self._times,
            self._places,
        )
        row = (action, address, size, time, place)
        if self.seen < self._most:
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        else:
            at = self.seen % self._most
            for column, value in zip(columns, row, strict=True):
                column[at] = value
        self.seen += 1
