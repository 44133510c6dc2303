"""What goes along with a watch, and reports at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import Recorder, Session, Span

Kind = TypeVar("Kind")

NOTHING: Mapping[str, str] = {}


class Companion:
    """What goes along with one watch; called on its thread, in this order. A fault costs its report alone."""

    stands_above: ClassVar[bool] = False
    """Whether its report stands above the card, and not below it."""

    screen: Any = None
    """Where the watch shows itself, if anywhere: one of `view.screen`."""

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin; the watch's span has been opened, and the recorder may be subscribed to until the end."""

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """End what was begun, before the span is closed. The error must not be kept: it keeps its frames."""

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Return the report by MIME type; the span has been judged, and findings may still be added."""
        return NOTHING

    def conclude(self, session: Session, span: Span) -> Mapping[str, str]:
        """Return what is said, or do what is done, with what all others have reported."""
        return NOTHING


class _Begun(dict[type, list[Any]]):
    """By their class."""


def begun(kind: type[Kind]) -> list[Kind]:
    """Return those of a class that have begun and not ended, to which they add themselves."""
    return process_state(_Begun).setdefault(kind, [])
