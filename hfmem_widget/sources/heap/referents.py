"""What an object holds, found without running any code of its type.

No property, ``__getattr__``, ``__iter__`` or lazy loading is touched: an object is asked for what it holds
through the descriptors and methods of Python's own base types, or as the garbage collector asks it.
"""

from __future__ import annotations

import collections
import functools
import gc
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

from hfmem_widget.sources.heap.frames import in_exception, in_frame, in_generator, in_traceback
from hfmem_widget.sources.heap.paths import ARROW, ATOMS, Held, is_of_jupyter

FEW_KEYS = 8
"""A dict with no more keys is as good as an object with attributes: each key is a name of its own."""

MAY_HOLD_NOTHING = frozenset({list, dict, tuple, set, frozenset, collections.deque})
"""Of these, and of plain objects, the garbage collector knows all that they hold."""

_SHOWN_KEY = 40

_LEVELS = 3
_FEW_HELD = 16
"""Where a small object is looked through at once: an instance, its dict, a list of numbers in that."""


def fields_of(value: object) -> dict[str, Any]:
    """Return an object's own fields, and none that a proxy would look up for them."""
    for kind in type(value).__mro__:
        own = vars(kind).get("__dict__")
        if own is not None:
            # A module's is a member, everybody else's a getter; anything else is the user's own code.
            native = type(own) in {GetSetDescriptorType, MemberDescriptorType}
            found = own.__get__(value) if native else None
            return found if type(found) is dict else {}
    return {}


Look = Callable[[Any], Iterator[Held]]


def look_into(kind: type, user_modules: Collection[str] = ()) -> Look | None:
    """Return how to find what objects of a type hold, for what is no tensor, model or graph.

    Parameters
    ----------
    kind : type
    user_modules : collection of str
        Modules whose classes' own attributes count.

    Returns
    -------
    callable or None
        Takes an object, yields what it holds. None where nothing is to be looked for.
    """
    if kind in ATOMS or issubclass(kind, ModuleType) or is_of_jupyter(vars(kind).get("__module__")):
        return None
    if issubclass(kind, type):
        return lambda value: _in_class(value, user_modules)
    for base, look in _BY_BASE:
        if kind is base:
            return look
        if issubclass(kind, base):
            return lambda value: chain(look(value), _in_object(value))
    return _in_object


def unnamed(look: Callable[[Any], Iterator[Any]]) -> Look:
    """Return how to find what an object holds that has no names within it."""
    return lambda value: (("", held) for held in look(value))


def may_hold_nothing(kind: type, look: Look | None) -> bool:
    """Return whether `holds_nothing` can be asked of a type's objects."""
    return kind in MAY_HOLD_NOTHING or look is _in_object


def holds_nothing(
    value: object, may_hold_nothing: Callable[[type], bool], deeper: int = _LEVELS
) -> bool:
    """Tell objects that hold numbers and text alone, as most do, without making their ``__dict__``.

    Parameters
    ----------
    value : object
        Of a type that may hold nothing.
    may_hold_nothing : callable
        Whether objects of a type may, of which the garbage collector knows all that they hold.
    deeper : int, optional
        Levels below it that are looked through, as long as there is little in each.
    """
    held_by_it = gc.get_referents(value)
    deeper = deeper if len(held_by_it) <= _FEW_HELD else 0
    for held in held_by_it:
        kind = type(held)
        if kind in ATOMS or kind is type:
            continue
        if deeper and may_hold_nothing(kind):
            if not holds_nothing(held, may_hold_nothing, deeper - 1):
                return False
        elif not issubclass(kind, type):
            return False
    return True


def _in_object(value: Any) -> Iterator[Held]:
    fields = fields_of(value)
    slots = any("__slots__" in vars(kind) for kind in type(value).__mro__)
    if slots:
        yield from _in_slots(value)
    elif not fields and gc.is_tracked(value):
        yield from _in_c(value)
    yield from kept_fields(value)


def kept_fields(value: object, without: frozenset[str] = frozenset()) -> Iterator[Held]:
    """Yield an object's own fields as attributes."""
    for name, held in list(fields_of(value).items()):
        if type(held) not in ATOMS and name not in without:
            yield f".{name}", held


def _in_slots(value: Any) -> Iterator[Held]:
    for kind in type(value).__mro__:
        if "__slots__" not in vars(kind):
            continue
        for name, slot in list(vars(kind).items()):
            if type(slot) is MemberDescriptorType:
                try:
                    yield f".{name}", slot.__get__(value)
                except AttributeError:  # a slot that was never filled
                    continue


def _in_class(kind: type, user_modules: Collection[str]) -> Iterator[Held]:
    own: MappingProxyType[str, Any] = type.__dict__["__dict__"].__get__(kind)
    if str(own.get("__module__")) not in user_modules:
        return
    for name, held in list(own.items()):
        if type(held) not in ATOMS and type(held) not in {
            MemberDescriptorType,
            GetSetDescriptorType,
        }:
            yield f".{name}", held


def _in_items(values: Iterator[Any]) -> Iterator[Held]:
    copied = list(values)
    # A list of a million numbers costs one pass in C.
    if ATOMS.issuperset(set(map(type, copied))):
        return
    for index, held in enumerate(copied):
        if type(held) not in ATOMS:
            yield (index,), held


def _in_set(values: Iterator[Any]) -> Iterator[Held]:
    for _, held in _in_items(values):
        yield "{\u2026}", held


def _in_tuple(value: Any) -> Iterator[Held]:
    names: Any = next(
        (vars(one)["_fields"] for one in type(value).__mro__ if "_fields" in vars(one)), ()
    )
    names = names if type(names) is tuple else ()
    for segment, held in _in_items(tuple.__iter__(value)):
        index: Any = segment[0]
        yield (f".{names[index]}" if index < len(names) else segment), held


def _in_dict(value: Any) -> Iterator[Held]:
    items = list(dict.items(value))
    if ATOMS.issuperset({type(held) for _, held in items}) and ATOMS.issuperset(
        {type(key) for key, _ in items}
    ):
        return
    for key, held in items:
        name = key_text(key)
        if type(held) not in ATOMS:
            yield (f"[{name}]" if len(items) <= FEW_KEYS else (name,)), held
        if type(key) not in ATOMS:
            yield f"[{name}] (its key)", key


def key_text(key: object) -> str:
    """Return how a key is written, without asking it where its type is not Python's own."""
    if type(key) in {str, bytes, int, float, bool, type(None)}:
        text = repr(key[:_SHOWN_KEY] if isinstance(key, (str, bytes)) else key)
        return text if len(text) <= _SHOWN_KEY + 4 else f"{text[:_SHOWN_KEY]}\u2026"
    return "\u2026"


def _in_function(function: Any) -> Iterator[Held]:
    code: CodeType = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{ARROW}{name}", cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    for name, held in (
        *zip(names, defaults, strict=False),
        *(function.__kwdefaults__ or {}).items(),
    ):
        yield f"({name}=\u2026)", held


def _in_method(method: Any) -> Iterator[Held]:
    yield ".__self__", method.__self__
    yield "", method.__func__


def _in_builtin(function: Any) -> Iterator[Held]:
    yield ".__self__", function.__self__


def _in_partial(partial: Any) -> Iterator[Held]:
    for name in ("func", "args", "keywords"):
        yield f".{name}", vars(functools.partial)[name].__get__(partial)


def _in_cell(cell: Any) -> Iterator[Held]:
    try:
        yield "", cell.cell_contents
    except ValueError:
        return


def _in_c(value: Any) -> Iterator[Held]:
    """Yield what an object without fields holds, as the garbage collector is told."""
    for held in gc.get_referents(value):
        # What an iterator goes through is not the user's own tuple.
        for one in held if type(held) is tuple else (held,):
            if not issubclass(type(one), (type, ModuleType, FrameType)) and type(one) not in ATOMS:
                yield "", one


_BY_BASE: tuple[tuple[type, Look], ...] = (
    (list, lambda value: _in_items(list.__iter__(value))),
    (dict, _in_dict),
    (tuple, _in_tuple),
    (set, lambda value: _in_set(set.__iter__(value))),
    (frozenset, lambda value: _in_set(frozenset.__iter__(value))),
    (collections.deque, lambda value: _in_items(collections.deque.__iter__(value))),
    (FunctionType, _in_function),
    (MethodType, _in_method),
    (BuiltinFunctionType, _in_builtin),
    (functools.partial, _in_partial),
    (
        type(functools.lru_cache(lambda: None)),
        lambda value: chain(_in_c(value), kept_fields(value)),
    ),
    (BaseException, in_exception),
    (TracebackType, in_traceback),
    (FrameType, in_frame),
    (CellType, _in_cell),
    (GeneratorType, in_generator),
    (CoroutineType, in_generator),
    (AsyncGeneratorType, in_generator),
)
