"""The steps of a training loop without spans of its own, from torch's backward passes and optimizer steps.

A step begins with the first forward pass of a trained model, or if that is not seen with the backward pass,
and ends when the optimizer has stepped. The time between two steps belongs to neither. Where steps share a
span (see `Grouping`), only the steps of optimizers are counted.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from hfmem_widget.drivers.training.model_hooks import HookedModule, ModelHooks, take_off
from hfmem_widget.drivers.training.models import children_of, searched_for, trained_by
from hfmem_widget.drivers.training.run import TrainingRun, wants_gradients
from hfmem_widget.guard import seconds_of_an_event
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.process import Installed, process_state, threads_in_group
from hfmem_widget.monitor.shared import current_watch
from hfmem_widget.session import NO_STEP, Session, SpanKind
from hfmem_widget.session.model import FINE_KINDS

Result = TypeVar("Result")

MOST_PASSES = 8
"""The most forward passes before the first backward pass of a step, as long as no step has been seen."""

MOST_HOOKED = 64
DEEPEST = 3
"""The most levels of modules that are searched for the called one: nobody calls a LightningModule itself."""

REPORTED_ELSEWHERE: frozenset[SpanKind] = FINE_KINDS | {"evaluate", "predict", "load", "save"}
"""The kinds of spans in which a loop has no steps, or other code reports them."""


class Loop:
    """Follows a loop in one session, on the thread on which its first event comes."""

    def __init__(self, monitor: Monitor, session: Session) -> None:
        self.session = session
        self.open_ids = monitor.open_ids(session)
        self._monitor = monitor
        self._run = TrainingRun(monitor, session)
        self._clock = time.perf_counter
        self._searched = 0.0
        self._thread = threading.current_thread()
        self._models: dict[int, HookedModule] = {}
        self._optimizer: Callable[[], Any] = lambda: None
        self._seen_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._searched_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._number = session.steps.count
        # About the span of a step, or of a group of steps.
        self._is_open = False
        self._first = 0
        # About the step.
        self._within = self._is_guess = False
        self._batches = self._passes = self._passes_of_step = self._usual_passes = 0
        self._passes_outside, self._had_many_outside = 0, False
        self._stepped, self._expected = 0, 1
        # About what runs now.
        self._is_armed = self._may_guess = self._has_pruned = False
        self._forwards = self._backwards = 0
        self._stepping: list[int] = []
        self._has_closure = self._stepped_within = False
        # Whether closures make gradients: some optimizers get one that does nothing.
        self._makes_gradients, self._batches_before = True, 0
        self._made_in_closure = False

    @property
    def _has_phases(self) -> bool:
        return not self._run.grouping.is_group

    def is_over(self) -> bool:
        """Return whether the loop's thread has ended; another one may then have a loop of its own."""
        return not self._thread.is_alive()

    def timed(self, event: Callable[[Loop], Result]) -> Result | None:
        """Handle an event and account for its time; events of other threads are ignored."""
        if threading.current_thread() is not self._thread:
            return None
        grouping = self._run.grouping
        began, spent, self._searched = self._clock(), grouping.spent, 0.0
        result = event(self)
        beside = self._searched + grouping.spent - spent
        grouping.spend(self._clock() - began - beside + seconds_of_an_event())
        return result

    def optimizer_is_made(self, optimizer: Any) -> None:
        """Take an optimizer that exists already: the next forward pass of its models may begin a step."""
        with self._searching():
            if models := trained_by(optimizer, self._monitor.attribution.subjects.all()[0]):
                self._may_guess = True
                self._seen_optimizers.add(optimizer)
                self._take(optimizer, models)

    def loop_begins(self, optimizer: Any) -> None:
        """Take an optimizer that was just created, or has cleared its gradients: steps follow."""
        self._is_armed = True
        self._find_models(optimizer)

    def forward_begins(self, counts: Mapping[str, float]) -> bool:
        """Begin a forward pass of a model; return whether it belongs to a step."""
        self._forwards += 1
        if self._forwards > 1 or self._backwards or not wants_gradients():
            return False
        if self._drop_supposed_step() or not self._begins(is_guess=not self._is_armed):
            self._passes_outside += 1
            return False
        self._passes += 1
        self._passes_outside = 0
        if self._has_phases:  # of a group only the first batch would be seen
            self._run.count(counts)
        if self._has_phases and self._passes == 1:
            self._run.forward_begins({})
        return True

    def forward_ended(self, error: Exception | None = None) -> None:
        """End a forward pass; its span lasts until the backward pass begins, and so includes the loss."""
        self._forwards = max(0, self._forwards - 1)
        if error is not None and not self._forwards and wants_gradients():
            self._passes = max(0, self._passes - 1)  # its batch is tried again, or left out

    def backward_begins(self) -> None:
        """Begin a backward pass."""
        self._backwards += 1
        if self._backwards == 1 and self._begins():
            self._learn_passes()
            self._is_guess = False
            if self._has_phases:
                self._run.backward_begins()

    def backward_ended(self, error: BaseException | None) -> None:
        """End a backward pass; if an optimizer's closure made it, the optimizer goes on."""
        self._backwards = max(0, self._backwards - 1)
        self._forwards = 0
        if self._backwards or not self._within:
            return
        self._batches += 1
        self._passes_of_step += self._passes
        self._passes = 0
        if self._has_phases:
            self._run.backward_ended(outcome_of(error))
            if self._has_closure and error is None:
                self._run.optimizer_begins()
        if self._stepped_within:
            self._stepped_within = False
            self._step_ends()

    def optimizer_begins(self, optimizer: Any, *, has_closure: bool) -> None:
        """Begin the step of an optimizer; a closure makes the gradients first."""
        if id(optimizer) in self._stepping:  # an error has ended its last step
            del self._stepping[self._stepping.index(id(optimizer)) :]
        self._stepping.append(id(optimizer))
        if len(self._stepping) > 1 or self._backwards:
            return
        self._has_closure = has_closure
        self._is_armed = self._is_armed or has_closure
        self._find_models(optimizer)
        self._batches_before = self._batches
        if self._within and self._has_phases and not (has_closure and self._makes_gradients):
            self._run.optimizer_begins()

    def optimizer_ended(self) -> None:
        """End the step of an optimizer; that of the last optimizer ends the loop's step."""
        if step_counter.loop is self:
            self._end_group()
            return
        if self._stepping:
            self._stepping.pop()
        if self._stepping:
            return
        self._made_in_closure = self._has_closure and self._batches > self._batches_before
        self._is_armed, self._has_closure = True, False
        if self._backwards:
            self._stepped_within = True
            return
        self._stepped += 1
        self._makes_gradients = self._batches > self._batches_before
        if self._within:
            if self._has_phases:
                self._run.optimizer_ended()
            if self._stepped >= self._expected:
                self._step_ends()
        elif self._stepped == 1 and not self._monitor.is_within(self.session, REPORTED_ELSEWHERE):
            # Its optimizer was unknown until now, so nothing else was seen of this step.
            self._number += 1

    def ends(self, outcome: str = "done") -> None:
        """Take the hooks off and end the open step; without an optimizer's step it does not count as one."""
        take_off(self._models, self._models)
        self.yields(outcome)

    def yields(self, outcome: str = "done") -> None:
        """End the open step, or the open group of steps."""
        if not self._is_open:
            return
        if step_counter.loop is self:
            self._number += step_counter.end()
            outcome = NO_STEP if self._number < self._first else outcome
        elif outcome == "done":
            outcome = NO_STEP
        self._within = False
        self._close(outcome)

    def group_is_over(self) -> bool:
        """Return whether the current group of steps has lasted long enough."""
        if self._clock() < self._run.grouping.until:
            return False
        return self._run.grouping.may_end(self._first, self._number + step_counter.steps)

    def _end_group(self) -> None:
        self._number += step_counter.end()
        # Optimizers that step next belong to its last step.
        self._within, self._is_armed, self._stepped = False, True, 1
        self._forwards = self._backwards = 0
        self._stepping.clear()
        self._close()

    def _learn_passes(self) -> None:
        """Learn how many forward passes come before a backward pass, also from those outside of a step.

        Many outside are an evaluation's; if the step before had many too, steps are episodes of any length.
        """
        is_many = self._passes_outside > (0 if self._usual_passes else MOST_PASSES)
        if is_many and self._had_many_outside:
            self._usual_passes = sys.maxsize
        outside = 0 if is_many else self._passes_outside
        self._usual_passes = max(self._usual_passes, self._passes, outside)
        self._passes_outside, self._had_many_outside = 0, is_many

    def _drop_supposed_step(self) -> bool:
        """Drop a supposed step that goes on without a backward pass, as an evaluation does."""
        most = self._usual_passes or (1 if self._is_guess else MOST_PASSES)
        if self._batches:
            most = max(most, MOST_PASSES)
        if not self._within or self._stepped or self._passes < most:
            return False
        self._passes_outside = self._passes
        self._within = self._is_armed = self._may_guess = False
        self._close(NO_STEP)
        return True

    def _begins(self, *, is_guess: bool = False) -> bool:
        """Begin a step unless one is open; return False if there is none, or other code reports it."""
        if self._within and self._stepped and not self._stepping:
            self._step_ends()  # it had fewer optimizers than the one before
        if self._within:
            return True
        # The forward passes before a known optimizer's backward pass may have been taken for others.
        is_of_known = self._backwards and self._optimizer() is not None
        if not (self._is_armed or self._may_guess or is_of_known):
            return False
        if self._monitor.is_within(self.session, REPORTED_ELSEWHERE):
            return False
        self._is_open, self._first = True, self._number + 1
        self._run.step_begins(self._first)
        self._expected, self._stepped = max(1, self._stepped), 0
        if self._run.grouping.is_group:
            step_counter.begin(self, self._expected)
        self._batches = self._batches_before = 0
        self._within, self._is_guess, self._passes, self._passes_of_step = True, is_guess, 0, 0
        return True

    def _step_ends(self) -> None:
        self._within = False
        self._number += 1
        self._run.accumulates = self._batches > 1 and not self._made_in_closure
        self._close()
        uncalled = [key for key, model in self._models.items() if not model.was_called]
        # Else the next step is another model's.
        is_seen = self._number >= len(self._seen_optimizers)
        if len(uncalled) == len(self._models):
            self._find_called_modules()
        elif self._passes_of_step and not self._has_pruned and is_seen:
            self._has_pruned = True
            take_off(self._models, uncalled)

    def _close(self, outcome: str = "done") -> None:
        self._is_open = False
        # A closure is called again with the same batch.
        self._run.batches = 1 if self._made_in_closure else self._batches + bool(self._passes)
        # A step that has failed is not in the number yet.
        last = max(self._number, self._first)
        self._run.step_ended(outcome, {"first": float(self._first), "step": float(last)})

    def _find_models(self, optimizer: Any) -> None:
        if optimizer in self._seen_optimizers or not hasattr(optimizer, "param_groups"):
            return
        self._seen_optimizers.add(optimizer)
        with self._searching():
            subjects = self._monitor.attribution.subjects
            models = trained_by(optimizer, subjects.all()[0]) or searched_for(optimizer) or []
            self._take(optimizer, models)

    def _take(self, optimizer: Any, models: Iterable[Any]) -> None:
        """Follow the models of an optimizer, and their parts: a LightningModule's are called, not itself."""
        self._optimizer = weakref.ref(optimizer)
        self._monitor.attribution.follow(*models)
        self._hook(models)
        self._hook((child for model in models for child in children_of(model)), 1)

    def _find_called_modules(self) -> None:
        """After a step without a forward pass, look for the called modules: wrappers, or parts of models."""
        optimizer = self._optimizer()
        with self._searching():
            if optimizer is not None and optimizer not in self._searched_optimizers:
                models = searched_for(optimizer)
                if models is not None:
                    self._searched_optimizers.add(optimizer)
                if models:
                    self._monitor.attribution.follow(*models)
                    take_off(self._models, self._models)
                    self._hook(models)
                    return
            for key, model in tuple(self._models.items()):
                module = model.module()
                if module is not None and model.depth < DEEPEST:
                    take_off(self._models, (key,))
                    self._hook(children_of(module), model.depth + 1)

    @contextmanager
    def _searching(self) -> Iterator[None]:
        """Keep the time of a search, which is done once, out of the cost of the steps."""
        began = self._clock()
        yield
        self._searched += self._clock() - began

    def _hook(self, modules: Iterable[Any], depth: int = 0) -> None:
        for module in modules:
            if id(module) in self._models or len(self._models) >= MOST_HOOKED:
                continue
            # Entered before its hooks are on, so that they are taken off again after a fault.
            model = self._models[id(module)] = HookedModule(weakref.ref(module), depth)
            model.hooks = ModelHooks(
                module,
                before=partial(_forward_begins, model),
                after=lambda error: notify_loop(
                    lambda loop: loop.forward_ended(error), begins=False
                ),
                unless=in_group,
            )


class StepCounter:
    """Counts the steps of a group on a thread, where only optimizers and backward passes are seen."""

    loop: Loop | None = None
    thread = steps = 0
    _usual = 1

    def __init__(self) -> None:
        # `begun` if a backward pass has, since an optimizer has stepped.
        self.passes = threading.local()
        self._stepped: set[int] = set()  # the optimizers of the last step, by `id`

    def begin(self, loop: Loop, usual: int) -> None:
        """Begin to count; the step before had the `usual` number of optimizers."""
        self.loop, self.thread, self._usual = loop, threading.get_ident(), usual
        threads_in_group[self.thread] = loop.open_ids

    def end(self) -> int:
        """Follow every event again, and return the number of the loop's steps that were counted."""
        threads_in_group.pop(self.thread, None)
        steps, self.loop, self.thread, self.steps = self.steps, None, 0, 0
        self._stepped.clear()
        return steps

    def count(self, optimizer: object) -> bool:
        """Count the end of an optimizer's step; return whether the group is over."""
        if self.loop is None or not self.loop.open_ids:
            return False
        # Optimizers belong to one step until a backward pass comes, or one of them steps again.
        is_between = sys.modules["torch"]._C._current_graph_task_id() < 0  # noqa: SLF001  (asked by torch's checkpoint)
        has_passed = vars(self.passes).pop("begun", 0) and is_between  # else it steps in the pass
        if has_passed or not self._stepped or id(optimizer) in self._stepped:
            self.steps += 1
            self._usual = len(self._stepped) or self._usual
            self._stepped.clear()
        self._stepped.add(id(optimizer))
        return len(self._stepped) >= self._usual and self.loop.group_is_over()


step_counter = StepCounter()


def in_group() -> bool:
    """Return whether only the steps of optimizers are counted on this thread."""
    return bool(threads_in_group.get(threading.get_ident()))


@dataclass(slots=True)
class ActiveLoops(Installed):
    """The loops that are followed, with hooks on their models."""

    # By the `id` of the session.
    loops: dict[int, Loop] = field(default_factory=dict)
    # Trainings that report the steps of their sessions themselves, the innermost last.
    trainings: list[TrainingRun] = field(default_factory=list)


def _training_of(session: Session | None) -> TrainingRun | None:
    trainings = reversed(process_state(ActiveLoops).trainings)
    return next((run for run in trainings if run.session is session), None)


def notify_loop(event: Callable[[Loop], object], *, begins: bool = True) -> None:
    """Pass an event of this thread on to the loop of the current session; it may begin one if it `begins`."""
    if (watch := current_watch()) is None:
        return
    monitor, session = watch
    if _training_of(session) is not None:
        return
    # The hooks of a model that another thread trains stay as they are: torch may be going through them.
    if not monitor.opened_here(session):
        return
    loops = process_state(ActiveLoops).loops
    loop = loops.get(id(session))
    if loop is None or loop.is_over():
        if not begins:
            return
        end_loops(only_over=True)
        loop = loops[id(session)] = Loop(monitor, session)
    loop.timed(event)


def forward_of_a_step(session: Session, counts: Mapping[str, float]) -> bool:
    """Begin a forward pass of a model given to `watch`; return whether it belongs to a step."""
    loop = process_state(ActiveLoops).loops.get(id(session))
    if loop is None or in_group() or not wants_gradients():
        return False
    begins = loop.timed(lambda loop: loop.forward_begins(counts))
    if begins is False:
        loop.timed(Loop.forward_ended)
    return bool(begins)


def begin_loop(monitor: Monitor, session: Session) -> None:
    """Follow the loop of a session from its first step, if its optimizer is known already."""
    optimizers = monitor.attribution.subjects.all()[1]
    if optimizers:
        loop = process_state(ActiveLoops).loops[id(session)] = Loop(monitor, session)
        for optimizer in optimizers:
            loop.optimizer_is_made(optimizer)


def end_loop(session: Session, outcome: str = "done") -> None:
    """End the loop of a session, if it has one, and the trainings in it."""
    while (run := _training_of(session)) is not None:
        run.ended(outcome)
        resume_steps(run)
    loops = process_state(ActiveLoops).loops
    loop = loops.get(id(session))
    if loop is not None:
        loop.ends(outcome)
        loops.pop(id(session), None)


def backward_begins() -> None:
    """Begin a backward pass of this thread, in the followed trainings or in the loop."""
    if (watch := current_watch()) is None:
        return
    session = watch[1]
    # A watch within a step of a training has a session of its own.
    for run in tuple(process_state(ActiveLoops).trainings):
        # The run ignores other threads. While another loop runs in that watch, the run has no open pass.
        is_own = run.session is session or run.is_forward
        if is_own and _training_of(run.session) is run:
            run.backward_begins()
    if _training_of(session) is None:
        notify_loop(Loop.backward_begins)


def yield_steps(run: TrainingRun) -> None:
    """Let a training report the steps of its session from now on; the loop's open step is dropped."""
    followed = process_state(ActiveLoops)
    followed.trainings.append(run)
    run.needs_events = False
    loop = followed.loops.get(id(run.session))
    if loop is not None:
        loop.yields()


def resume_steps(run: TrainingRun) -> None:
    """Let the loop report the steps of a session again, or the training around this one."""
    with suppress(ValueError):
        process_state(ActiveLoops).trainings.remove(run)
        run.leave_group()


def end_loops(*, only_over: bool = False) -> None:
    """End all loops, or only those whose sessions have ended."""
    for loop in tuple(process_state(ActiveLoops).loops.values()):
        if not (only_over and loop.session.running):
            end_loop(loop.session)


def _forward_begins(model: HookedModule, counts: Mapping[str, float]) -> None:
    def begins(loop: Loop) -> None:
        model.was_called |= loop.forward_begins(counts)

    notify_loop(begins, begins=False)
