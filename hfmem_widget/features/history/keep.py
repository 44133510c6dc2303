"""``hfmem_widget.history``: what was watched so far, kept in a file if the user names one."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path

from hfmem_widget.analysis.history import HISTORY, History
from hfmem_widget.analysis.record import Record
from hfmem_widget.features.history.model import CellHistory
from hfmem_widget.guard import warn
from hfmem_widget.monitor.ticker import done_within
from hfmem_widget.options import expanded, path_text
from hfmem_widget.text import plain

PATIENCE = 2.0
"""Seconds that the end of a cell waits for the disk."""


class KeptHistory:
    """A history, and its file if the user has named one, in which nothing of a forked child is written."""

    def __init__(self, history: History = HISTORY) -> None:
        self.history = history
        self._name = ""
        self._path: Path | None = None
        self._unwritten: deque[Record] = deque()
        self._writing = threading.Lock()
        self._pid = os.getpid()

    @property
    def keeps(self) -> bool:
        """Whether this process writes to a file."""
        return self._path is not None and os.getpid() == self._pid

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Keep all records in a file from now on, those so far included, and take in what is there already.

        Raises `OptionError` if it cannot be written, or has something else in it; nothing has changed then.
        """
        from hfmem_widget.features.history import file  # few keep it, and it takes a while

        name = path_text(path, "keep", "a file")
        place = expanded(name)
        if place == self._path:
            return
        kernel = self.history.kernel
        earlier = file.read_records(place)
        file.append(place, [record for record in self.history.records if record.kernel == kernel])
        self.history.precede([record for record in earlier if record.kernel != kernel])
        self._path, self._name = place, plain(name)

    def table(
        self, *, sort: str = "cell", last: int | None = None, each_run: bool = False
    ) -> CellHistory:
        """Return what is known now."""
        history = self.history
        records = tuple(history.records)
        return CellHistory(
            records, history.kernel, history.forgotten, self._name, sort, last, each_run
        )

    def add(self, record: Record) -> None:
        """Add a record; a disk that hangs is waited for once."""
        if self.history.add(record) and self.keeps:
            self._unwritten.append(record)
            if not self._writing.locked():
                done_within(PATIENCE, self.flush)

    def flush(self) -> None:
        """Write what is to be written; if the disk refuses, say so and keep no more."""
        while self._unwritten and self.keeps and self._writing.acquire(blocking=False):
            try:
                if self._path is not None:
                    from hfmem_widget.features.history import file

                    file.append(self._path, [self._unwritten.popleft()])
            except Exception as error:  # noqa: BLE001  (whatever the disk says, the cell goes on)
                self._path, self._name = None, ""
                self._unwritten.clear()
                warn(f"%memcompare is not kept any longer: {plain(error)}")
            finally:
                self._writing.release()


KEPT_HISTORY = KeptHistory()
"""The `KeptHistory` of `HISTORY`: one for each process."""


def history(
    *, sort: str = "cell", last: int | None = None, keep: str | os.PathLike[str] | None = None
) -> CellHistory:
    """Return every cell, block and training that was watched in this process so far.

    Parameters
    ----------
    sort : {"cell", "peak", "left", "time"}, optional
        The order of the cells: as they ran last; or by the newest run's peak, by what it left behind, or by
        its duration, highest first.
    last : int, optional
        Only so many cells, those that ran last.
    keep : path-like, optional
        From now on, add a line for each run to this file, and show the runs that are in it already, of
        earlier kernels.

    Returns
    -------
    CellHistory
        Shows itself in a notebook; `CellHistory.to_pandas` and `CellHistory.save` have all figures.

    Raises
    ------
    OptionError
        If a value is not allowed, or the file cannot be used.

    Examples
    --------
    >>> hfmem_widget.history(sort="peak", last=10)
    >>> hfmem_widget.history().to_pandas().groupby("name")["left_behind"].sum()
    """
    table = KEPT_HISTORY.table(sort=sort, last=last)
    if keep is None:
        return table
    KEPT_HISTORY.keep(keep)
    return KEPT_HISTORY.table(sort=sort, last=last)
