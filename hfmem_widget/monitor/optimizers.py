"""Following every optimizer of torch, by the hooks that torch offers for it.

Before a step the gradients are ready, and after the first one the states are there: in a loop that somebody
wrote by hand no other moment says so. Where nothing is being watched, a hook only asks whether something is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hfmem_widget.guard import entry
from hfmem_widget.monitor.patch import is_compiling, restore, surround

if TYPE_CHECKING:
    from hfmem_widget.monitor.monitor import Monitor

OPTIMIZER = "torch.optim.optimizer"
MODULES = "torch.nn.modules.module"

_handles: list[Any] = []


def follow_optimizers() -> None:
    """Follow every optimizer from now on, if torch has been imported; doing so again does nothing."""
    module: Any = sys.modules.get(OPTIMIZER)
    if module is None or _handles or not hasattr(module, "register_optimizer_step_pre_hook"):
        return
    _handles.append(module.register_optimizer_step_pre_hook(_steps))
    _handles.append(module.register_optimizer_step_post_hook(_stepped))
    for owner in _owners():
        surround(owner, "zero_grad", lambda _owner: _clearing())


def leave_optimizers() -> None:
    """Follow them no longer."""
    while _handles:
        _handles.pop().remove()
    for owner in _owners():
        restore(owner, "zero_grad")


def _steps(optimizer: object, _args: object, _kwargs: object) -> None:
    if not is_compiling():
        _tell("optimizer_steps", optimizer)


def _stepped(_optimizer: object, _args: object, _kwargs: object) -> None:
    if not is_compiling():
        _tell("optimizer_stepped")


@entry()
def _tell(event: str, *args: object) -> None:
    monitor = _running_monitor()
    if monitor is not None:
        getattr(monitor, event)(*args)


def _clearing() -> AbstractContextManager[None]:
    monitor = _running_monitor()
    return nullcontext() if monitor is None else _then(monitor.gradients_cleared)


@contextmanager
def _then(action: Callable[[], object]) -> Iterator[None]:
    yield
    action()


def _running_monitor() -> Monitor | None:
    # Not imported before somebody watches.
    watching: Any = sys.modules.get("hfmem_widget.monitor.shared")
    return None if watching is None else watching.running_monitor()


def _owners() -> list[type]:
    """Return the classes whose `zero_grad` frees gradients, as far as they are there."""
    optim: Any = sys.modules.get(OPTIMIZER)
    modules: Any = sys.modules.get(MODULES)
    there = getattr(optim, "Optimizer", None), getattr(modules, "Module", None)
    return [one for one in there if isinstance(one, type)]
