"""The forward passes of one module as spans, outside of a Trainer."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from hfmem_widget.drivers.training.model_hooks import ModelHooks
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.session import Session


class Forwards:
    """Opens a span for every forward pass of a module, from `begin` to `end`."""

    def __init__(self, monitor: Monitor, session: Session, module: Any) -> None:
        self._monitor = monitor
        self._session = session
        self._thread = threading.get_ident()
        self._open: list[tuple[int, Mapping[str, float]]] = []
        self._module: Any = module
        self._hooks: ModelHooks | None = None

    def begin(self) -> None:
        """Put the hooks on the module, and keep it alive no longer than they do."""
        module, self._module = self._module, None
        self._hooks = ModelHooks(module, before=self._begins, after=self._ended)

    def end(self) -> None:
        """Take the hooks off the module."""
        if self._hooks is not None:
            self._hooks.remove()

    def _begins(self, counts: Mapping[str, float]) -> None:
        # Replicas of nn.DataParallel call hooks from threads of their own.
        if threading.get_ident() == self._thread and self._session.running:
            span = self._monitor.open_span(self._session, "forward", "forward")
            self._open.append((span.id, counts))

    def _ended(self, error: Exception | None) -> None:
        if threading.get_ident() == self._thread and self._session.running and self._open:
            span_id, counts = self._open.pop()
            self._monitor.close_span(self._session, span_id, outcome_of(error), counts)


def forwards_of(module: Any) -> Callable[[Monitor, Session], Forwards | None]:
    """Return what opens a span for every forward pass of a module, if it is still there by then."""
    # To the module itself: one to a parameter would keep `Module.to` from swapping it for another.
    reference = weakref.ref(module)

    def follow(monitor: Monitor, session: Session) -> Forwards | None:
        found = reference()
        return None if found is None else Forwards(monitor, session, found)

    return follow
