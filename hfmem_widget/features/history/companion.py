"""Adds each watch that has ended to the history, and compares it with the last run of the same cell."""

from __future__ import annotations

from collections.abc import Mapping

from hfmem_widget.analysis.history import Cell
from hfmem_widget.analysis.record_of import UNNAMED, record_of
from hfmem_widget.features.history.keep import KEPT_HISTORY, KeptHistory
from hfmem_widget.features.history.since import since_text
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span
from hfmem_widget.view.front_end import running_cell


class Historian(Companion):
    """Notes one watch."""

    def __init__(
        self, options: WatchOptions | None = None, *, kept: KeptHistory = KEPT_HISTORY
    ) -> None:
        self._kept = kept
        self._cell: Cell | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note which cell it is in."""
        self._cell = running_cell()

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add it; a file is written on another thread."""
        history = self._kept.history
        record = record_of(session, span, cell=self._cell, kernel=history.kernel)
        # Blocks without a label are not known to be the same code.
        is_known = span.kind == "cell" or record.label not in UNNAMED
        if is_known and (earlier := history.runs_of(record.identity)):
            remarks = since_text(earlier[-1], record), session.remarks.get(span.id, "")
            session.remarks[span.id] = " ".join(filter(None, remarks))
        self._kept.add(record)
        return NOTHING
