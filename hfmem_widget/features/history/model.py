"""The nouns of the history: a run of a watched cell as a small row, and all of them together."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hfmem_widget.display import Shown
from hfmem_widget.session import Certainty, Peak
from hfmem_widget.session.model import NOT_AVAILABLE, data_frame
from hfmem_widget.text import format_counted, wrong_value

if TYPE_CHECKING:
    import pandas as pd

UNLABELLED = "cell "
"""How the identity of a cell without a label begins."""

COLUMNS = (
    *("cell", "name", "kind", "run", "kernel", "outcome", "started", "duration", "device"),
    *("peak", "certainty", "left_behind", "before", "after", "findings"),
)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one run did to one device: what was allocated before and after it, and its peak. Bytes."""

    key: str
    before: float
    after: float
    peak: float
    certainty: Certainty

    @property
    def left_behind(self) -> float:
        """Allocated at the end less allocated at the start."""
        return self.after - self.before

    @property
    def known_peak(self) -> Peak:
        """The peak, with how it is known."""
        return Peak(self.peak, self.certainty)


@dataclass(frozen=True, slots=True)
class CellRun:
    """One run of a watched cell or block."""

    kernel: str  # the process it ran in; the same for all its runs there
    number: int | None  # the cell's; None outside a notebook
    name: str  # its label, or the first line of its code
    identity: str  # the same for all runs of this cell, or of this label
    kind: str  # "cell" or "block"
    outcome: str  # "done", "interrupted", or "raised TypeName"
    started_at: float  # seconds since the epoch
    duration: float  # seconds
    devices: tuple[DeviceUse, ...]
    """Those that moved by a MiB or more; if none did, the one with the highest peak."""
    findings: tuple[tuple[str, str], ...] = ()  # the kind and the sentence of each
    worst_rank: int | None = None
    """Where it started the ranks of a run, which had the highest peak; the device is then ``ranks``."""

    @property
    def is_code(self) -> bool:
        """Whether its name is a line of code."""
        return self.identity.startswith(UNLABELLED)

    def on(self, device: str) -> DeviceUse | None:
        """Return what it did to a device; None if it left that alone."""
        return next((use for use in self.devices if use.key == device), None)

    @property
    def peak(self) -> float:
        """The highest peak of its devices."""
        return max((use.peak for use in self.devices), default=NOT_AVAILABLE)

    @property
    def left_behind(self) -> float:
        """What it left behind on all devices together."""
        return sum(use.left_behind for use in self.devices)


@dataclass(frozen=True, slots=True)
class Drift:
    """How the runs of one cell moved on one device, without the first: that may leave what stays for good."""

    runs: int  # how many there were in the newest kernel, the first included
    peak: float  # bytes by which it rose from run to run, on average
    left_behind: float  # bytes, on average


def drift(runs: Sequence[CellRun], device: str) -> Drift | None:
    """Return how runs of a cell moved on a device; None of fewer than two in the newest kernel.

    Only runs that came to their end and moved the device are compared.
    """
    newest = [run for run in runs if run.outcome == "done" and run.kernel == runs[-1].kernel]
    used = [use for run in newest if (use := run.on(device)) is not None]
    if len(used) < 2:
        return None
    later = used[1:] if len(used) > 2 else used
    rise = (later[-1].peak - later[0].peak) / (len(later) - 1)
    left = [use.left_behind for use in used[1:]]
    return Drift(len(used), rise, sum(left) / len(left))


_KEYS: Mapping[str, Callable[[CellRun], float]] = {
    "cell": lambda _run: 0.0,
    "peak": lambda run: run.peak,
    "left": lambda run: run.left_behind,
    "time": lambda run: run.duration,
}
SORTS = tuple(_KEYS)


@dataclass(frozen=True, slots=True)
class CellHistory(Shown):
    """The watched cells and blocks of this kernel, the runs of each together.

    Attributes
    ----------
    runs : tuple of CellRun
        In the order in which they ended.
    kernel : str
        This one's.
    forgotten : int
        Older runs that are not listed any more.
    file : str
        Where they are kept, if anywhere.
    sort : {"cell", "peak", "left", "time"}
        The order in which cells are listed: as they ran last; or by the figures of their newest run, highest
        first.
    last : int or None
        How many cells are listed, those that ran last; None for all.
    each_run : bool
        Whether each run is listed, and not only the newest of a cell.
    """

    runs: tuple[CellRun, ...]
    kernel: str = ""
    forgotten: int = 0
    file: str = ""
    sort: str = "cell"
    last: int | None = None
    each_run: bool = False

    _shown_by: ClassVar[str] = "hfmem_widget.features.history.html:history_bundle"

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise wrong_value(self.sort, "sort", f"{', '.join(SORTS[:-1])} or {SORTS[-1]}")
        last = self.last
        if last is not None and not (type(last) is int and last > 0):
            raise wrong_value(last, "last", "a number of cells, 1 or more")

    def __repr__(self) -> str:
        counts = format_counted(len(self.cells), "cell"), format_counted(len(self.runs), "run")
        return f"<CellHistory: {', '.join(counts)}>"

    @property
    def cells(self) -> tuple[tuple[CellRun, ...], ...]:
        """The runs of each cell that is listed, oldest first, in the order asked for."""
        by_cell: dict[str, list[CellRun]] = {}
        for run in self.runs:
            # Taken out and put in again, so that the one that ran last comes last.
            by_cell[run.identity] = [*by_cell.pop(run.identity, []), run]
        cells = [tuple(runs) for runs in by_cell.values()][-(self.last or 0) :]
        figures = (_KEYS[self.sort](runs[-1]) for runs in cells)
        # An unknown figure is NaN, which compares with nothing: it comes last.
        keys = [math.inf if math.isnan(figure) else -figure for figure in figures]
        return tuple(runs for _, runs in sorted(zip(keys, cells, strict=True), key=itemgetter(0)))

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each run and device that moved; sizes are in bytes."""
        return data_frame(list(self._rows()), COLUMNS)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table of `to_pandas` to a new file that ends in ``.csv``, and return where it is.

        Raises
        ------
        OptionError
            If something is there already, the ending is another one, or the file cannot be written.
        """
        from hfmem_widget.recording.file import write_new

        place = Path(path).expanduser()
        if place.suffix != ".csv":
            raise wrong_value(place.name, "path", "a name that ends in .csv")
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerows((COLUMNS, *self._rows()))
        write_new(place, [table.getvalue().encode()])
        return place

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for runs in self.cells:
            for number, run in enumerate(runs, 1):
                findings = " ".join(sentence for _, sentence in run.findings)
                start = run.number, run.name, run.kind, number, run.kernel, run.outcome
                for use in run.devices:
                    sizes = use.peak, use.certainty, use.left_behind, use.before, use.after
                    yield (*start, run.started_at, run.duration, use.key, *sizes, findings)
