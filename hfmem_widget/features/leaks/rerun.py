"""A cell's run beside its earlier runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hfmem_widget.analysis.record import Record
from hfmem_widget.features.leaks.reruns import reruns
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.session import Session, Span


class Rerun(Companion):
    """Finds that a cell leaves more with each run.

    Parameters
    ----------
    earlier : callable
        Returns the records of its earlier runs, oldest first.
    """

    def __init__(self, earlier: Callable[[], Sequence[Record]]) -> None:
        self._earlier = earlier

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Enter among the findings what the runs tell together."""
        session.findings += reruns(session, span, self._earlier())
        return {}
