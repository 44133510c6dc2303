"""Forward hooks that tell where a forward pass begins and ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

from hfmem_widget.training.batch import shape_of


class ModelHooks:
    """Calls `before(counts)` and `after(error)` around every forward pass of one module, until removed.

    A module that ``module.compile()`` has compiled in place gets no hooks: they would be traced, could say
    nothing, and would have it compiled anew.

    Parameters
    ----------
    module : torch.nn.Module
        The outermost one: hooks of an inner module would run in the replicas of ``nn.DataParallel``, and be
        traced into what ``torch.compile`` compiles.
    before : callable
        Takes what `shape_of` says of the batch.
    after : callable
        Takes what the pass raised, or None.
    """

    def __init__(
        self,
        module: Any,
        *,
        before: Callable[[Mapping[str, float]], None],
        after: Callable[[Exception | None], None],
    ) -> None:
        self._handles: list[Any] = []
        if getattr(module, "_compiled_call_impl", None) is None:
            self._handles = [
                module.register_forward_pre_hook(_Before(before), with_kwargs=True),
                module.register_forward_hook(_After(after), always_call=True),
            ]

    def remove(self) -> None:
        """Take the hooks off; taking them off again does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _Hook:
    """A hook whose copies do nothing: of a module copied to average weights, or written to a file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        # Takes a hook's three arguments and returns None, and is there for whoever loads the file without us.
        return (getattr, (nullcontext(), "__exit__"))


class _Before(_Hook):
    def __init__(self, before: Callable[[Mapping[str, float]], None]) -> None:
        self._before = before
        self._traced = _is_compiling()

    def __call__(self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._traced():
            self._before(shape_of(args, kwargs))


class _After(_Hook):
    def __init__(self, after: Callable[[Exception | None], None]) -> None:
        self._after = after
        self._traced = _is_compiling()

    def __call__(self, _module: object, _args: object, result: object) -> None:
        if not self._traced():
            # Where the pass raised, torch calls from the clause that caught it, without a result.
            error = sys.exception() if result is None else None
            self._after(error if isinstance(error, Exception) else None)


def _is_compiling() -> Callable[[], bool]:
    """Return what says whether torch.compile is tracing: a hook must not get into what it makes."""
    return cast("Callable[[], bool]", sys.modules["torch"].compiler.is_compiling)
