"""Where the runs of this process are kept: in memory, within bounds, and in a file if the user names one."""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from pathlib import Path

from hfmem_widget.features.history.file import append, read_runs
from hfmem_widget.features.history.model import CellHistory, CellRun
from hfmem_widget.guard import warn
from hfmem_widget.monitor.ticker import done_within
from hfmem_widget.options import expanded, path_text
from hfmem_widget.text import plain

MOST_RUNS = 2_000
"""Runs that are kept, of about 1 kB each."""

PATIENCE = 2.0
"""Seconds that the end of a cell waits for the disk."""


class Log:
    """The runs of one process. What a forked child adds stays with the child, and out of the file."""

    def __init__(self, most: int = MOST_RUNS) -> None:
        self.kernel = secrets.token_hex(4)
        self._runs: deque[CellRun] = deque(maxlen=most)
        self._forgotten = 0
        self._path: Path | None = None
        self._name = ""
        self._unwritten: deque[CellRun] = deque()
        self._writing = threading.Lock()
        self._pid = os.getpid()

    @property
    def keeps(self) -> bool:
        """Whether this process writes its runs to a file."""
        return self._path is not None and os.getpid() == self._pid

    def add(self, run: CellRun) -> None:
        """Add a run, which `write` is to write."""
        # A cell with a watch of its own under `%memwatch on`: as with the cards, its own counts.
        if run.kind == "cell" and any(_is_within(known, run) for known in tuple(self._runs)[-8:]):
            return
        self._forgotten += len(self._runs) == self._runs.maxlen
        self._runs.append(run)
        if self.keeps:
            self._unwritten.append(run)

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Keep all runs in a file from now on, those so far included, and take in what is there already.

        Raises `OptionError` if it cannot be written, or has something else in it; nothing has changed then.
        """
        name = path_text(path, "keep", "a file")
        place = expanded(name)
        if place == self._path:
            return
        earlier = read_runs(place)
        own = [run for run in self._runs if run.kernel == self.kernel]
        append(place, own)
        others = [run for run in earlier if run.kernel != self.kernel]
        self._forgotten += max(0, len(others) + len(own) - (self._runs.maxlen or 0))
        self._runs = deque([*others, *own], self._runs.maxlen)
        self._path, self._name = place, plain(name)

    def write(self) -> None:
        """Write what is to be written; a disk that hangs is waited for once."""
        if self.keeps and not self._writing.locked():
            done_within(PATIENCE, self.flush)

    def flush(self) -> None:
        """Write it now, with what comes meanwhile; if the disk refuses, say so and keep no more."""
        while self._unwritten and self.keeps and self._writing.acquire(blocking=False):
            try:
                if self._path is not None:
                    append(self._path, [self._unwritten.popleft()])
            except Exception as error:  # noqa: BLE001  (whatever the disk says, the cell goes on)
                self._path, self._name = None, ""
                self._unwritten.clear()
                warn(f"%memhistory is not kept any longer: {plain(error)}")
            finally:
                self._writing.release()

    def clear(self) -> None:
        """Forget all runs; a file stays as it is."""
        self._runs.clear()
        self._forgotten = 0

    def history(
        self, *, sort: str = "cell", last: int | None = None, each_run: bool = False
    ) -> CellHistory:
        """Return what is known now."""
        return CellHistory(
            tuple(self._runs), self.kernel, self._forgotten, self._name, sort, last, each_run
        )


def _is_within(known: CellRun, run: CellRun) -> bool:
    is_same = known.kind == "cell" and known.kernel == run.kernel
    return is_same and known.number == run.number is not None and known.started_at >= run.started_at


LOG = Log()
"""That of this process."""
