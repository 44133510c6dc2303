"""Ranks by time, as a grid of small numbers of bounded size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import Floats
from hfmem_widget.session import RankStrip
from hfmem_widget.session.ranks import FULL_CELL, SILENT_CELL, STRIP_COLUMNS, STRIP_ROWS

HIGHEST = 250


class Strip:
    """How full the devices were: a row for each rank, or for neighbouring ranks; a column for some seconds.

    When there are too many columns, neighbours merge: the highest stays.

    Parameters
    ----------
    world : int
        Ranks.
    per_node : int
        Ranks of a node; a row then has whole nodes, unless it would have more than twice as many ranks.
    width : float
        Seconds of a column, at first.
    """

    def __init__(self, world: int, per_node: int = 1, width: float = 1.0) -> None:
        self.world = world
        size = -(-world // STRIP_ROWS)
        if size > 1 and per_node <= 2 * size:
            size = -(-size // per_node) * per_node
        self._size = max(1, size)
        self._width = width
        rows = max(1, -(-world // self._size))
        self._cells: NDArray[np.int16] = np.full((STRIP_COLUMNS, rows), -1, dtype=np.int16)
        self._at: list[float] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken in yet."""
        return not self._at

    def add(self, time: float, ranks: NDArray[np.int64], shares: Floats) -> None:
        """Take in how full each rank's device was, 1 for full, NaN where nothing was heard."""
        if not self._at or time >= self._at[-1] + self._width:
            if len(self._at) == STRIP_COLUMNS:
                self._merge()
            if not self._at or time >= self._at[-1] + self._width:
                self._at.append(time)
        known = ~np.isnan(shares) & (ranks < self.world)
        cells = np.minimum(np.rint(shares[known] * FULL_CELL), HIGHEST).astype(np.int16)
        np.maximum.at(self._cells[len(self._at) - 1], ranks[known] // self._size, cells)

    def shown(self) -> RankStrip:
        """Return it as it stands."""
        cells = self._cells[: len(self._at)]
        first = tuple(range(0, self.world, self._size))
        plain = np.where(cells < 0, SILENT_CELL, cells).astype(np.uint8)
        return RankStrip(first, tuple(self._at), plain.tobytes())

    def _merge(self) -> None:
        half = STRIP_COLUMNS // 2
        merged = self._cells.reshape(half, 2, -1).max(axis=1)
        self._cells[:half], self._cells[half:] = merged, -1
        self._at = self._at[::2]
        self._width *= 2
