"""How a thread's operators are followed: torch's dispatch mode, what it costs, and torch's profiler."""

# ruff: noqa: SLF001  (modes and their stack are offered there only)

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hfmem_widget.guard import harmless
from hfmem_widget.monitor.companion import begun
from hfmem_widget.monitor.patch import restore, surround

TRIED = 50  # operators that are run to see what following them costs

_PROFILERS = ("_run_on_profiler_start", "_run_on_profiler_stop")


def mode_class(torch: Any) -> Any:
    """Return the mode: a class of torch's, which exists only once torch does.

    It calls `before(func, args, kwargs)` before each operator, which returns the operator's name, and
    `after(name, result)` after it.
    """
    base: Any = torch.utils._python_dispatch.TorchDispatchMode

    class FollowOperators(base):  # type: ignore[misc]  # torch is the user's own: no type to be had
        def __init__(
            self, before: Callable[[Any, Any, Any], str], after: Callable[[str, Any], None]
        ) -> None:
            super().__init__()
            self.before, self.after = before, after

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True  # IPython leaves out frames that have this
            name = self.before(func, args, kwargs)
            try:
                result = func(*args, **(kwargs or {}))
            except BaseException as error:
                _without_our_frame(error)
                raise
            self.after(name, result)
            return result

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


def _without_our_frame(error: BaseException) -> None:
    """Take out of an error's traceback this mode's frame, and the one in which torch calls an operator."""
    ours = error.__traceback__
    inside = ours.tb_next if ours is not None else None
    if inside is not None and inside.tb_frame.f_code.co_filename.endswith("_ops.py"):
        inside = inside.tb_next
    # Raised again by a bare `raise`, it goes on from here without this frame.
    error.__traceback__ = inside


def seconds_of_the_way(torch: Any) -> float:
    """Return the least time that one operator takes to come through Python and back.

    Zero if it cannot be tried: the user's own modes, or profiler, would see it.
    """
    profiler = getattr(torch.autograd, "profiler", None)
    if (
        _stack()
        or torch._C._len_torch_function_stack()
        or getattr(profiler, "_is_profiler_enabled", False)
    ):
        return 0.0
    with torch.no_grad():
        tensor = torch.zeros(1)
        plain = _seconds_of_adding(tensor)
        with mode_class(torch)(lambda *_: "", lambda *_: None):
            followed = _seconds_of_adding(tensor)
    return max(0.0, followed - plain)


def _seconds_of_adding(tensor: Any) -> float:
    tensor + tensor
    began = time.thread_time()
    for _ in range(TRIED):
        tensor + tensor
    return (time.thread_time() - began) / TRIED


def remove(mode: Any) -> int:
    """Take our mode off the thread's stack, and leave those above it; return how many are below.

    -1 if it was not there.
    """
    depth = next((at for at, other in enumerate(_stack()) if other is mode), -1)
    if depth >= 0:
        _without_those_above(depth + 1, lambda: mode.__exit__(None, None, None))
    return depth


def put_back(mode: Any, depth: int) -> None:
    """Put our mode into the thread's stack again, above so many modes, and below the others."""
    _without_those_above(depth, mode.__enter__)


def _without_those_above(depth: int, change: Callable[[], object]) -> None:
    dispatch: Any = sys.modules["torch.utils._python_dispatch"]
    above = _stack()[depth:]
    for _ in above:
        dispatch._pop_mode()
    change()
    for mode in above:
        dispatch._push_mode(mode)


def _stack() -> list[Any]:
    dispatch: Any = sys.modules["torch.utils._python_dispatch"]
    return list(dispatch._get_current_dispatch_mode_stack())


class ProfilerWatch:
    """Calls back before a profiler of torch begins, and after it has ended, on its thread.

    For its profilers of every kind, torch calls two functions of `torch.autograd.profiler` by their names
    there, since version 2.1. They are surrounded while a watch needs to know.
    """

    def __init__(self, starts: Callable[[], object], stops: Callable[[], object]) -> None:
        self.calls = dict(zip(_PROFILERS, (starts, stops), strict=True))
        self._module: Any = None

    def begin(self, torch: Any) -> bool:
        """Begin to call back; return whether a profiler runs already."""
        self._module = module = getattr(getattr(torch, "autograd", None), "profiler", None)
        if module is None:
            return False
        begun(ProfilerWatch).append(self)
        for name in _PROFILERS:
            surround(module, name, functools.partial(_calling_back, name))
        return bool(getattr(module, "_is_profiler_enabled", False))

    def end(self) -> None:
        """Call back no more."""
        watches = begun(ProfilerWatch)
        if self in watches:
            watches.remove(self)
            for name in () if watches else _PROFILERS:
                restore(self._module, name)


@contextmanager
def _calling_back(name: str) -> Iterator[None]:
    for watch in tuple(begun(ProfilerWatch)):
        harmless(watch.calls[name])
    yield
