"""What is kept of a watched cell or block once its session is gone: figures, parts, steps and a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING, SpanCost
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.stacks import LivePeak

Floats = NDArray[np.floating]

UNLABELLED = "cell "
"""How the identity of a cell without a label begins."""

MOST_POINTS = 400
"""Points of a curve at most."""

MOST_STEP_ROWS = 300
"""Rows of a table of steps at most; of more, neighbours are merged."""

STEP_COLUMNS = ("first", "last", "lowest", "highest", "worst")
"""The columns of `DeviceRecord.steps`."""


NO_POINTS: Floats = np.empty((2, 0), dtype=np.float32)
NO_STEPS: Floats = np.empty((0, len(STEP_COLUMNS)))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceRecord(SpanCost):
    """What one watched cell did to one device. Bytes; NaN where not known."""

    key: str = ""
    name: str = ""
    at_peak: Mapping[str, float] = field(default_factory=dict)
    at_end: Mapping[str, float] = field(default_factory=dict)
    """The parts then, by name; empty where no tensors of models or optimizers were found."""
    made: Mapping[str, float] = field(default_factory=dict)
    """What may be among the activations at the peak, as in `Anatomy`."""
    at_start: Mapping[str, float] = field(default_factory=dict)
    """What tensors were for then, as far as it was known."""
    curve: Floats = field(default_factory=lambda: NO_POINTS)
    """Seconds since the cell began, and allocated, of shape (2, at most `MOST_POINTS`); none where there are
    too few samples. NaN breaks it."""
    steps: Floats = field(default_factory=lambda: NO_STEPS)
    """At most `MOST_STEP_ROWS` rows, for one step or for neighbours, with `STEP_COLUMNS`: the first and the
    last of them, counted on where the numbers begin anew; the lowest and the highest of their peaks, and
    which has the highest."""
    live: LivePeak | None = None
    """What was live at the peak, without its course; None where no stacks were recorded."""


UNUSED = DeviceRecord()
"""What a cell did to a device that it did not use."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How quick the steps of a cell were, the first one (which warms up) left out where it stands alone.

    Rates are within steps: what lies between them, such as evaluations, is not counted. Tokens include
    padding. NaN if unknown.
    """

    steps: int = 0  # the first included
    steps_per_second: float = NOT_AVAILABLE
    samples_per_second: float = NOT_AVAILABLE
    tokens_per_second: float = NOT_AVAILABLE


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Record:
    """One run of a watched cell, or of a watched block."""

    label: str = ""  # the user's name for it; empty if there is none
    title: str = ""  # its name without that: its first line, or such as "cell [7]"
    identity: str  # the same for all runs of this cell, or of this label
    kind: str = "cell"  # or "block"
    number: int | None = None  # the cell's; None outside a notebook
    outcome: str = "done"  # or "interrupted", or "raised TypeName"
    started_at: float = 0.0  # seconds since the epoch
    duration: float  # seconds
    # Those on which anything was allocated; of the ranks of a run "ranks", and each that is shown by itself.
    devices: tuple[DeviceRecord, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()  # the kind and the sentence of each
    pace: Pace = Pace()
    # Of these ranks the "median" and the "lowest" peak, and the highest of each phase, in bytes.
    ranks: Mapping[str, float] = field(default_factory=dict)
    worst_rank: int | None = None  # which of them had the highest peak
    software: Mapping[str, str] = field(default_factory=dict)  # versions, by name

    @property
    def name(self) -> str:
        """What to call it."""
        return self.label or self.title

    @property
    def is_code(self) -> bool:
        """Whether its name is a line of code."""
        return not self.label and self.identity.startswith(UNLABELLED)

    @property
    def moved(self) -> tuple[DeviceRecord, ...]:
        """The devices that it changed, or else the one with the highest peak; of ranks that of them all."""
        if self.worst_rank is not None:
            return self.devices[:1]
        moved = tuple(
            device
            for device in self.devices
            if abs(device.left_behind) >= NEXT_TO_NOTHING or device.above_start >= NEXT_TO_NOTHING
        )
        return moved or tuple(sorted(self.devices, key=lambda device: device.peak.value)[-1:])

    @property
    def peak(self) -> float:
        """The highest peak of its devices."""
        return max((device.peak.value for device in self.moved), default=NOT_AVAILABLE)

    @property
    def left_behind(self) -> float:
        """What it left behind on all devices together."""
        return sum(device.left_behind for device in self.moved)

    @property
    def size(self) -> int:
        """Bytes of its curves, steps and live memory."""
        places = sum(len(device.live.sites) for device in self.devices if device.live)
        arrays = sum(device.curve.nbytes + device.steps.nbytes for device in self.devices)
        return arrays + 500 * places  # about

    def device(self, key: str) -> DeviceRecord | None:
        """Return the record of a device; None if the cell did not use it."""
        return next((device for device in self.devices if device.key == key), None)

    def without_curves(self) -> Record:
        """Return the same with figures alone."""
        bare = [replace(one, curve=NO_POINTS, steps=NO_STEPS, live=None) for one in self.devices]
        return replace(self, devices=tuple(bare))
