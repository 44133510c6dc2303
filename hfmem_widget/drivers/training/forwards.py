"""Forward passes as spans: of a model given to `watch`, and those without gradients of any module."""

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hfmem_widget.drivers.training.loop import (
    MOST_HOOKED,
    REPORTED_ELSEWHERE,
    forward_of_a_step,
    notify_loop,
)
from hfmem_widget.drivers.training.model_hooks import HookedModule, ModelHooks, take_off
from hfmem_widget.drivers.training.run import wants_gradients
from hfmem_widget.guard import harmless, seconds_of_an_event
from hfmem_widget.monitor.batch import see_batch
from hfmem_widget.monitor.grouping import MOST_GROUP, Budget
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.process import Installed, process_state
from hfmem_widget.monitor.shared import current_watch
from hfmem_widget.session import Session


class Forwards:
    """Opens a span for every forward pass of a module, if it still exists, until `end`."""

    def __init__(self, module: weakref.ref[Any], monitor: Monitor, session: Session) -> None:
        self._monitor = monitor
        self._session = session
        self._thread = threading.get_ident()
        # The id of each span, 0 for a pass that is part of a step, and the counts of its batch.
        self._open: list[tuple[int, Mapping[str, float]]] = []
        self._hooks: ModelHooks | None = None
        if (followed := module()) is not None:
            self._hooks = ModelHooks(followed, before=self._begins, after=self._ended)

    def end(self) -> None:
        """Take the hooks off."""
        if self._hooks is not None:
            self._hooks.remove()

    def _begins(self, counts: Mapping[str, float]) -> None:
        # Replicas of nn.DataParallel call the hooks on their own threads.
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
                notify_loop(lambda loop: loop.forward_ended(error), begins=False)
                return
            self._monitor.close_span(self._session, span_id, outcome_of(error), counts)


class Passes:
    """Opens a span for each pass without gradients of some modules, named by their class, until `end`.

    Of nested modules only the outermost has spans. Where passes are so short that a span for each would take
    more than a share of the time, those in between are only counted. The `clock` returns seconds.
    """

    def __init__(
        self, monitor: Monitor, session: Session, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._monitor = monitor
        self._session = session
        self._clock = clock
        self._thread = threading.get_ident()
        self._followed: dict[int, HookedModule] = {}
        self._in_span: HookedModule | None = None  # whose span is open
        self._span = self._within = 0
        self._passing: HookedModule | None = None  # whose pass is only counted
        self._number = self._only_counted = 0
        self._budget, self._until = Budget(clock()), 0.0

    def follow(self, module: Any) -> None:
        """Follow the passes of a module from now on, unless other code does."""
        followed = self._followed.get(id(module))
        if followed is not None and followed.module() is module:
            return
        # A deleted module may have had this one's `id`.
        deleted = [key for key, other in self._followed.items() if other.module() is None]
        take_off(self._followed, deleted)
        names = {kind.__name__ for kind in type(module).__mro__}
        # `generating` follows the calls of the first, and the second takes no hooks.
        is_other = not names.isdisjoint(("PreTrainedModel", "ScriptModule"))
        if is_other or len(self._followed) >= MOST_HOOKED:
            return
        # Entered before its hooks are on, so that they are taken off again after a fault.
        followed = self._followed[id(module)] = HookedModule(weakref.ref(module))
        followed.hooks = ModelHooks(
            module,
            before=partial(self._begins, followed),
            after=partial(self._ended, followed),
            unless=partial(self._is_skipped, followed),
        )

    def end(self) -> None:
        """Take all hooks off."""
        take_off(self._followed, self._followed)

    def _is_skipped(self, followed: HookedModule) -> bool:
        if self._thread != threading.get_ident() or wants_gradients():
            return True
        if self._in_span is not None:
            return self._in_span is not followed
        if self._passing is not None:
            if self._passing is followed:
                self._passing = None
                self._only_counted += 1
            return True
        if self._clock() >= self._until:
            return False
        self._passing = followed
        return True

    def _begins(self, followed: HookedModule, counts: Mapping[str, float]) -> None:
        began = self._clock()
        if self._in_span is followed:
            if self._monitor.is_open(self._session, self._span):
                self._within += 1
                return
            self._in_span = None  # an interrupt has ended it, and no hook has been called
        module, monitor = followed.module(), self._monitor
        if module is None or monitor.current is not self._session:
            return
        # It runs, such as a teacher beside a training.
        see_batch(module, (), {}, {}, is_training=False)
        monitor.end_group(self._session)
        if process_state(ReportedElsewhere).by or monitor.is_within(
            self._session, REPORTED_ELSEWHERE
        ):
            return
        monitor.attribution.called(module)
        self._span = monitor.open_span(self._session, "forward", type(module).__name__).id
        self._in_span, self._within, followed.counts = followed, 0, counts
        self._budget.spend(self._clock() - began)

    def _ended(self, followed: HookedModule, error: Exception | None) -> None:
        if self._in_span is not followed:
            return
        if self._within:
            self._within -= 1
            return
        began, self._in_span = self._clock(), None
        first, self._number = self._number + 1, self._number + 1 + self._only_counted
        self._only_counted = 0
        numbers = {"first": float(first), "step": float(self._number)}
        if self._monitor.is_open(self._session, self._span):
            counts = {**followed.counts, **numbers}
            self._monitor.close_span(self._session, self._span, outcome_of(error), counts)
        now = self._clock()
        self._budget.spend(now - began + 2 * seconds_of_an_event())
        self._until = now + min(self._budget.wait(now), MOST_GROUP)


class ReportedElsewhere(threading.local):
    """How many followers on this thread report passes themselves, such as those of diffusers' pipelines."""

    by = 0


class ActivePasses(dict[int, Passes], Installed):
    """The passes that are followed, by the `id` of the session."""


def begin_passes(monitor: Monitor, session: Session) -> None:
    """Follow the passes without gradients in a session, of the models known now and of later ones."""
    passes = process_state(ActivePasses)[id(session)] = Passes(monitor, session)
    for module in monitor.attribution.subjects.all()[0]:
        harmless(passes.follow, module)


def end_passes(session: Session | None = None) -> None:
    """Stop following them in a session, or by default in all sessions."""
    followed = process_state(ActivePasses)
    for key in tuple(followed) if session is None else (id(session),):
        if (passes := followed.get(key)) is not None:
            # Removed after it has ended, so that it can end again after a fault.
            passes.end()
            followed.pop(key, None)


def evaluates(module: object) -> None:
    """Follow the passes of a module that is about to be evaluated."""
    if (watch := current_watch()) is None:
        return
    monitor, session = watch
    passes = process_state(ActivePasses).get(id(session))
    if passes is not None and monitor.opened_here(session):
        passes.follow(module)
