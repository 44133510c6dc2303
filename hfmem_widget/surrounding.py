"""Surrounding somebody else's method or function with a context of ours, and putting the original back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from hfmem_widget.faults import warn
from hfmem_widget.interrupts import raised_by_handler

Around = Callable[..., AbstractContextManager[object]]
"""Takes the object whose method is called, or all that it is called with."""

NO_KEYWORDS: Mapping[str, Any] = {}


@dataclass(eq=False, slots=True)
class _Surrounded:
    """What stands in for a method; `around` is None while it is left, but covered by another's wrapper."""

    stand_in: object
    original: object
    around: Around | None


# Not an attribute of the function: `functools.wraps` would copy it to whatever wraps ours.
_surrounded: WeakKeyDictionary[type | ModuleType, dict[str, _Surrounded]] = WeakKeyDictionary()


def surround(
    owner: type | ModuleType, name: str, around: Around, *, whole_call: bool = False
) -> None:
    """Have every call happen in the context that `around` gives; once is enough.

    What is not there, as in another release, is left out.

    Parameters
    ----------
    owner : type or module
    name : str
        Of a method (a class method or a static one too) or a function.
    around : callable
        Takes what comes first in the call: the object, the class or the first argument.
    whole_call : bool, optional
        Give `around` all arguments of the call.
    """
    ours = _surrounded.setdefault(owner, {})
    if name in ours:
        ours[name].around = around
        return
    original: Any = vars(owner).get(name)
    kind = type(original) if isinstance(original, (classmethod, staticmethod)) else None
    function: Any = original if kind is None else original.__func__
    if not callable(function):
        return

    @functools.wraps(function)
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        # IPython leaves frames that say so out of the user's traceback.
        __tracebackhide__ = True
        with _context(one.around, args, kwargs) if whole_call else _context(one.around, args[:1]):
            return function(*args, **kwargs)

    stand_in = surrounded if kind is None else kind(surrounded)
    one = ours[name] = _Surrounded(stand_in, original, around)
    setattr(owner, name, stand_in)


def restore(owner: type | ModuleType, name: str) -> None:
    """Put the original back; if somebody else has surrounded ours, it stays and does nothing."""
    ours = _surrounded.get(owner, {})
    one = ours.get(name)
    if one is None:
        return
    one.around = None
    if vars(owner).get(name) is one.stand_in:
        setattr(owner, name, one.original)
        del ours[name]


def _context(
    around: Around | None, args: tuple[Any, ...], kwargs: Mapping[str, Any] = NO_KEYWORDS
) -> AbstractContextManager[object]:
    if around is None:
        return nullcontext()
    try:
        return around(*args, **kwargs)
    except Exception as error:  # a fault of ours must not keep a training from running
        if raised_by_handler(error):
            raise
        warn(f"this is not followed ({type(error).__name__}: {error})")
        return nullcontext()
