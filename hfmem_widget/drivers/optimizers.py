"""Follows every optimizer of torch and every backward pass, which all training loops have.

Optimizers are followed by torch's own hooks. The function in which all backward passes begin is surrounded,
and so is `eval()`, after which a module's passes belong to an evaluation.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hfmem_widget.drivers.training.forwards import end_passes, evaluates
from hfmem_widget.drivers.training.loop import (
    Loop,
    backward_begins,
    end_loops,
    notify_loop,
    step_counter,
)
from hfmem_widget.drivers.training.models import note_module
from hfmem_widget.guard import call_all, entry
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.patch import Around, Place, is_compiling, restore_all, surround_all
from hfmem_widget.monitor.process import Installed, process_state, threads_in_group
from hfmem_widget.monitor.shared import running_monitor

OPTIMIZER, _MODULE = "torch.optim.optimizer", "torch.nn.modules.module"


@dataclass(slots=True)
class _Hooks(Installed):
    handles: list[Any] = field(default_factory=list)
    # The threads on which optimizers have stepped.
    threads: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)


def follow_optimizers() -> None:
    """Follow every optimizer from now on, if torch is imported; a second call does nothing."""
    module: Any = sys.modules.get(OPTIMIZER)
    if module is None:
        return
    # A fault may have left only one of the two hooks.
    handles = process_state(_Hooks).handles
    while 0 < len(handles) < 2:
        handles.pop().remove()
    if not handles:
        handles.append(module.register_optimizer_step_pre_hook(_steps))
        handles.append(module.register_optimizer_step_post_hook(_stepped))
    surround_all(_PLACES, unless_on=threads_in_group)


def follow_torch(_module: object) -> None:
    """Follow every optimizer if something is watched; called once torch is imported."""
    if running_monitor() is not None:
        follow_optimizers()


def leave_optimizers(_module: object = None) -> None:
    """Stop following optimizers, unless another thread trains."""
    call_all(end_loops, end_passes, _take_off)


def _take_off() -> None:
    hooks, thread_here = process_state(_Hooks), threading.current_thread()
    others = (thread for thread in tuple(hooks.threads) if thread is not thread_here)
    if any(thread.is_alive() for thread in others):
        return  # torch may be iterating over its hooks there, and would raise if one was removed
    while hooks.handles:
        hooks.handles.pop().remove()
    restore_all(_PLACES)


def _steps(optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # In the order in which `surround` checks them.
    compiler = sys.modules["torch"].compiler
    if (
        compiler.is_dynamo_compiling()
        or threads_in_group.get(threading.get_ident())
        or is_compiling()
    ):
        return
    process_state(_Hooks).threads.add(threading.current_thread())
    # The first of the arguments is the optimizer.
    has_closure = callable(kwargs.get("closure", args[1] if len(args) > 1 else None))

    def act(monitor: Monitor) -> None:
        # First, because the phase's edge counts the gradients of the known optimizers.
        monitor.attribution.optimizer_steps(optimizer)
        notify_loop(lambda loop: loop.optimizer_begins(optimizer, has_closure=has_closure))

    _act(act)


def _stepped(optimizer: object, _args: object, _kwargs: object) -> None:
    if sys.modules["torch"].compiler.is_dynamo_compiling():
        return
    thread = threading.get_ident()
    # In a group of a Trainer's steps nothing is counted here.
    if (
        threads_in_group.get(thread)
        and not (step_counter.thread == thread and step_counter.count(optimizer))
    ) or is_compiling():
        return

    def act(monitor: Monitor) -> None:
        monitor.optimizer_stepped()
        notify_loop(Loop.optimizer_ended)

    _act(act)


def _after(event: Callable[[Any, Monitor], None]) -> Around:
    """Return a context that calls `event` with the method's owner and the monitor after the call."""

    @contextmanager
    def around(owner: Any) -> Iterator[None]:
        yield
        _act(partial(event, owner))

    return around


def _made(optimizer: Any, _monitor: Monitor) -> None:
    notify_loop(lambda loop: loop.loop_begins(optimizer))


def _cleared(owner: Any, monitor: Monitor) -> None:
    monitor.attribution.gradients_cleared()
    note_module(owner)
    if hasattr(owner, "param_groups"):
        _made(owner, monitor)


class _Backward:
    def __init__(self, _loss: object) -> None:
        pass

    def __enter__(self) -> None:
        _act(lambda _monitor: backward_begins())

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        _act(lambda _monitor: notify_loop(lambda loop: loop.backward_ended(error), begins=False))


@entry()
def _act(action: Callable[[Monitor], None]) -> None:
    if (monitor := running_monitor()) is not None:
        action(monitor)


# In a group, too, where a function of ours would cost more.
_noted = partial(setattr, step_counter.passes, "begun", 1)
_PLACES = (
    Place(OPTIMIZER, "Optimizer", "__init__", _after(_made)),
    Place(OPTIMIZER, "Optimizer", "zero_grad", _after(_cleared)),
    Place(_MODULE, "Module", "zero_grad", _after(_cleared)),
    Place(_MODULE, "Module", "named_parameters", _after(lambda module, _: note_module(module))),
    Place(_MODULE, "Module", "eval", _after(lambda module, _: evaluates(module))),
    Place("torch.autograd", "", "backward", _Backward, unless=_noted),
)
