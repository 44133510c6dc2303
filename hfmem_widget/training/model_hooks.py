"""Forward hooks that tell where a forward pass begins and ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from hfmem_widget.training.batch import shape_of


class ModelHooks:
    """Calls `before(counts)` and `after()` around every forward pass of one module, until it is removed.

    Parameters
    ----------
    module : torch.nn.Module
        The outermost one: hooks of an inner module would run in the replicas of ``nn.DataParallel``, and be
        traced into what ``torch.compile`` compiles.
    before : callable
        Takes what `shape_of` says of the batch.
    after : callable
    """

    def __init__(
        self,
        module: Any,
        *,
        before: Callable[[Mapping[str, float]], None],
        after: Callable[[], None],
    ) -> None:
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

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return (_inert, ())


class _Before(_Hook):
    def __init__(self, before: Callable[[Mapping[str, float]], None]) -> None:
        self._before = before
        self._traced = _is_compiling()

    def __call__(self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._traced():
            self._before(shape_of(args, kwargs))


class _After(_Hook):
    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._traced = _is_compiling()

    def __call__(self, *_: object) -> None:
        if not self._traced():
            self._after()


def _is_compiling() -> Callable[[], bool]:
    """Return what says whether torch.compile is tracing: a hook must not get into what it makes."""
    return cast("Callable[[], bool]", sys.modules["torch"].compiler.is_compiling)


def _does_nothing(*_: object, **__: object) -> None:
    return None


def _inert() -> Callable[..., None]:
    return _does_nothing
