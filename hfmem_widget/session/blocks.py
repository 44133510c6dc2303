"""Tables of figures whose new rows are added in blocks: numpy takes as long for one row as for many."""

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
    """A table that grows; its readers call `_settle` first. A copy, also by `pickle`, grows no further."""

    def __init__(self) -> None:
        self._new: list[Sequence[float]] = []
        self.replace_lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: copy(value) for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.replace_lock()

    def replace_lock(self) -> None:
        """Make a new lock: in a forked child, the thread that held the old one does not exist."""
        self._lock = threading.RLock()

    def _wait(self, row: Sequence[float]) -> None:
        with self._lock:
            self._new.append(row)
        if len(self._new) >= BLOCK:
            self._settle()

    def _settle(self) -> None:
        with self._lock:
            if self._new:
                # In this order: where there is no memory for more rows, they wait.
                self._enter(np.array(self._new))
                self._new.clear()

    def _enter(self, block: NDArray[np.float64]) -> None:
        raise NotImplementedError
