"""A span for every forward pass of a model that is watched by name."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

from hfmem_widget.drivers.training.loop import Loop, forward_of_a_step, tell
from hfmem_widget.drivers.training.model_hooks import ModelHooks
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.session import Session


class Forwards:
    """Opens a span for every forward pass of a module, if it is still there at `begin`, until `end`."""

    def __init__(self, module: weakref.ref[Any], monitor: Monitor, session: Session) -> None:
        self._module = module
        self._monitor = monitor
        self._session = session
        self._thread = threading.get_ident()
        self._open: list[tuple[int, Mapping[str, float]]] = []  # 0 for one that a step has
        self._hooks: ModelHooks | None = None

    def begin(self) -> None:
        """Put the hooks on the module."""
        module = self._module()
        if module is not None:
            self._hooks = ModelHooks(module, before=self._begins, after=self._ended)

    def end(self) -> None:
        """Take the hooks off the module."""
        if self._hooks is not None:
            self._hooks.remove()

    def _begins(self, counts: Mapping[str, float]) -> None:
        # Replicas of nn.DataParallel call hooks from threads of their own.
        if threading.get_ident() == self._thread and self._session.running:
            if forward_of_a_step(self._session, counts):
                self._open.append((0, counts))
                return
            span = self._monitor.open_span(self._session, "forward", "forward")
            self._open.append((span.id, counts))

    def _ended(self, error: Exception | None) -> None:
        if threading.get_ident() == self._thread and self._session.running and self._open:
            span_id, counts = self._open.pop()
            if not span_id:
                tell(Loop.forward_ended, begins=False)
                return
            self._monitor.close_span(self._session, span_id, outcome_of(error), counts)
