"""What is kept of a watched cell once its session is gone: figures, parts, steps and a coarse curve."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.analysis.facts import Figures
from hfmem_widget.session.model import NOT_AVAILABLE

Floats = NDArray[np.floating]

MOST_POINTS = 400
"""Of a curve."""

MOST_STEP_ROWS = 300
"""Of a table of steps; neighbours are kept together where there were more."""

STEP_COLUMNS = ("first", "last", "lowest", "highest", "worst")
"""Of `DeviceRecord.steps`."""


def no_points() -> Floats:
    """Return a curve of no points."""
    return np.empty((2, 0), dtype=np.float32)


def no_steps() -> Floats:
    """Return a table of no steps."""
    return np.empty((0, len(STEP_COLUMNS)))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceRecord(Figures):
    """What one watched cell did to one device. Bytes; NaN where not known.

    Attributes
    ----------
    key, name, total : str, str, float
        The device's, and its capacity.
    at_peak, at_end : mapping of str to float
        The parts then, by name; empty where no tensors of models or optimizers were found.
    worst_step, worst_tokens : int or None, float
        The number of the step with the highest peak, and the tokens of its largest batch.
    curve : array of shape (2, at most `MOST_POINTS`)
        Seconds since the cell began, and allocated; none where there are too few samples. NaN breaks it.
    steps : array of shape (at most `MOST_STEP_ROWS`, 5)
        A row for one step or for neighbours, with `STEP_COLUMNS`: the first and the last of them, counted on
        where the numbers begin anew; the lowest and the highest of their peaks, and which has the highest.
    """

    key: str = ""
    name: str = ""
    total: float = NOT_AVAILABLE
    at_peak: Mapping[str, float] = field(default_factory=dict)
    at_end: Mapping[str, float] = field(default_factory=dict)
    worst_step: int | None = None
    worst_tokens: float = NOT_AVAILABLE
    curve: Floats = field(default_factory=no_points)
    steps: Floats = field(default_factory=no_steps)

    @property
    def size(self) -> int:
        """Bytes that it takes, about; a test compares the constant with what Python takes."""
        return self.curve.nbytes + self.steps.nbytes + 3_000


UNUSED = DeviceRecord()
"""What a cell did to a device that it did not use."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How quick the steps of a cell were, the first one (which warms up) left out where it stands alone.

    Attributes
    ----------
    steps : int
        How many there were, the first included.
    steps_per_second, samples_per_second, tokens_per_second : float
        Within steps: what lies between them, such as evaluations, is not counted. Tokens include padding.
        NaN if unknown.
    """

    steps: int = 0
    steps_per_second: float = NOT_AVAILABLE
    samples_per_second: float = NOT_AVAILABLE
    tokens_per_second: float = NOT_AVAILABLE


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One run of a watched cell, or of a watched block.

    Attributes
    ----------
    label, title : str
        The user's name for it, empty if there is none, and its name without that, such as ``cell [7]``.
    number : int or None
        The cell's, of this run.
    run : int
        Which run of this label, or of this cell where it has none; from 1.
    identity : str
        The same for all its runs.
    started_at, duration : float
        Seconds since the epoch; seconds.
    outcome : str
        "done", "interrupted", or "raised TypeName".
    devices : tuple of DeviceRecord
        Those on which anything was allocated.
    """

    label: str
    title: str
    number: int | None
    run: int
    identity: str
    started_at: float
    duration: float
    outcome: str
    devices: tuple[DeviceRecord, ...]
    pace: Pace = Pace()

    @property
    def name(self) -> str:
        """What to call it."""
        return self.label or self.title

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return sys.getsizeof(self) + sum(device.size for device in self.devices)

    def device(self, key: str) -> DeviceRecord | None:
        """Return the record of a device; None if the cell did not use it."""
        return next((device for device in self.devices if device.key == key), None)
