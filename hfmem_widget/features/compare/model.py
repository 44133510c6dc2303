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
from hfmem_widget.session.steps import PHASES

if TYPE_CHECKING:
    import pandas as pd

By = Literal["step", "time"]
Places = Literal["line", "module"]

MOST_PERCENT = 999
RANKS = "ranks"  # the key of the device that stands for all ranks of a cell
OF_RANKS = ("median", "lowest", *PHASES)  # figures that only this device has


def _of_ranks(name: str, record: Record, device: DeviceRecord) -> float:
    return record.ranks.get(name, NOT_AVAILABLE) if device.key == RANKS else NOT_AVAILABLE


FIGURES: Mapping[str, Callable[[Record, DeviceRecord], float]] = {
    # The rank that is highest at the start may not be the one with the highest peak.
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
"""The figures by name: memory in bytes, durations in seconds. For ranks, `peak` is their highest peak,
`median` and `lowest` are of all their peaks, and a phase has the value of the highest rank."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, lowest and highest value of a figure, and the number of runs in which it is known."""

    middle: float = NOT_AVAILABLE
    low: float = NOT_AVAILABLE
    high: float = NOT_AVAILABLE
    runs: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AlignedLine:
    """One or several runs of a cell as one line: arrays of shape (n,), in bytes; the line breaks at NaN."""

    at: Floats  # step numbers, or seconds since the cell began
    middle: Floats  # the median of the runs
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Change:
    """The bytes of a line or module at the peaks of two cells."""

    name: str  # in the second cell if it has the line or module, else in the baseline
    before: int = 0
    after: int = 0
    source: str = ""  # the text of the line; empty if unknown
    function: str = ""  # the function that contains the line; empty if unknown
    was: str = ""  # the text in the baseline, if it differs

    @property
    def bytes(self) -> int:
        """The difference; negative if the second cell has fewer."""
        return self.after - self.before


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """One of the compared cells."""

    name: str  # plain text
    records: tuple[Record, ...]  # its runs, the newest last
    figures: Mapping[str, Figure]  # for each of `FIGURES`
    certainty: Certainty  # the weakest of all runs' peaks
    usual: DeviceRecord  # of the run with the median peak: its parts add up to it
    line: AlignedLine | None = None  # None if there is nothing to draw
    changes: tuple[Change, ...] | None = None  # since the baseline, largest first, if compared

    @property
    def runs(self) -> int:
        """The number of runs."""
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

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each cell: medians, ranges and differences; bytes, seconds, and per second."""
        import pandas as pd

        index = pd.Index([cell.name for cell in self.cells], name="cell")
        return pd.DataFrame(map(self._row, self.cells), index=index)

    def _row(self, cell: Compared) -> dict[str, object]:
        row: dict[str, object] = {"device": self.device, "runs": cell.runs}
        baseline = self.cells[self.baseline].figures
        for name, figure in cell.figures.items():
            if name in OF_RANKS and self.device != RANKS:
                continue
            row[name] = figure.middle
            row[f"{name}/lowest"], row[f"{name}/highest"] = figure.low, figure.high
            row[f"{name}/difference"] = figure.middle - baseline[name].middle
        row["peak/certainty"] = cell.certainty
        for moment, parts in (("at_peak", cell.usual.at_peak), ("at_end", cell.usual.at_end)):
            row |= {f"{moment}/{part}": value for part, value in parts.items()}
        return row


def percent_of(value: float, baseline: float, least: float = 0.0) -> float:
    """Return the difference to a baseline in percent; NaN across zero, or from `least` or less."""
    percent = (
        100 * (value - baseline) / baseline if baseline > least and value >= 0 else NOT_AVAILABLE
    )
    return percent if abs(percent) <= MOST_PERCENT else NOT_AVAILABLE
