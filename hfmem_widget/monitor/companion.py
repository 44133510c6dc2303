"""What a watch expects of whatever goes along with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.session import Recorder, Session, Span

NOTHING: Mapping[str, str] = {}


class Companion:
    """Something that goes along with one watched stretch of code.

    All three are called once, in this order, on the thread that watches. A fault in one costs
    what it has to tell, and nothing else.

    Attributes
    ----------
    stands_above : bool
        Whether what it reports stands above the card, and not below it.
    """

    stands_above: ClassVar[bool] = False

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin; the stretch's span has been opened. The recorder tells of what is new, until the end."""

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """End what was begun, before the span is closed. The error must not be kept: it keeps its frames."""

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Return what stands beside the card by MIME type, once the span has ended and was judged.

        Findings may still be added to the session here.
        """
        del session, span
        return NOTHING
