"""Rows of figures that are entered in blocks: numpy takes as long for one as for many."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.session.model import Growing

BLOCK = 64
"""Rows that wait at most."""


class GrowingTable(Growing):
    """A table that grows; readers call `_settle` first. A copy, also by `pickle`, is what was there then."""

    def __init__(self) -> None:
        self._new: list[Sequence[float]] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: copy(value) for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.replace_lock()

    def replace_lock(self) -> None:
        """Make a new lock: in a forked child, the thread that held the old one does not exist."""
        self._lock = threading.Lock()

    def _wait(self, row: Sequence[float]) -> None:
        with self._lock:
            self._new.append(row)
        if len(self._new) >= BLOCK:
            self._settle()

    def _settle(self) -> None:
        """Enter the rows that wait."""
        with self._lock:
            self._enter_waiting()

    def _enter_waiting(self) -> None:
        """Enter the rows that wait, with the lock held."""
        if self._new:
            # In this order: where there is no memory for more rows, they wait.
            self._enter(np.array(self._new))
            self._new.clear()

    def _enter(self, block: NDArray[np.float64]) -> None:
        """Enter rows, with the lock held."""
        raise NotImplementedError
