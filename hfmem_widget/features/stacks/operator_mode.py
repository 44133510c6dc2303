"""The mode through which a thread's operators come by, and what that costs."""

# ruff: noqa: SLF001  (modes and their stack are offered there only)

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

TRIED = 50
"""Operators that are run to see what following them costs."""


class Tracker(Protocol):
    """Whoever is told of operators."""

    def before(self, func: Any, args: Any, kwargs: Any) -> str:
        """Return the operator's name, empty if it is not followed."""
        ...

    def after(self, name: str, found: Any) -> None:
        """Take what it returned."""
        ...


class _Nobody:
    """Follows nothing."""

    def before(self, func: Any, args: Any, kwargs: Any) -> str:
        return ""

    def after(self, name: str, found: Any) -> None:
        pass


def mode_class(torch: Any) -> Any:
    """Return the mode; a class of torch's, which is not there before torch is."""
    base: Any = torch.utils._python_dispatch.TorchDispatchMode

    class FollowOperators(base):  # type: ignore[misc]  # torch is the user's own: no type to be had
        def __init__(self, tracker: Tracker) -> None:
            super().__init__()
            self.tracker = tracker

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True  # IPython leaves out frames that have this
            name = self.tracker.before(func, args, kwargs)
            try:
                found = func(*args, **(kwargs or {}))
            except BaseException as error:
                _without_the_way(error)
                raise
            self.tracker.after(name, found)
            return found

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # To have it skipped, torch would import all of its compiler, which takes seconds, and go through
            # it at every operator. What is compiled is not traced into this, as a test holds.
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            # What the user compiles stays compiled.
            return True

    return FollowOperators


def _without_the_way(error: BaseException) -> None:
    """Take out of an error's traceback this mode's frame, and the one in which torch calls an operator."""
    way = error.__traceback__
    inside = way.tb_next if way is not None else None
    if inside is not None and inside.tb_frame.f_code.co_filename.endswith("_ops.py"):
        inside = inside.tb_next
    # Raised again by a bare `raise`, it goes on from here without this frame.
    error.__traceback__ = inside


def seconds_of_the_way(torch: Any) -> float:
    """Return how long one operator takes to come through Python and back at least.

    Zero where it is not tried: the user's own modes, or profiler, would see it.
    """
    dispatch: Any = torch.utils._python_dispatch
    profiler = getattr(torch.autograd, "profiler", None)
    if (
        dispatch._get_current_dispatch_mode_stack()
        or torch._C._len_torch_function_stack()
        or getattr(profiler, "_is_profiler_enabled", False)
    ):
        return 0.0
    tracker = _Nobody()
    with torch.no_grad():
        one = torch.zeros(1)
        plainly = _seconds_of_adding(one)
        with mode_class(torch)(tracker):
            followed = _seconds_of_adding(one)
    return max(0.0, followed - plainly)


def _seconds_of_adding(one: Any) -> float:
    one + one
    began = time.thread_time()
    for _ in range(TRIED):
        one + one
    return (time.thread_time() - began) / TRIED


def remove(mode: Any) -> int:
    """Take our mode off the thread's stack, and leave what the user's code has left above it.

    Returns
    -------
    int
        How many modes are below; -1 if it was not there.
    """
    depth = next((at for at, one in enumerate(_stack()) if one is mode), -1)
    if depth >= 0:
        _without_those_above(depth + 1, lambda: mode.__exit__(None, None, None))
    return depth


def put_back(mode: Any, depth: int) -> None:
    """Put our mode into the thread's stack again, above as many modes, and below those of the user's code."""
    _without_those_above(depth, mode.__enter__)


def _without_those_above(depth: int, change: Callable[[], object]) -> None:
    dispatch: Any = sys.modules["torch.utils._python_dispatch"]
    above = _stack()[depth:]
    for _ in above:
        dispatch._pop_mode()
    change()
    for one in above:
        dispatch._push_mode(one)


def _stack() -> list[Any]:
    dispatch: Any = sys.modules["torch.utils._python_dispatch"]
    return list(dispatch._get_current_dispatch_mode_stack())
