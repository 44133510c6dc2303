"""The highest values since each of several openings."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import zip_longest
from typing import Generic, TypeVar

NOTHING = -math.inf
"""The highest of no values at all."""

MOST_ROWS = 64
"""Rows that wait until somebody asks for the highs; many at once cost hardly more than one."""

Key = TypeVar("Key", bound=Hashable)
Row = Sequence[float]


class Highs(Generic[Key]):
    """Rows of values, and the highest of each column since every opening, nested or overlapping.

    A row is noted for the newest opening only, so that it costs the same however many are open. An older
    opening has the highs of all that were opened after it besides its own, and what is closed leaves
    its own to the opening before it.
    """

    def __init__(self) -> None:
        # In order of opening; each holds the rows that came until the next was opened.
        self._rows: dict[Key, list[Row]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def newest(self) -> Key | None:
        """Return what was opened last and is still open."""
        return next(reversed(self._rows), None)

    def open(self, key: Key, row: Row) -> None:
        """Begin to keep the highs since now, `row` included."""
        self._rows[key] = [row]

    def note(self, row: Row) -> None:
        """Take in a row; it may be longer than those before it, and NaN is never a high."""
        for rows in reversed(self._rows.values()):
            _add(rows, row)
            break

    def since(self, key: Key) -> list[float]:
        """Return the highest values since an opening, `NOTHING` where there was none; empty once closed."""
        highs: list[float] = []
        for one, rows in reversed(self._rows.items()):
            own = _highest(rows)
            rows[:] = [own]
            highs = _highest([own, highs]) if highs else own
            if one == key:
                return highs
        return []

    def close(self, key: Key) -> list[float]:
        """End an opening and return the highest values since it."""
        highs, order = self.since(key), list(self._rows)
        place, own = order.index(key), self._rows.pop(key)
        if place:
            _add(self._rows[order[place - 1]], own[0])
        return highs

    def drop(self, key: Key) -> None:
        """End an opening whose own highs nobody wants, if it is open."""
        if key in self._rows:
            self.close(key)


def _add(rows: list[Row], row: Row) -> None:
    rows.append(row)
    if len(rows) >= MOST_ROWS:
        rows[:] = [_highest(rows)]


def _highest(rows: Sequence[Row]) -> list[float]:
    # Beginning with what is no value: `max` keeps a NaN that comes first, and no other.
    return list(map(max, zip_longest((), *rows, fillvalue=NOTHING)))
