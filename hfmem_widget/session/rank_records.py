"""The ranks of a distributed run: the identity of one, and the state of all at one moment."""

from dataclasses import dataclass
from typing import Literal

from hfmem_widget.session.model import NOT_AVAILABLE, Certainty, SpanKind

SHOWN_SINGLY = 8
"""The most ranks that are drawn one by one; in a larger world these are the worst."""

STRIP_ROWS, STRIP_COLUMNS = 64, 240
"""The most rows and columns of a strip."""

FULL_CELL, SILENT_CELL = 200, 255
"""The values of a cell for a full device, and for a rank that sent no data."""

TABLE_ROWS = 16
"""The most rows of the table of ranks."""

Flag = Literal["", "outlier", "behind", "silent", "lost", "oom"]


@dataclass(frozen=True, slots=True)
class Rank:
    """The identity of a process in a distributed run."""

    rank: int  # its number among all ranks
    local: int = 0  # its number on its host
    world: int = 1  # number of ranks
    attempt: int = 0  # number of restarts by the launcher
    host: str = ""
    pid: int = 0
    engine: str = ""  # its launcher, such as "torchrun" or "Slurm"


@dataclass(frozen=True, slots=True)
class RankRow:
    """The state of one rank: bytes of its busiest device, NaN where a figure is not available."""

    rank: int
    attempt: int = 0
    host: str = ""
    device: str = ""  # the device's name, such as "NVIDIA H200"
    total: float = NOT_AVAILABLE  # the device's capacity
    peak: float = NOT_AVAILABLE  # the highest so far
    certainty: Certainty = "sampled"
    allocated: float = NOT_AVAILABLE  # now, like weights; activations are those at the peak
    weights: float = NOT_AVAILABLE
    activations: float = NOT_AVAILABLE
    step: int = 0  # the newest finished step; 0 before the first
    phase: str = ""  # the phase that runs, or that of the peak
    silent: float = 0.0  # seconds since its last message; 0 if it is on time or has ended
    flag: Flag = ""  # the reason to look at it


@dataclass(frozen=True, slots=True)
class PhaseSkew:
    """Peaks of one phase over the last steps, in bytes: the lowest, the median and the highest rank's."""

    kind: SpanKind
    low: float
    median: float
    high: float
    rank: int


@dataclass(frozen=True, slots=True)
class RankStrip:
    """The fill of each rank's device over time."""

    first: tuple[int, ...] = ()  # the first rank of each row; a row of several has the highest
    at: tuple[float, ...] = ()  # seconds at which each column begins
    cells: bytes = b""
    """Column by column, ``len(at) * len(first)``: 0 to 250 stands for 0 to 125 % of the device; or
    `SILENT_CELL`."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The state of all ranks of a run at one moment."""

    world: int  # expected number of ranks
    nodes: int = 1  # number of hosts seen
    reporting: int = 0  # number of ranks that sent data lately or have ended
    engine: str = ""
    shown: tuple[int, ...] = ()
    """The ranks that are drawn one by one, each a device ``rank:N`` of the overview."""
    lowest: float = NOT_AVAILABLE  # of the ranks' peaks, in bytes, like the median
    median: float = NOT_AVAILABLE
    lowest_rank: int = 0
    table: tuple[RankRow, ...] = ()
    """At most `TABLE_ROWS`: the worst first, then the lowest and those with a flag."""
    phases: tuple[PhaseSkew, ...] = ()
    strip: RankStrip = RankStrip()

    @property
    def worst(self) -> RankRow | None:
        """The rank with the highest peak; None before any is known."""
        return self.table[0] if self.table else None
