"""What every reader of a recording does alike, whatever it keeps: lines from bytes, samples from blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from hfmem_widget.recording.check import Rows, StepsLine, require
from hfmem_widget.recording.limits import LONGEST_LINE, MOST_FIGURES
from hfmem_widget.session.steps import FIGURES, PER_DEVICE
from hfmem_widget.session.timeline import Floats


class LineReader:
    """The place in a stream of lines, and what the next line builds upon.

    Of the lines, so many were `dropped` because they could not be read, and so many `holes` are blocks of
    samples that are missing. The newest was written at `last_sign`, by the clock of whoever wrote it.
    """

    _longest: ClassVar[int] = LONGEST_LINE

    def __init__(self) -> None:
        self.dropped = self.holes = 0
        self.last_sign = -math.inf
        self._rest = b""
        self._skips = False
        self._values: Floats = np.empty(0)
        self._next_block = 0
        self._steps_of: tuple[str, ...] = ()

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines whose end is there now; one that is too long is counted, and not kept."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skips:
                self._skips = False
            elif line:
                yield line
        if len(self._rest) > self._longest:
            self.dropped += not self._skips
            self._rest, self._skips = b"", True

    def _note_block(self, block: int, wall: float) -> None:
        self.last_sign = max(self.last_sign, wall)
        self.holes += max(0, block - self._next_block)
        self._next_block = max(self._next_block, block + 1)

    def _widen(self, columns: int) -> None:
        """Make room for more columns, of which nothing is known yet."""
        self._values = np.concatenate([self._values, np.full(columns, np.nan)])

    def _samples(self, rows: Rows) -> tuple[Floats, Floats] | None:
        """Return the times and all columns of a block; None where it has nothing to read.

        Raises `ValueError` if it cannot be read.
        """
        samples, width = len(rows.times), len(self._values)
        # Nobody writes a block of so many figures.
        is_too_large = samples > 1 and samples * width > MOST_FIGURES
        is_fine = not is_too_large and max(rows.columns, default=-1) < width
        require(is_fine, "a block of other columns")
        table = rows.table() if samples else None
        self._note_block(rows.block, rows.wall)
        if table is None:
            return None
        time, values = table
        block = np.tile(self._values, (samples, 1))
        block[:, rows.columns] = values
        self._values = block[-1].copy()
        return time, block

    def _note_devices(self, line: StepsLine) -> None:
        """Note what devices steps are of: those that are known, or more; raise `ValueError` if of others."""
        devices = self._steps_of if line.devices is None else tuple(line.devices)
        width = len(FIGURES) + len(devices) * len(PER_DEVICE)
        is_known = devices[: len(self._steps_of)] == self._steps_of
        require(is_known and (not line.rows or len(line.rows[0]) == width), "steps of others")
        self._steps_of = devices
