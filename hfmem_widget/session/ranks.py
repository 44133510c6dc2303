"""The ranks of a distributed run: who one is, and how all of them stand at some moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hfmem_widget.session.model import NOT_AVAILABLE, Certainty, SpanKind

SHOWN_SINGLY = 8
"""Ranks that are drawn one by one; of a larger world those that were the worst."""

STRIP_ROWS, STRIP_COLUMNS = 64, 240
"""The most rows and columns of a strip."""

FULL_CELL, SILENT_CELL = 200, 255
"""What stands in a strip where a device is full, and where a rank said nothing."""

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
    """How one rank stands: bytes of its busiest device, NaN where a figure is not available.

    Attributes
    ----------
    rank, attempt : int
    host, device : str
        The device's name, such as "NVIDIA H200".
    total : float
        What the device has.
    peak : float
        The highest so far.
    certainty : str
    allocated, weights, activations : float
        Of now; of the peak where that is known.
    step : int
        The newest finished step; 0 before the first.
    phase : str
        What runs, or where the peak was.
    silent : float
        Seconds since it was heard of; 0 where that is as it should be, or it has ended.
    flag : str
        Why it is worth looking at.
    """

    rank: int
    attempt: int = 0
    host: str = ""
    device: str = ""
    total: float = NOT_AVAILABLE
    peak: float = NOT_AVAILABLE
    certainty: Certainty = "sampled"
    allocated: float = NOT_AVAILABLE
    weights: float = NOT_AVAILABLE
    activations: float = NOT_AVAILABLE
    step: int = 0
    phase: str = ""
    silent: float = 0.0
    flag: Flag = ""


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
    """How all ranks of a run stand at some moment.

    Attributes
    ----------
    world, nodes, reporting : int
        Ranks that there should be, hosts that were seen, and ranks that were heard of lately or have ended.
    engine : str
    shown : tuple of int
        The ranks that are drawn one by one, each a device ``rank:N`` of the overview.
    lowest, median : float
        Of the ranks' peaks, in bytes.
    lowest_rank : int
    table : tuple of RankRow
        At most `TABLE_ROWS`: the worst first, then the lowest and those that are worth looking at.
    phases : tuple of PhaseSkew
    strip : RankStrip
    """

    world: int
    nodes: int = 1
    reporting: int = 0
    engine: str = ""
    shown: tuple[int, ...] = ()
    lowest: float = NOT_AVAILABLE
    median: float = NOT_AVAILABLE
    lowest_rank: int = 0
    table: tuple[RankRow, ...] = ()
    phases: tuple[PhaseSkew, ...] = ()
    strip: RankStrip = RankStrip()

    @property
    def worst(self) -> RankRow | None:
        """The rank with the highest peak; None before any is known."""
        return self.table[0] if self.table else None
