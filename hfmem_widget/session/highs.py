"""The highest values since each of several beginnings, nested or overlapping."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import repeat, zip_longest
from typing import TypeVar

NOTHING = -math.inf
"""The highest of no values."""

MOST_ROWS = 64
"""Rows that wait until the highs are asked for: many at once cost hardly more than one."""

Key = TypeVar("Key", bound=Hashable)
Row = Sequence[float]


class Highs(dict[Key, list[Row]]):
    """The highest value of each column of rows, since each key was opened.

    Each key, in order of opening, has the rows that came until the next was opened, so that a row costs the
    same however many are open. The highs of a key are its own and those of all keys opened later; a closed
    key leaves its own to the key before it.
    """

    def newest(self) -> Key | None:
        """Return the open key that was opened last."""
        return next(reversed(self), None)

    def open(self, key: Key, row: Row) -> None:
        """Open a key: keep the highs from now on, `row` included."""
        self[key] = [row]

    def note(self, *rows: Row) -> None:
        """Add rows; they may be longer than those before, and NaN is never a high."""
        for rows_of_newest in reversed(self.values()):
            _add(rows_of_newest, *rows)
            break

    def since(self, key: Key) -> list[float]:
        """Return the highest values since a key was opened, `NOTHING` for none; empty if it is closed."""
        return next((highs for other, highs in self.highs_by_key() if other == key), [])

    def highs_by_key(self) -> Iterator[tuple[Key, list[float]]]:
        """Yield each open key with the highest values since it was opened, the newest first."""
        highs: list[float] = []
        for key, rows in reversed(self.items()):
            own = highest_of(rows)
            rows[:] = [own]
            highs = highest_of([own, highs]) if highs else own
            yield key, highs

    def close(self, key: Key) -> list[float]:
        """Close a key and return the highest values since it was opened."""
        if key == self.newest():  # as nearly always
            highs = highest_of(self.pop(key))
            if self:
                self.note(highs)
            return highs
        highs, order = self.since(key), list(self)
        place, own = order.index(key), self.pop(key)
        if place:
            _add(self[order[place - 1]], own[0])
        return highs

    def drop(self, key: Key) -> None:
        """Close a key, if it is open."""
        if key in self:
            self.close(key)


def _add(rows: list[Row], *new: Row) -> None:
    rows += new
    if len(rows) >= MOST_ROWS:
        rows[:] = [highest_of(rows)]


def highest_of(rows: Sequence[Row]) -> list[float]:
    """Return the highest value of each column, `NOTHING` for none; rows may be of different lengths."""
    # Begins with no value: `max` keeps a NaN that comes first, and no other.
    widths = set(map(len, rows))
    if len(widths) == 1:
        return list(map(max, repeat(NOTHING, widths.pop()), *rows))
    return list(map(max, zip_longest((), *rows, fillvalue=NOTHING)))
