"""Surrounding a method of somebody else's class with a context of ours, and putting the original back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from hfmem_widget.faults import warn

Around = Callable[[Any], AbstractContextManager[object]]
"""Takes the object whose method is called."""


@dataclass(eq=False, slots=True)
class _Surrounded:
    """What stands in for a method; `around` is None while it is left, but covered by another's wrapper."""

    function: Callable[..., Any]
    original: Callable[..., Any]
    around: Around | None


# Not an attribute of the function: `functools.wraps` would copy it to whatever wraps ours.
_surrounded: WeakKeyDictionary[type, dict[str, _Surrounded]] = WeakKeyDictionary()


def surround(owner: type, method: str, around: Around) -> None:
    """Have every call of a method happen in the context that `around(self)` gives; once is enough.

    A method that is not there, as in another release, is left out.
    """
    ours = _surrounded.setdefault(owner, {})
    if method in ours:
        ours[method].around = around
        return
    original = vars(owner).get(method)
    if not callable(original):
        return

    @functools.wraps(original)
    def surrounded(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        # IPython leaves frames that say so out of the user's traceback.
        __tracebackhide__ = True
        with _context(one.around, self):
            return original(self, *args, **kwargs)

    one = ours[method] = _Surrounded(surrounded, original, around)
    setattr(owner, method, surrounded)


def restore(owner: type, method: str) -> None:
    """Put the original method back; if somebody else has surrounded ours, it stays and does nothing."""
    ours = _surrounded.get(owner, {})
    one = ours.get(method)
    if one is None:
        return
    one.around = None
    if vars(owner).get(method) is one.function:
        setattr(owner, method, one.original)
        del ours[method]


def _context(around: Around | None, owner: object) -> AbstractContextManager[object]:
    if around is None:
        return nullcontext()
    try:
        return around(owner)
    except Exception as error:  # noqa: BLE001  (a fault of ours must not keep a training from running)
        warn(f"this is not followed ({type(error).__name__}: {error})")
        return nullcontext()
