"""Following every optimizer of torch, by the hooks that torch offers for it.

Before a step the gradients are ready, and after the first one the states are there; a loop written by hand
has no other such moment. Where nothing is being watched, a hook only asks whether something is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hfmem_widget.guard import entry
from hfmem_widget.monitor.patch import is_compiling, restore, surround

if TYPE_CHECKING:
    from hfmem_widget.monitor.monitor import Monitor

OPTIMIZER = "torch.optim.optimizer"

_handles: list[Any] = []


def follow_optimizers() -> None:
    """Follow every optimizer from now on, if torch has been imported; doing so again does nothing."""
    module: Any = sys.modules.get(OPTIMIZER)
    if module is None or _handles or not hasattr(module, "register_optimizer_step_pre_hook"):
        return
    _handles.append(module.register_optimizer_step_pre_hook(_steps))
    _handles.append(module.register_optimizer_step_post_hook(_stepped))
    for owner in _owners():
        surround(owner, "zero_grad", _clearing)


def leave_optimizers() -> None:
    """Follow them no longer."""
    while _handles:
        _handles.pop().remove()
    for owner in _owners():
        restore(owner, "zero_grad")


def _steps(optimizer: object, _args: object, _kwargs: object) -> None:
    if not is_compiling():
        _act(lambda monitor: monitor.attribution.optimizer_steps(optimizer))


def _stepped(_optimizer: object, _args: object, _kwargs: object) -> None:
    if not is_compiling():
        _act(lambda monitor: monitor.optimizer_stepped())


@contextmanager
def _clearing(_owner: object) -> Iterator[None]:
    yield
    _act(lambda monitor: monitor.attribution.gradients_cleared())


@entry()
def _act(action: Callable[[Monitor], None]) -> None:
    # Not imported before the first watch.
    shared: Any = sys.modules.get("hfmem_widget.monitor.shared")
    monitor = None if shared is None else shared.running_monitor()
    if monitor is not None:
        action(monitor)


def _owners() -> list[type]:
    """Return the classes whose `zero_grad` frees gradients, as far as they are there."""
    places = ((OPTIMIZER, "Optimizer"), ("torch.nn.modules.module", "Module"))
    found = (getattr(sys.modules.get(module), name, None) for module, name in places)
    return [owner for owner in found if isinstance(owner, type)]
