"""Pipelines of diffusers: the encoding, each denoising step, and the decoding.

All pipelines register their parts by one method and show progress by another. A denoising step begins with
the first pass of a denoising model and ends with the scheduler's `step`; short steps form groups.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Self

from hfmem_widget.drivers.training.forwards import ReportedElsewhere
from hfmem_widget.drivers.training.loop import REPORTED_ELSEWHERE
from hfmem_widget.drivers.training.model_hooks import HookedModule, ModelHooks, take_off
from hfmem_widget.monitor.grouping import MOST_GROUP, Budget
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.patch import restore_with, surround_inherited
from hfmem_widget.monitor.process import process_state
from hfmem_widget.monitor.shared import current_watch
from hfmem_widget.session import NO_STEP, Session
from hfmem_widget.session.steps import FIGURES

DENOISERS = ("unet", "transformer", "controlnet", "prior", "decoder")
"""The beginnings of the names of the parts that are called at each denoising step."""

OF_EVENTS = 2e-4
"""Seconds that a step's events take before they reach this code: those of the guard."""

_DENOISING = "denoise"


class PipelineContext(threading.local):
    """The pipeline call that a thread is in."""

    call: Diffusion | None = None


class Diffusion:
    """One call of a pipeline: a context manager that is notified where its phases and steps begin and end."""

    def __init__(self, monitor: Monitor, session: Session, pipeline: object) -> None:
        self.pipeline = id(pipeline)
        self._monitor = monitor
        self._session = session
        # Read from the dict: reading settings by attribute makes the pipeline warn.
        self._parts = dict(vars(pipeline))
        self._followed: dict[int, HookedModule] = {}
        self._around: Diffusion | None = None
        self._block = self._phase = self._step = 0
        self._name = ""
        self._number = self._first = 0
        self._budget, self._until = Budget(time.perf_counter()), 0.0
        # Within a training, which may make a picture now and then, the steps are only counted.
        others = {span.id for span in session.coarse_spans if span.label != _DENOISING}
        is_alone = others.isdisjoint(session.steps.table[:, FIGURES.index("parent")].tolist())
        self._reports_steps = is_alone and not monitor.is_within(session, REPORTED_ELSEWHERE)

    def __enter__(self) -> Self:
        context = process_state(PipelineContext)
        self._around, context.call = context.call, self
        process_state(ReportedElsewhere).by += 1
        parts, self._parts = self._parts, {}
        module = sys.modules["torch"].nn.Module
        models = {name: part for name, part in parts.items() if isinstance(part, module)}
        self._monitor.attribution.follow(*models.values())
        self._block = self._monitor.open_span(self._session, "block", "diffusion").id
        self._turn("encode")
        for name, part in parts.items():
            if name in models:
                surround_inherited(type(part), "decode", _decoding)
            elif "scheduler" in name:
                surround_inherited(type(part), "step", _stepping, unless=_is_counted)
        for name, model in models.items():
            if name.startswith(DENOISERS):
                # Entered before its hooks are on, so that they are taken off again after a fault.
                followed = self._followed[id(model)] = HookedModule(weakref.ref(model))
                followed.hooks = ModelHooks(
                    model,
                    before=self._forward_begins,
                    after=lambda _error: None,
                    unless=self._changes_nothing,
                )
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        context = process_state(PipelineContext)
        if context.call is self:
            context.call = self._around
            process_state(ReportedElsewhere).by -= 1
        take_off(self._followed, self._followed)
        if self._block and self._monitor.is_open(self._session, self._block):
            self._close(outcome_of(error))
            self._monitor.close_span(self._session, self._block, outcome_of(error))

    def loop_begins(self) -> None:
        """Begin the denoising phase, unless it has begun."""
        if self._name != _DENOISING and self._monitor.is_open(self._session, self._block):
            self._close()
            self._number = 0
            self._turn(_DENOISING)

    def counts(self) -> bool:
        """Count a step of the current group, and return whether nothing else is to be done."""
        if not self._step or time.perf_counter() >= self._until:
            return False
        self._number += 1
        return True

    def stepped(self) -> None:
        """End a denoising step or a group of them, after the scheduler's `step`."""
        if self._name != _DENOISING:
            return
        began = time.perf_counter()
        self._number += 1
        if self._step:
            self._end_step("done")
        self._budget.spend(time.perf_counter() - began + OF_EVENTS)

    def decoding_begins(self) -> None:
        """Begin the decoding phase; decoding within a step belongs to the step."""
        is_open = self._monitor.is_open(self._session, self._block)
        is_in_step = self._step > 0 and self._number < self._first
        if is_open and not is_in_step and self._name != "decode":
            self._close()
            self._turn("decode")

    def _changes_nothing(self) -> bool:
        return bool(self._step) or (self._name == _DENOISING and not self._reports_steps)

    def _forward_begins(self, _shape: object) -> None:
        if process_state(PipelineContext).call is not self:
            return
        began = time.perf_counter()
        self.loop_begins()
        if self._reports_steps:
            self._until = began + min(self._budget.wait(began), MOST_GROUP)
            self._first = self._number + 1
            self._step = self._monitor.open_span(self._session, "step", f"step {self._first}").id
        self._budget.spend(time.perf_counter() - began)

    def _end_step(self, outcome: str) -> None:
        last = max(self._number, self._first)
        counts = {"first": float(self._first), "step": float(last)}
        self._monitor.close_span(self._session, self._step, outcome, counts)
        self._step = 0

    def _turn(self, name: str) -> None:
        self._name = name
        self._phase = self._monitor.open_span(self._session, "block", name).id

    def _close(self, outcome: str = "done") -> None:
        if self._step:
            # Without the scheduler's `step` it is not a step, except in a group.
            is_none = outcome == "done" and self._number < self._first
            self._end_step(NO_STEP if is_none else outcome)
        counts = {"steps": float(self._number)} if self._name == _DENOISING else {}
        self._monitor.close_span(self._session, self._phase, outcome, counts)


def follow_pipelines(module: ModuleType) -> None:
    """Follow the existing pipelines, and those created from now on; a second call does nothing."""
    base = getattr(module, "DiffusionPipeline", None)
    if not isinstance(base, type):
        return
    surround_inherited(base, "register_modules", _registering)
    surround_inherited(base, "progress_bar", _looping)
    kinds = [base]
    while kinds:
        kind = kinds.pop()
        surround_inherited(kind, "__call__", _calling)
        kinds += kind.__subclasses__()


def leave_pipelines(_module: object = None) -> None:
    """Stop following pipelines."""
    restore_with(_registering, _calling, _looping, _decoding, _stepping)


def _registering(pipeline: object) -> AbstractContextManager[object]:
    # Every pipeline calls it when it is created; the classes themselves are imported late.
    surround_inherited(type(pipeline), "__call__", _calling)
    return nullcontext()


def _calling(pipeline: object) -> AbstractContextManager[object]:
    watch, call = current_watch(), process_state(PipelineContext).call
    if watch is None or (call is not None and call.pipeline == id(pipeline)):
        return nullcontext()
    return Diffusion(*watch, pipeline)


def _looping(pipeline: object) -> AbstractContextManager[object]:
    if (call := process_state(PipelineContext).call) is not None and call.pipeline == id(pipeline):
        call.loop_begins()
    return nullcontext()


def _decoding(_model: object) -> AbstractContextManager[object]:
    if (call := process_state(PipelineContext).call) is not None:
        call.decoding_begins()
    return nullcontext()


def _is_counted() -> bool:
    return (call := process_state(PipelineContext).call) is None or call.counts()


@contextmanager
def _stepping(_scheduler: object) -> Iterator[None]:
    yield
    if (call := process_state(PipelineContext).call) is not None:
        call.stepped()
