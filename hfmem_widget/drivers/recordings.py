"""Watches tests, or the cells of a notebook, one after the other, and records each to its own file."""

import sys
from pathlib import Path

from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.drivers.api import watch
from hfmem_widget.drivers.watch import Watch
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.process import Part, process_state
from hfmem_widget.recording.file import unused_path
from hfmem_widget.session import Session


class Recordings(Part):
    """Recordings of which at most one is open."""

    def __init__(self) -> None:
        self._watch: Watch | None = None

    def begin(self, label: str, path: Path) -> str:
        """Begin the next recording in a new file; return an error, or ``""``."""
        self.end(None)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._watch = watch(label, record=unused_path(path), quiet=True)
            self._watch.start()
        except (OSError, OptionError) as error:
            self._watch = None
            return str(error)
        return ""

    def end(self, error: BaseException | None) -> None:
        """End the open recording with the error of the code, if any."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop(error)


class CellRecordings(Recordings):
    """Recordings of the cells that ``hfmem run`` executes in this kernel."""

    _label, _path = "", ""
    _before: Session | None = None

    def cell_begins(self, label: str, path: str, *, has_own: bool) -> None:
        """Begin to record a cell; one with a watch of its own is saved from that watch at its end."""
        self._label, self._path, self._before = label, path, HISTORY.latest
        if not has_own:
            self.begin(label, Path(path))

    def cell_ends(self, *, failed: bool) -> None:
        """End the recording of the cell."""
        session = None if HISTORY.latest is self._before else HISTORY.latest
        if self._watch is None and session is not None:
            session.save(self._path)
        self.end(getattr(sys, "last_value", None) if failed else None)
        # The history lists only what the notebook itself has watched.
        HISTORY.records = [record for record in HISTORY.records if record.label != self._label]


def cells() -> CellRecordings:
    """Return this process' recordings of cells."""
    return process_state(CellRecordings)
