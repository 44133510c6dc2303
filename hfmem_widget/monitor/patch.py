"""Patches: a method or function of another library runs within a context of ours, until it is restored.

Neither the caller nor the callee notices: the wrapper has the name and the signature of the original, and
its frame is hidden from tracebacks (`unseen`).
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

from hfmem_widget.guard import NO_THREADS, call_all, entry
from hfmem_widget.monitor.process import Installed, process_state
from hfmem_widget.unseen import OVER, unseen

Around = Callable[..., AbstractContextManager[object]]
"""Takes the called method's object, or all arguments; a method `returned` of the context gets the result."""


class Place(NamedTuple):
    """A method of another library's class, or a function of its module if no class is named."""

    module: str
    owner: str
    name: str
    around: Around
    whole_call: bool = False
    unless: Callable[[], object] = bool
    is_inherited: bool = False


@dataclass(eq=False, slots=True)
class _Patch:
    """A replaced method; `around` is None once it was restored beneath a wrapper of somebody else.

    An inherited method has no `original` in the class itself.
    """

    stand_in: object
    original: object
    around: Around | None


class Patches(WeakKeyDictionary[type | ModuleType, dict[str, _Patch]], Installed):
    """The active patches, by owner and name."""

    # Not an attribute of the function: `functools.wraps` would copy it to every wrapper around ours.


def surround(
    owner: type | ModuleType,
    name: str,
    around: Around,
    *,
    whole_call: bool = False,
    unless: Callable[[], object] = bool,
    is_inherited: bool = False,
    unless_on: Mapping[int, object] = NO_THREADS,
) -> None:
    """Run every call of a method or function within the context that `around` returns; twice is harmless.

    A method that does not exist, as in another release, is skipped; so is an inherited one, unless
    `is_inherited`. `around` takes the first argument of the call (the object or the class), or with
    `whole_call` all of them. It is not called if `unless` returns True, or if the state that `unless_on` has
    for the thread is true, which is quick.
    """
    patches = process_state(Patches).setdefault(owner, {})
    original: Any = vars(owner).get(name)
    if name in patches:
        # Somebody else may have replaced it with what was there before ours.
        if _is_within(patches[name].stand_in, original):
            patches[name].around = around
            return
        patches[name].around = None
    kind = type(original) if isinstance(original, (classmethod, staticmethod)) else None
    function: Any = original if kind is None else original.__func__
    if original is None and is_inherited:
        function = getattr(owner, name, None)
    if not callable(function):
        return

    modules = sys.modules

    @functools.wraps(function)
    @unseen
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        # First, because torch.compile traces only this. Few calls: every step comes here, with cold caches.
        torch: Any = modules.get("torch")
        if torch is not None and torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        try:
            if unless() or unless_on.get(threading.get_ident()) or is_compiling():
                result = function(*args, **kwargs)
            else:
                with _Around(patch, args, kwargs if whole_call else None) as followed:
                    result = function(*args, **kwargs)
                    if followed is not None:
                        followed.result = result
            return result
        finally:
            OVER  # noqa: B018

    stand_in = surrounded if kind is None else kind(surrounded)
    patch = patches[name] = _Patch(stand_in, original, around)
    setattr(owner, name, stand_in)


def surround_inherited(kind: type, name: str, around: Around, **options: Any) -> None:
    """Surround a method in the class that defines it for `kind`, if one does; `options` are `surround`'s."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is not None:
        surround(owner, name, around, **options)


def restore(owner: type | ModuleType, name: str) -> None:
    """Restore the original; ours does nothing from now on, wherever somebody else has wrapped or kept it."""
    patches = process_state(Patches).get(owner, {})
    patch = patches.get(name)
    if patch is None:
        return
    patch.around = None
    if vars(owner).get(name) is patch.stand_in:
        if patch.original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, patch.original)
        del patches[name]


def original_of(owner: type, name: str) -> Any:
    """Return a class's own method as it is without our patch."""
    patch = process_state(Patches).get(owner, {}).get(name)
    return vars(owner)[name] if patch is None else patch.original


def restore_with(*arounds: Around) -> None:
    """Restore all originals that run within one of these contexts."""
    for owner, patches in tuple(process_state(Patches).items()):
        for name in [name for name, patch in patches.items() if patch.around in arounds]:
            restore(owner, name)


def surround_all(places: Iterable[Place], *, unless_on: Mapping[int, object] = NO_THREADS) -> None:
    """Patch all of these that exist in modules that are imported."""
    for place, owner in _owners(places):
        surround(
            owner,
            place.name,
            place.around,
            whole_call=place.whole_call,
            unless=place.unless,
            is_inherited=place.is_inherited,
            unless_on=unless_on,
        )


def restore_all(places: Iterable[Place]) -> None:
    """Restore the originals of all of these; a fault with one does not affect the others."""
    owners = tuple(_owners(places))
    call_all(*(functools.partial(restore, owner, place.name) for place, owner in owners))


def _owners(places: Iterable[Place]) -> Iterator[tuple[Place, type | ModuleType]]:
    for place in places:
        home = sys.modules.get(place.module)
        owner = getattr(home, place.owner, None) if place.owner else home
        if isinstance(owner, type | ModuleType):
            yield place, owner


def _is_within(stand_in: object, current: object) -> bool:
    """Return whether the function in a place is ours, or declares that it wraps ours."""
    ours = getattr(stand_in, "__func__", stand_in)
    for _ in range(50):  # wrappers around wrappers, at most
        if isinstance(current, (classmethod, staticmethod)):
            current = current.__func__
        if current is ours or current is None:
            break
        current = inspect.getattr_static(current, "__wrapped__", None)
    return current is ours


def is_compiling() -> bool:
    """Return whether torch.compile or torch.export is tracing; the result must hold nothing of ours."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def is_traced() -> bool:
    """Return whether torch.compile or a strict torch.export reads the code that calls this."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return bool(getattr(compiler, "is_dynamo_compiling", bool)())


class _Around:
    """The context of one call; a fault in entering or leaving it never reaches the user's code."""

    __slots__ = ("_args", "_context", "_kwargs", "_patch", "result")

    def __init__(
        self, patch: _Patch, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> None:
        self._patch = patch
        self._args = args
        self._kwargs = kwargs
        self._context: AbstractContextManager[object] | None = None
        self.result: Any = None

    def _leave(
        self, _kind: object = None, error: BaseException | None = None, _traceback: object = None
    ) -> None:
        # Forgotten once it is left, for what a fault interrupts is left again.
        if self._context is not None:
            kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
            try:
                self._context.__exit__(kind, error, traceback)
            except BaseException as raised:
                if raised is not error:
                    raise
        self._context = None

    def _was_not_entered(self) -> None:
        # On an error, leaving must not start a generator that was created but not entered.
        self._leave(None, sys.exception())

    @entry(undo=_was_not_entered)
    def __enter__(self) -> Self:
        args, kwargs, around = self._args, self._kwargs, self._patch.around
        # The arguments of the call must not be kept alive while it runs.
        self._args, self._kwargs = (), None
        if around is not None:
            self._context = around(*args[:1]) if kwargs is None else around(*args, **kwargs)
            self._context.__enter__()
        return self

    @entry(undo=_leave)
    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        returned = getattr(self._context, "returned", None)
        if error is None and returned is not None:
            returned(self.result)
        self._leave(_kind, error)
