"""What every reader of a recording does alike, whatever it keeps: lines from bytes, samples from blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from hfmem_widget.recording.check import Rows, StepsLine
from hfmem_widget.recording.limits import LONGEST_LINE, MOST_FIGURES
from hfmem_widget.session.steps import FIGURES, PER_DEVICE
from hfmem_widget.session.timeline import Floats


class LineReader:
    """The place in a stream of lines, and what the next line builds upon.

    Of the lines, so many were `dropped` because they could not be read, and so many `holes` are blocks of
    samples that are missing. The newest was written at `last_sign`, by the clock of whoever wrote it.
    """

    __slots__ = (
        "_next_block", "_rest", "_skips", "_steps_of", "_values", "dropped", "holes", "last_sign",
    )  # fmt: skip

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

    def _samples(self, rows: Rows) -> Floats | None:
        """Return all columns of a block, shape ``(samples, columns)``; None where it has nothing to read."""
        samples, width = len(rows.time), len(self._values)
        # Nobody writes a block of so many figures.
        is_too_large = samples > 1 and samples * width > MOST_FIGURES
        if is_too_large or any(column >= width for column in rows.columns):
            self.dropped += 1
            return None
        self._note_block(rows.block, rows.wall)
        if not samples:
            return None
        block = np.tile(self._values, (samples, 1))
        block[:, rows.columns] = rows.values
        self._values = block[-1].copy()
        return block

    def _takes_steps(self, line: StepsLine) -> bool:
        """Return whether steps are of the devices that are known, or of more."""
        devices = self._steps_of if line.devices is None else line.devices
        width = len(FIGURES) + len(devices) * len(PER_DEVICE)
        if devices[: len(self._steps_of)] != self._steps_of or (
            line.rows and len(line.rows[0]) != width
        ):
            self.dropped += 1
            return False
        self._steps_of = devices
        return True
