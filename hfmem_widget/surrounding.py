"""Surrounding a method of somebody else's class with a context of ours, and putting the original back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hfmem_widget.faults import warn

Around = Callable[[Any], AbstractContextManager[object]]
"""Takes the object whose method is called."""

_ORIGINAL = "_hfmem_original"


def surround(owner: type, method: str, around: Around) -> None:
    """Have every call of a method happen in the context that `around(self)` gives; once is enough.

    A method that is not there, as in another release, is left out.
    """
    original = vars(owner).get(method)
    if not callable(original) or hasattr(original, _ORIGINAL):
        return

    @functools.wraps(original)
    def surrounded(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        # IPython leaves frames that say so out of the user's traceback.
        __tracebackhide__ = True
        with _context(around, self):
            return original(self, *args, **kwargs)

    setattr(surrounded, _ORIGINAL, original)
    setattr(owner, method, surrounded)


def restore(owner: type, method: str) -> None:
    """Put the original method back, unless somebody else has surrounded ours."""
    original = getattr(vars(owner).get(method), _ORIGINAL, None)
    if original is not None:
        setattr(owner, method, original)


def _context(around: Around, owner: object) -> AbstractContextManager[object]:
    try:
        return around(owner)
    except Exception as error:  # noqa: BLE001  (a fault of ours must not keep a training from running)
        warn(f"this is not followed ({type(error).__name__}: {error})")
        return nullcontext()
