"""A signal may come at any instant, but not in the middle of our own bookkeeping, and is never lost in it."""

from __future__ import annotations

# `signal.signal` and `signal.getsignal` spend 4 microseconds a call on turning numbers into enumerations.
import _signal  # type: ignore[import-not-found]  # CPython's own, without a stub
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], object]

_NAMES = (
    *("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK"),
    *("SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF"),
)

DEFERRED = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
"""Signals of which people's own handlers raise: to interrupt, to end, and when time is up."""

_handler_of: Callable[[int], Any] = _signal.getsignal
_handle: Callable[[int, Any], Any] = _signal.signal

_deferring: int | None = None
"""The thread that holds signals back: a child that another thread forks meanwhile does not."""


class _StandIn:
    """Keeps what comes while signals are held back; should it stay after that, it passes on what comes."""

    def __init__(self, number: int, usual: Handler) -> None:
        self.number = number
        self.usual = usual
        self.arrived: list[FrameType | None] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _deferring == threading.get_ident():
            self.arrived.append(frame)
        else:
            self.usual(number, frame)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back signals with handlers in Python for the milliseconds of the block, and deliver them after it.

    Elsewhere than on the main thread, where signals never arrive, and within another such block it does
    nothing.
    """
    global _deferring  # noqa: PLW0603  (a process has one table of handlers)
    here = threading.get_ident()
    if here in {_deferring, None} or here != threading.main_thread().ident:
        yield
        return
    held: list[_StandIn] = []
    try:
        _deferring = here
        for number in DEFERRED:
            usual = _handler_of(number)
            if callable(usual):
                users = usual.usual if isinstance(usual, _StandIn) else usual
                held.append(_StandIn(number, users))
                _handle(number, held[-1])
        yield
    finally:
        try:
            for one in held:
                _handle(one.number, one.usual)
        finally:
            _deferring = None
            _deliver(held)


def raised_by_handler(error: BaseException) -> bool:
    """Return whether it was a handler of a signal that raised: an error of the user's, for the user's code.

    Handlers run between any two instructions, so whoever catches a fault of ours may catch such an error.
    """
    codes = {_deliver.__code__, *map(_code_of, map(_handler_of, signal.valid_signals()))}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _deliver(held: list[_StandIn]) -> None:
    """Call the handlers of what has come, each once; one that raises does not keep another from it."""
    while held:
        one = held.pop(0)
        if one.arrived:
            try:
                one.usual(one.number, one.arrived[0])
            finally:
                _deliver(held)


def _code_of(handler: Any) -> CodeType | None:
    if isinstance(handler, functools.partial):
        handler = handler.func
    # A method says its function's; an object that can be called has a method for it.
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
