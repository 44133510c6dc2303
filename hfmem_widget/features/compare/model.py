"""Comparisons as data: figures over several runs, differences, cells side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from hfmem_widget.analysis.record import DeviceRecord, Floats, Record
from hfmem_widget.display import Shown
from hfmem_widget.session import Certainty
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.stacks import LivePeak
from hfmem_widget.session.steps import PHASES

if TYPE_CHECKING:
    import pandas as pd

By = Literal["step", "time"]

Places = Literal["line", "module"]

MOST_PERCENT = 999

RANKS = "ranks"
"""The device of all ranks that a cell has started."""

OF_RANKS = ("median", "lowest", *PHASES)
"""Figures that only that device has."""


def _of_ranks(name: str, record: Record, device: DeviceRecord) -> float:
    return record.ranks.get(name, NOT_AVAILABLE) if device.key == RANKS else NOT_AVAILABLE


FIGURES: Mapping[str, Callable[[Record, DeviceRecord], float]] = {
    # Of ranks, the highest at the start need not be the worst.
    "above_start": lambda _, device: device.above_start if device.key != RANKS else NOT_AVAILABLE,
    "peak": lambda _, device: device.peak.value,
    "left_behind": lambda _, device: device.left_behind,
    "reserved_peak": lambda _, device: device.reserved_peak,
    "headroom": lambda _, device: device.headroom,
    "steps_per_second": lambda record, _: record.pace.steps_per_second,
    "samples_per_second": lambda record, _: record.pace.samples_per_second,
    "tokens_per_second": lambda record, _: record.pace.tokens_per_second,
    "duration": lambda record, _: record.duration,
    **{name: partial(_of_ranks, name) for name in OF_RANKS},
}
"""What is compared; memory in bytes, durations in seconds. Of ranks, `peak` is the worst one's, `median` and
`lowest` are of the ranks' peaks, and a phase's is the highest rank's."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, lowest and highest of a figure over the runs in which it is known, and their number."""

    middle: float = NOT_AVAILABLE
    low: float = NOT_AVAILABLE
    high: float = NOT_AVAILABLE
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure minus the baseline's, and in percent of it; NaN where unknown or meaningless."""

    value: float
    percent: float


@dataclass(frozen=True, slots=True, eq=False)
class AlignedLine:
    """One or several runs of a cell as one line: arrays of shape (n,), in bytes; NaN breaks it."""

    at: Floats  # step numbers, or seconds since the cell began
    middle: Floats  # the median of the runs
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Change:
    """What a line or module held at the peak of two cells, in bytes."""

    name: str  # as it is called in the later one, if it is there
    before: int = 0
    after: int = 0
    source: str = ""  # the text of the line; empty if it is not known
    function: str = ""  # the one that it is in; so is this
    was: str = ""  # its text in the baseline, where that is another

    @property
    def bytes(self) -> int:
        """How much more it held; less than zero if less."""
        return self.after - self.before


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """A cell among those compared."""

    name: str  # plain text
    records: tuple[Record, ...]  # its runs, the newest last
    figures: Mapping[str, Figure]  # for each of `FIGURES`
    certainty: Certainty  # how the peak is known in all runs
    at_peak: Mapping[str, float]  # bytes by part, in the run with the median peak
    at_start: Mapping[str, float]  # when that run began
    at_end: Mapping[str, float]
    made: Mapping[str, float]  # at most, of the activations at the peak
    line: AlignedLine | None = None  # None if there is nothing to draw
    live: LivePeak | None = None  # of that run; None if it has no stacks
    changes: tuple[Change, ...] | None = None
    """What is new, has grown or is gone at its peak, largest first; None where that is not compared."""

    @property
    def runs(self) -> int:
        """The number of its runs."""
        return len(self.records)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Shown):
    """Watched cells side by side; shows itself in a notebook.

    Attributes
    ----------
    cells : tuple of Compared
    baseline : int
        The index of the cell that the others are compared with.
    device, device_name : str
        The device whose memory is compared.
    allocated_label, reserved_label : str
        The names of these series on the device.
    by : {"step", "time"}
        What the lines are aligned by.
    steps_a_point : int
        The number of steps that a point covers.
    notes : tuple of str
        Plain sentences.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.compare.html:whole_bundle"

    cells: tuple[Compared, ...]
    baseline: int
    device: str
    device_name: str
    allocated_label: str
    reserved_label: str
    by: By
    steps_a_point: int = 1
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(repr(cell.name) for cell in self.cells)
        return f"<Comparison of {names} on {self.device}>"

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def difference(self, cell: Compared, figure: str, least: float = 0.0) -> Difference:
        """Return the difference of a cell's median of one of `FIGURES` to the baseline's."""
        baseline = self.cells[self.baseline]
        return difference(cell.figures[figure].middle, baseline.figures[figure].middle, least)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each cell: medians, ranges and differences; bytes, seconds, and per second."""
        import pandas as pd

        index = pd.Index([cell.name for cell in self.cells], name="cell")
        return pd.DataFrame(map(self._row, self.cells), index=index)

    def _row(self, cell: Compared) -> dict[str, object]:
        row: dict[str, object] = {"device": self.device, "runs": cell.runs}
        for name, figure in cell.figures.items():
            if name in OF_RANKS and self.device != RANKS:
                continue
            row[name] = figure.middle
            row[f"{name}/lowest"], row[f"{name}/highest"] = figure.low, figure.high
            row[f"{name}/difference"] = self.difference(cell, name).value
        row["peak/certainty"] = cell.certainty
        for moment, parts in (("at_peak", cell.at_peak), ("at_end", cell.at_end)):
            row |= {f"{moment}/{part}": value for part, value in parts.items()}
        return row


def difference(value: float, baseline: float, least: float = 0.0) -> Difference:
    """Return the difference of a value to the baseline; in percent only of more than the `least`."""
    change = value - baseline
    percent = 100 * change / baseline if baseline > least else NOT_AVAILABLE
    return Difference(change, percent if abs(percent) <= MOST_PERCENT else NOT_AVAILABLE)
