"""The nouns of comparing: figures over several runs, differences, cells side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.display import Shown
from hfmem_widget.features.compare.align import Line
from hfmem_widget.session import Certainty
from hfmem_widget.session.model import NOT_AVAILABLE

if TYPE_CHECKING:
    import pandas as pd

By = Literal["step", "time"]

MOST_PERCENT = 999

Of = Callable[[Record, DeviceRecord], float]

FIGURES: Mapping[str, Of] = MappingProxyType(
    {
        "peak": lambda _, device: device.peak.value,
        "left_behind": lambda _, device: device.left_behind,
        "reserved_peak": lambda _, device: device.reserved_peak,
        "headroom": lambda _, device: device.headroom,
        "steps_per_second": lambda record, _: record.pace.steps_per_second,
        "samples_per_second": lambda record, _: record.pace.samples_per_second,
        "tokens_per_second": lambda record, _: record.pace.tokens_per_second,
        "duration": lambda record, _: record.duration,
    }
)
"""What is compared; memory in bytes, durations in seconds."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure over the runs of a cell.

    Attributes
    ----------
    middle, low, high : float
        Median, lowest and highest of the runs in which it is known; NaN if in none.
    runs : int
        How many those are.
    """

    middle: float = NOT_AVAILABLE
    low: float = NOT_AVAILABLE
    high: float = NOT_AVAILABLE
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure less the baseline's; NaN where either is not known.

    Attributes
    ----------
    value : float
    percent : float
        Of the baseline's; NaN where that is not above zero, or where it would say nothing.
    """

    value: float
    percent: float


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """A cell among those compared.

    Attributes
    ----------
    name : str
        Plain text.
    records : tuple of Record
        Its runs, the newest last.
    figures : mapping of str to Figure
        For each of `FIGURES`.
    certainty : {"exact", "at least", "sampled"}
        How the peak is known in all of its runs.
    at_peak, at_end : mapping of str to float
        The parts by name, of the run whose peak is the median; empty where none were found.
    line : Line or None
        None where it has nothing to draw.
    """

    name: str
    records: tuple[Record, ...]
    figures: Mapping[str, Figure]
    certainty: Certainty
    at_peak: Mapping[str, float]
    at_end: Mapping[str, float]
    line: Line | None = None

    @property
    def runs(self) -> int:
        """How often it was run."""
        return len(self.records)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Shown):
    """Watched cells side by side; shows itself in a notebook.

    Attributes
    ----------
    cells : tuple of Compared
    baseline : int
        Which of them the others are compared with.
    device, device_name : str
        What memory this is about.
    allocated_label, reserved_label : str
        What the roles are called there.
    by : {"step", "time"}
        What the lines are aligned by.
    steps_a_point : int
        Of a line by step: of how many steps a point is the highest.
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

    def difference(self, cell: Compared, figure: str) -> Difference:
        """Return how far a cell's median of one of `FIGURES` is from the baseline's."""
        return difference(
            cell.figures[figure].middle, self.cells[self.baseline].figures[figure].middle
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each cell: medians, ranges and differences; bytes, seconds, and per second."""
        import pandas as pd

        names = [cell.name for cell in self.cells]
        return pd.DataFrame(
            [self._row(cell) for cell in self.cells], index=pd.Index(names, name="cell")
        )

    def _row(self, cell: Compared) -> dict[str, object]:
        row: dict[str, object] = {"device": self.device, "runs": cell.runs}
        for name, figure in cell.figures.items():
            row[name] = figure.middle
            row[f"{name}/lowest"], row[f"{name}/highest"] = figure.low, figure.high
            row[f"{name}/difference"] = self.difference(cell, name).value
        row["peak/certainty"] = cell.certainty
        for moment, parts in (("at_peak", cell.at_peak), ("at_end", cell.at_end)):
            row |= {f"{moment}/{part}": value for part, value in parts.items()}
        return row


def difference(value: float, baseline: float) -> Difference:
    """Return how far a value is from another."""
    change = value - baseline
    percent = 100 * change / baseline if baseline > 0 else NOT_AVAILABLE
    return Difference(change, percent if abs(percent) <= MOST_PERCENT else NOT_AVAILABLE)
