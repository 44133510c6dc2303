"""Who clears what: a cell's outputs, or those that an Output widget catches meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hfmem_widget.guard import harmless


def request_of(publisher: Any) -> str:
    """Return the id of the request whose outputs are shown now, on this thread; empty without one."""
    header = getattr(publisher, "parent_header", None) or {}
    return str(header.get("msg_id", ""))


def is_caught(request: str) -> bool:
    """Return whether an ``ipywidgets.Output`` catches what is shown for a request, and is cleared with it.

    The page sends there whatever comes with the request's id while a widget has that in `msg_id`; an
    update of a display gets lost there.
    """
    output = sys.modules.get("ipywidgets.widgets.widget_output")
    widgets: dict[str, Any] = getattr(
        sys.modules.get("ipywidgets.widgets.widget"), "_instances", {}
    )
    if output is None or not request:
        return False
    return any(
        isinstance(one, output.Output) and one.msg_id == request for one in list(widgets.values())
    )


class Clearing:
    """Stands for a publisher's `clear_output`, and tells of each call, whichever thread makes it.

    A publisher's own hooks are told only of what their own thread sends.
    """

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._usual = publisher.clear_output
        self._listeners: list[Callable[[], None]] = []
        publisher.clear_output = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Tell who listens, then clear."""
        for listener in tuple(self._listeners):
            harmless(listener)
        return self._usual(*args, **kwargs)

    def begin(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a listener before each clearing, and return what ends that."""
        self._listeners.append(listener)
        return lambda: self._end(listener)

    def _end(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)
        # Not where somebody else's stands before ours: it would be lost.
        if not self._listeners and vars(self._publisher).get("clear_output") is self:
            del self._publisher.clear_output


def on_clearing(publisher: Any, listener: Callable[[], None]) -> Callable[[], None]:
    """Call a listener before each `clear_output` of a publisher, and return what ends that."""
    usual = publisher.clear_output
    clearing = usual if isinstance(usual, Clearing) else Clearing(publisher)
    return clearing.begin(listener)
