"""A fault of ours must not change the user's code that runs around it.

Whatever the user's code enters of ours (a hook, a callback, a wrapped function, an edge of a span, a
listener) is an `entry`: the one guard through which all of them go. It holds signals back for as long as
ours runs, and keeps what goes wrong there from the user's code.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from hfmem_widget.interrupts import (
    interrupts_deferred,
    is_deferring,
    raised_by_handler,
    stop_deferring,
)

P = ParamSpec("P")
R = TypeVar("R")


def entry(
    *,
    otherwise: Callable[..., Any] | None = None,
    undo: Callable[..., object] | None = None,
    lets: type[Exception] | tuple[type[Exception], ...] = (),
    defers: bool = True,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make of a function one that the user's code may call whatever goes wrong in it.

    A fault in it costs one line on stderr. What a signal's handler of the user's raised passes, once the
    function is done, and so do `SystemExit` and the like.

    Parameters
    ----------
    otherwise : callable, optional
        Returns, for the same arguments, what the user's code gets after a fault; None by default.
    undo : callable, optional
        Takes back, for the same arguments, what was begun, if the function did not return.
    lets : type of Exception or tuple of them, optional
        What it raises on purpose.
    defers : bool, optional
        Whether signals wait until it is done; not worth it where it only makes something.
    """

    def guarded_by(action: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(action)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            # IPython leaves frames that say so out of the user's traceback.
            __tracebackhide__ = True
            is_outermost = False
            try:
                if not defers:
                    return action(*args, **kwargs)
                is_outermost = not is_deferring()
                with interrupts_deferred():
                    return action(*args, **kwargs)
            except BaseException as error:
                passes = not isinstance(error, Exception)
                try:
                    passes = not isinstance(error, Exception) or _passes(error, lets)
                    if undo is not None and not isinstance(error, lets):
                        with interrupts_deferred():
                            undo(*args, **kwargs)
                except Exception:  # noqa: BLE001, S110  (no memory is left, or no stack, even for this)
                    pass
                if is_outermost:
                    stop_deferring()
                if passes:
                    raise
            try:
                return otherwise(*args, **kwargs) if otherwise is not None else None  # type: ignore[return-value]  # the caller's own
            except Exception:  # noqa: BLE001  (nothing can be made where there is no memory)
                return None  # type: ignore[return-value]

        return guarded

    return guarded_by


def harmless(action: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Do something of ours; a fault in it costs one line on stderr, and not what else is to be done."""
    try:
        action(*args, **kwargs)
    except Exception as error:
        if _passes(error):
            raise


def each(*actions: Callable[[], object]) -> None:
    """Do all of it, in this order; a fault in one keeps no other from being done, and is raised then."""
    if actions:
        try:
            actions[0]()
        finally:
            each(*actions[1:])


def warn(sentence: str) -> None:
    """Say something on stderr; where nothing can be written, it is not said."""
    try:
        print(f"memwatch: {sentence}", file=sys.stderr)  # noqa: T201
    except Exception as error:
        # The disk is full, the reader of a pipe is gone, a test has closed it.
        if raised_by_handler(error):
            raise


def _passes(error: Exception, lets: type[Exception] | tuple[type[Exception], ...] = ()) -> bool:
    """Return whether an error is for the user's code; if it is a fault of ours, say so."""
    if isinstance(error, lets) or raised_by_handler(error):
        return True
    warn(f"{type(error).__name__}: {error}")
    return False
