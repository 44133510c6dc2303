"""The ranks of a distributed run: who one is, and how all of them stand at some moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hfmem_widget.session.model import NOT_AVAILABLE, Certainty, SpanKind

SHOWN_SINGLY = 8
"""Ranks that are drawn one by one; in a larger world the worst."""

STRIP_ROWS, STRIP_COLUMNS = 64, 240
"""The most rows and columns of a strip."""

FULL_CELL, SILENT_CELL = 200, 255
"""The cell of a full device, and that of a rank that sent no data."""

TABLE_ROWS = 16
"""The most rows of the table of ranks."""

Flag = Literal["", "outlier", "behind", "silent", "lost", "oom"]


@dataclass(frozen=True, slots=True)
class Rank:
    """Which process of a distributed run this is."""

    rank: int  # its number among all
    local: int = 0  # its number on its host
    world: int = 1  # how many there are
    attempt: int = 0  # how often the launcher has restarted it
    host: str = ""
    pid: int = 0
    engine: str = ""  # what started it, such as "torchrun" or "Slurm"


@dataclass(frozen=True, slots=True)
class RankRow:
    """How one rank stands: bytes of its busiest device, NaN where a figure is not available."""

    rank: int
    attempt: int = 0
    host: str = ""
    device: str = ""  # the device's name, such as "NVIDIA H200"
    total: float = NOT_AVAILABLE  # what the device has
    peak: float = NOT_AVAILABLE  # the highest so far
    certainty: Certainty = "sampled"
    allocated: float = NOT_AVAILABLE  # now, as are weights; activations are those of the peak
    weights: float = NOT_AVAILABLE
    activations: float = NOT_AVAILABLE
    step: int = 0  # the newest finished one; 0 before the first
    phase: str = ""  # what runs, or where the peak was
    silent: float = 0.0  # seconds since it was heard of; 0 where all is well, or it has ended
    flag: Flag = ""  # why it is worth looking at


@dataclass(frozen=True, slots=True)
class PhaseSkew:
    """Peaks of one phase, in bytes: the lowest, the median and the highest rank's over the last steps."""

    kind: SpanKind
    low: float
    median: float
    high: float
    rank: int


@dataclass(frozen=True, slots=True)
class RankStrip:
    """Ranks by time: how full each device was."""

    first: tuple[int, ...] = ()  # the first rank of each row; a row of several has their highest
    at: tuple[float, ...] = ()  # seconds at which each column begins
    cells: bytes = b""
    """Column by column, ``len(at) * len(first)``: 0 to 250 stands for 0 to 125 % of the device; or
    `SILENT_CELL`."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """How all ranks of a run stand at some moment."""

    world: int  # ranks that there should be
    nodes: int = 1  # hosts that were seen
    reporting: int = 0  # ranks that were heard of lately or have ended
    engine: str = ""
    shown: tuple[int, ...] = ()
    """The ranks that are drawn one by one, each a device ``rank:N`` of the overview."""
    lowest: float = NOT_AVAILABLE  # of the ranks' peaks, in bytes, as is the median
    median: float = NOT_AVAILABLE
    lowest_rank: int = 0
    table: tuple[RankRow, ...] = ()
    """At most `TABLE_ROWS`: the worst first, then the lowest and those that are worth looking at."""
    phases: tuple[PhaseSkew, ...] = ()
    strip: RankStrip = RankStrip()

    @property
    def worst(self) -> RankRow | None:
        """The rank with the highest peak; None before any is known."""
        return self.table[0] if self.table else None
