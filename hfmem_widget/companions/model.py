"""What a watch expects of whatever goes along with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hfmem_widget.monitor import Monitor
from hfmem_widget.session import Session, Span


class Companion(Protocol):
    """Something that goes along with one watched stretch of code.

    All three are called once, in this order, on the thread that watches. A fault in one costs
    what it has to tell, and nothing else.
    """

    def begin(self, monitor: Monitor, session: Session, span: Span) -> None:
        """Begin; the stretch's span has been opened."""
        ...

    def end(self, session: Session, span: Span, error: BaseException | None) -> None:
        """End what was begun, before the span is closed. The error must not be kept: it keeps its frames."""
        ...

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Return what stands beside the card by MIME type, once the span has ended; empty for nothing.

        Findings may still be added to the session here.
        """
        ...
