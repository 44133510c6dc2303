"""The referents of an object, found without running any code of its type.

No property, ``__getattr__``, ``__iter__`` or lazy loading is touched: referents are read through the
descriptors and methods of Python's own base types, or as the garbage collector reads them.
"""

import collections
import functools
import gc
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain, takewhile
from traceback import walk_tb
from typing import Any

from hfmem_widget.sources.heap.model import ARROW, ATOMS, Held, is_big, is_of_jupyter

FEW_KEYS = 8
"""The most keys of a dict in which each is a name of its own, like an object's attributes."""

CONTAINERS = frozenset({list, dict, tuple, set, frozenset, collections.deque})
"""Types of which the garbage collector knows all referents, as of plain objects."""

_SHOWN_KEY = 40

_NATIVE_DESCRIPTORS = frozenset({types.GetSetDescriptorType, types.MemberDescriptorType})

Look = Callable[[Any], Iterator[Held]]
"""Takes an object and yields its referents."""


def fields_of(value: object) -> dict[str, Any]:
    """Return an object's own fields, and none that a proxy would look up elsewhere."""
    for kind in type(value).__mro__:
        own = vars(kind).get("__dict__")
        if own is not None:
            # A member of modules and a getter of other types; anything else is the user's own code.
            fields = own.__get__(value) if type(own) in _NATIVE_DESCRIPTORS else None
            return fields if type(fields) is dict else {}
    return {}


def look_into(kind: type, user_modules: Collection[str] = ()) -> Look | None:
    """Return the `Look` for a type; None if it is not followed. Of classes, `user_modules`' are followed."""
    if kind in ATOMS or issubclass(kind, types.ModuleType):
        return None
    is_error = issubclass(kind, BaseException)  # such as that of a task that was cancelled
    if is_of_jupyter(vars(kind).get("__module__")) and not is_error:
        return None
    if issubclass(kind, type):
        return lambda value: _in_class(value, user_modules)
    for base, look in _BY_BASE:
        if kind is base:
            return look
        if issubclass(kind, base):
            return lambda value: chain(look(value), in_object(value))
    return in_object


def unnamed(look: Callable[[Any], Iterator[Any]]) -> Look:
    """Return a `Look` that adds nothing to the path."""
    return lambda value: (("", held) for held in look(value))


def in_object(value: Any) -> Iterator[Held]:
    """Yield an object's slots and attributes; if it has neither, the collector's referents."""
    slotted = [kind for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    for kind in slotted:
        for name, slot in list(vars(kind).items()):
            if type(slot) is types.MemberDescriptorType:
                with suppress(AttributeError):  # an empty slot
                    yield f".{name}", slot.__get__(value)
    if not slotted and not fields_of(value) and gc.is_tracked(value):
        yield from in_c(value)
    yield from kept_fields(value)


def kept_fields(value: object, without: frozenset[str] = frozenset()) -> Iterator[Held]:
    """Yield an object's own fields as attributes."""
    for name, held in list(fields_of(value).items()):
        if type(held) not in ATOMS and name not in without:
            yield f".{name}", held


def _in_class(kind: type, user_modules: Collection[str]) -> Iterator[Held]:
    own: types.MappingProxyType[str, Any] = type.__dict__["__dict__"].__get__(kind)
    if str(own.get("__module__")) in user_modules:
        for name, held in list(own.items()):
            if type(held) not in ATOMS and type(held) not in _NATIVE_DESCRIPTORS:
                yield f".{name}", held


def in_items(values: Iterator[Any]) -> Iterator[Held]:
    """Yield the items of a container."""
    copied = list(values)
    # A list of a million numbers costs one pass in C.
    if ATOMS.issuperset(set(map(type, copied))):
        return
    for index, held in enumerate(copied):
        if type(held) not in ATOMS:
            yield (index,), held


def _in_set(values: Iterator[Any]) -> Iterator[Held]:
    for _, held in in_items(values):
        yield "{\u2026}", held


def _in_tuple(value: Any) -> Iterator[Held]:
    classes = map(vars, type(value).__mro__)
    names: Any = next((own["_fields"] for own in classes if "_fields" in own), ())
    names = names if type(names) is tuple else ()
    for segment, held in in_items(tuple.__iter__(value)):
        index: Any = segment[0]
        yield (f".{names[index]}" if index < len(names) else segment), held


def _in_dict(value: Any) -> Iterator[Held]:
    items = list(dict.items(value))
    if ATOMS.issuperset({type(part) for item in items for part in item}):
        return
    for key, held in items:
        name = _key_text(key)
        if type(held) not in ATOMS:
            # Long keys may begin alike.
            which = hash(key) if type(key) in ATOMS else id(key)
            yield (f"[{name}]" if len(items) <= FEW_KEYS else (name, which)), held
        if type(key) not in ATOMS:
            yield f"[{name}] (its key)", key


def _key_text(key: object) -> str:
    """Return a key as text, by its own ``repr`` only if its type is Python's own."""
    if type(key) in {str, bytes, int, float, bool, type(None)}:
        if isinstance(key, (str, bytes)) and len(key) > _SHOWN_KEY:
            return f"{key[:_SHOWN_KEY]!r}\u2026"
        text = repr(key)
        return text if len(text) <= _SHOWN_KEY + 4 else f"{text[:_SHOWN_KEY]}\u2026"
    return "\u2026"


def _in_function(function: Any) -> Iterator[Held]:
    code: types.CodeType = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        for _, held in _in_cell(cell):
            yield f"{ARROW}{name}", held
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    by_name = dict(zip(names, defaults, strict=False)) | (function.__kwdefaults__ or {})
    for name, held in by_name.items():
        yield f"({name}=\u2026)", held


def _in_partial(partial: Any) -> Iterator[Held]:
    for name in ("func", "args", "keywords"):
        yield f".{name}", vars(functools.partial)[name].__get__(partial)


def _in_cell(cell: Any) -> Iterator[Held]:
    with suppress(ValueError):  # a variable without a value yet
        yield "", cell.cell_contents


def in_c(value: Any) -> Iterator[Held]:
    """Yield an object's referents, as the garbage collector sees them."""
    for held in gc.get_referents(value):
        # The tuple that an iterator goes through is not the user's own.
        for inner in held if type(held) is tuple else (held,):
            kind = type(inner)
            if kind not in ATOMS and not issubclass(kind, _NEVER_HELD):
                yield "", inner


_NEVER_HELD = (type, types.ModuleType, types.FrameType)


def in_exception(error: Any) -> Iterator[Held]:
    """Yield an error's traceback, the errors that it follows or groups, and its arguments."""
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        held = vars(BaseException)[name].__get__(error)
        if held is not None:
            yield ("" if name == "__traceback__" else f".{name}"), held
    if issubclass(type(error), BaseExceptionGroup):
        yield ".exceptions", vars(BaseExceptionGroup)["exceptions"].__get__(error)


def in_traceback(traceback: Any) -> Iterator[Held]:
    """Yield the frames of a traceback and of their callers that no longer run."""
    live = {id(frame) for frame in running_frames()}
    # An error also keeps the callers of the function that caught it.
    frames = [*takewhile(lambda at: id(at) not in live, outwards(traceback.tb_frame.f_back))][::-1]
    frames += [frame for frame, _ in walk_tb(traceback)]
    path = ""
    for frame in frames:
        if is_users_function(frame):
            path += f"{ARROW}{frame.f_code.co_name}()"
        if id(frame) not in live:
            yield path, frame


def outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Yield a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def running_frames() -> Iterator[types.FrameType]:
    """Yield the frames that run: the threads' current frames, and their callers'."""
    # Without a variable for the frames: this function's own is among them, and would keep itself.
    return chain.from_iterable(map(outwards, sys._current_frames().values()))  # noqa: SLF001


def is_users_function(frame: types.FrameType) -> bool:
    """Return whether a frame is a function's, not a module's, whose variables are globals, nor Jupyter's."""
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    return is_function and not is_of_jupyter(frame.f_globals.get("__name__"))


def in_frame(frame: Any, owner: object = None) -> Iterator[Held]:
    """Yield the variables of a function's frame, which a generator may own."""
    if not is_users_function(frame):
        return
    # Until 3.12 the frame keeps the dict that `f_locals` returns, and with it values that the function has
    # dropped since. A dict made for us is emptied again, but not while a debugger is in the function: Python
    # then copies the variables back from that dict.
    has_own_dict = sys.version_info < (3, 13) and sys.gettrace() is None
    kept = {id(held) for held in gc.get_referents(frame, owner) if type(held) is dict}
    variables = frame.f_locals
    items = list(variables.items())
    if has_own_dict and id(variables) not in kept:
        variables.clear()
    for name, held in items:
        if type(held) not in ATOMS or is_big(held):
            yield f"{ARROW}{name}", held


def variables_of(error: BaseException) -> Iterator[Any]:
    """Yield the variables of the functions that an error passed, outermost first, and dicts' values."""
    for frame, _ in walk_tb(error.__traceback__):
        for _, held in in_frame(frame):
            yield held
            if type(held) is dict:
                yield from held.values()


def in_generator(generator: Any) -> Iterator[Held]:
    """Yield the variables of a suspended generator or coroutine, and the object that it waits for."""
    prefixes = {"generator": "gi", "coroutine": "cr", "async_generator": "ag"}
    prefix = prefixes[type(generator).__name__]
    frame = getattr(generator, f"{prefix}_frame")
    if frame is not None and not getattr(generator, f"{prefix}_running"):
        yield from in_frame(frame, generator)
    waits_for = getattr(generator, f"{prefix}_{'yieldfrom' if prefix == 'gi' else 'await'}")
    if waits_for is not None:
        yield "", waits_for


_BY_BASE: tuple[tuple[type, Look], ...] = (
    (list, lambda value: in_items(list.__iter__(value))),
    (dict, _in_dict),
    (tuple, _in_tuple),
    (set, lambda value: _in_set(set.__iter__(value))),
    (frozenset, lambda value: _in_set(frozenset.__iter__(value))),
    (collections.deque, lambda value: in_items(collections.deque.__iter__(value))),
    (types.FunctionType, _in_function),
    (types.MethodType, lambda value: iter([(".__self__", value.__self__), ("", value.__func__)])),
    (types.BuiltinFunctionType, lambda value: iter([(".__self__", value.__self__)])),
    (functools.partial, _in_partial),
    (type(functools.lru_cache(len)), lambda value: chain(in_c(value), kept_fields(value))),
    (BaseException, in_exception),
    (types.TracebackType, in_traceback),
    (types.FrameType, in_frame),
    (types.CellType, _in_cell),
    (types.GeneratorType, in_generator),
    (types.CoroutineType, in_generator),
    (types.AsyncGeneratorType, in_generator),
)
