"""``hfmem_widget.history``: the watched cells of this process, the runs of each together."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.analysis.record import Record
from hfmem_widget.display import Shown
from hfmem_widget.options import path_of
from hfmem_widget.session.model import NOT_AVAILABLE, data_frame
from hfmem_widget.text import for_csv, format_counted, wrong_value

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("cell", "name", "kind", "run", "outcome", "started", "duration", "device"),
    *("peak", "certainty", "left_behind", "before", "after", "findings"),
)

LEAST_RISES = 3  # of a sampled peak
EVEN = 0.5  # ratio of the smallest to the largest of these rises, at least


@dataclass(frozen=True, slots=True)
class Drift:
    """The change over the runs of a cell on a device, without the first, which may leave lasting memory."""

    peak: float  # mean rise in bytes from run to run; NaN if samples do not show it
    left_behind: float  # mean bytes left by a run


def drift(runs: Sequence[Record], device: str) -> Drift | None:
    """Return the drift over the completed runs of a cell that changed a device; None for fewer than two."""
    ended = [run for run in runs if run.outcome == "done"]
    used = [use for run in ended for use in run.moved if use.key == device]
    if len(used) < 2:
        return None
    later = used[1:] if len(used) > 2 else used
    rises = [now.peak.value - before.peak.value for before, now in pairwise(later)]
    rise = sum(rises) / len(rises)
    if any(use.peak.certainty != "exact" for use in later):
        # Samples meet a peak only by chance, so all rises must be of similar size.
        low, high = min(rises), max(rises)
        is_even = low * high > 0 and max(low / high, high / low) <= 1 / EVEN
        rise = rise if is_even and len(rises) >= LEAST_RISES else NOT_AVAILABLE
    left = [use.left_behind for use in used[1:]]
    return Drift(rise, sum(left) / len(left))


_KEYS: Mapping[str, Callable[[Record], float]] = {
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
    runs : tuple of Record
        In the order in which they ended.
    forgotten : int
        The number of older runs that are no longer kept.
    sort : {"cell", "peak", "left", "time"}
        The order of the cells: as they ran last; or by the figures of their newest run, highest first.
    last : int or None
        The number of cells that are listed, those that ran last; None for all.
    each_run : bool
        Whether each run is listed, and not only the newest of a cell.
    """

    runs: tuple[Record, ...]
    forgotten: int = 0
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
    def cells(self) -> tuple[tuple[Record, ...], ...]:
        """The runs of each cell that is listed, oldest first, in the order asked for."""
        by_cell: dict[str, list[Record]] = {}
        for run in self.runs:
            # Removed and inserted again, so that the cell that ran last comes last.
            by_cell[run.identity] = [*by_cell.pop(run.identity, []), run]
        cells = [tuple(runs) for runs in by_cell.values()][-(self.last or 0) :]
        figures = (_KEYS[self.sort](runs[-1]) for runs in cells)
        # An unknown figure is NaN, which cannot be compared: it comes last.
        keys = [math.inf if math.isnan(figure) else -figure for figure in figures]
        return tuple(runs for _, runs in sorted(zip(keys, cells, strict=True), key=itemgetter(0)))

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each run and device that moved; sizes are in bytes."""
        return data_frame(list(self._rows()), COLUMNS)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table of `to_pandas` to a new file that ends in ``.csv``, and return its path.

        Raises
        ------
        OptionError
            If the file exists, its name has another ending, or it cannot be written.
        """
        from hfmem_widget.recording.file import write_new

        file = path_of(path)
        if file.suffix != ".csv":
            raise wrong_value(file.name, "path", "a name that ends in .csv")
        table = io.StringIO()
        csv.writer(table).writerows(map(for_csv, row) for row in (COLUMNS, *self._rows()))
        write_new(file, [table.getvalue().encode()])
        return file

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for runs in self.cells:
            for number, run in enumerate(runs, 1):
                findings = " ".join(sentence for _, sentence in run.findings)
                start = run.number, run.name, run.kind, number, run.outcome
                for use in run.moved:
                    peak = use.peak.value, use.peak.certainty
                    sizes = *peak, use.left_behind, use.before, use.after
                    yield (*start, run.started_at, run.duration, use.key, *sizes, findings)


def history(*, sort: str = "cell", last: int | None = None, each_run: bool = False) -> CellHistory:
    """Return every cell, block and training that was watched in this process so far.

    Parameters
    ----------
    sort : {"cell", "peak", "left", "time"}, optional
        The order of the cells: as they ran last; or by the newest run's peak, by what it left behind, or by
        its duration, highest first.
    last : int, optional
        The number of cells, those that ran last; all by default.
    each_run : bool, optional
        Whether to show every run in a row of its own.

    Returns
    -------
    CellHistory
        Shows itself in a notebook; `CellHistory.to_pandas` and `CellHistory.save` have all figures.

    Raises
    ------
    OptionError
        If a value is not allowed.

    Examples
    --------
    >>> hfmem_widget.history(sort="peak", last=10)
    >>> hfmem_widget.history().to_pandas().groupby("name")["left_behind"].sum()
    """
    return CellHistory(tuple(HISTORY.records), HISTORY.forgotten, sort, last, each_run)
