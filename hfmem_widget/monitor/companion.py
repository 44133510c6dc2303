"""The base of what features do during a watch and report at its end."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import Recorder, Session, Span

Kind = TypeVar("Kind")


class Companion:
    """A feature's part in one watch; called on its thread, in this order. A fault costs its report alone."""

    stands_above: ClassVar[bool] = False
    """Whether the report is shown above the card instead of below it."""

    screen: Any = None
    """Where the watch shows itself, if anywhere: one of `view.screen`."""

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin; the watch's span has been opened, and the recorder may be subscribed to until the end."""

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """End what was begun, before the span is closed. Do not keep the error: it holds its frames."""

    def report(self, session: Session, span: Span) -> Mapping[str, Any] | None:
        """Return the report by MIME type, if any; the span is judged, and findings may still be added."""

    def conclude(self, session: Session, span: Span) -> Mapping[str, Any] | None:
        """Return a further report, or act, once all companions have reported."""


class _Begun(dict[type, list[Any]]):
    """The running companions by class."""


def begun(kind: type[Kind]) -> list[Kind]:
    """Return the running companions of a class, a list to which they add themselves."""
    return process_state(_Begun).setdefault(kind, [])
