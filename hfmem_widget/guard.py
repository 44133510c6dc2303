"""The guard between the user's code and ours: no fault of ours reaches it, and no signal is lost in ours.

Whatever the user's code enters of ours (a hook, a callback, a wrapped function, an edge of a span, a
listener) is an `entry`: the one guard through which all of them go. It holds signals back for as long as
ours runs, and keeps what goes wrong there from the user's code.
"""

from __future__ import annotations

# `signal.signal` and `signal.getsignal` spend 4 microseconds a call on turning numbers into enumerations.
import _signal  # type: ignore[import-not-found]  # CPython's own, without a stub
import functools
import signal
import struct
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
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

    def __init__(self, number: int, usual: Handler, action: bytes) -> None:
        self.number = number
        self.usual = usual
        self.action = action
        self.arrived: list[FrameType | None] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if is_deferring():
            self.arrived.append(frame)
        else:
            self.usual(number, frame)

    def leave(self) -> None:
        """Put the usual handler back, and how the system calls it, such as `signal.siginterrupt` had it."""
        _handle(self.number, self.usual)
        _write_action(self.number, self.action)


_held: list[_StandIn] = []
"""Who stands in on the thread that defers."""

_HANDLER = struct.calcsize("P")
"""Of what `sigaction` says, the bytes that are the handler's address."""

_pythons_own = b""
"""The address of the handler by which Python hears of signals; the same for all of them."""


@functools.cache
def _sigaction() -> tuple[Callable[..., int], Any] | None:
    """Return the C library's own function, and a place for what it says; None where there is none."""
    import ctypes

    try:
        function = ctypes.CDLL(None).sigaction
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return function, ctypes.create_string_buffer(512)


def _read_action(number: int) -> bytes:
    found = _sigaction()
    if found is None:
        return b""
    function, place = found
    function(number, None, place)
    read: bytes = place.raw
    return read


def _write_action(number: int, action: bytes) -> None:
    found = _sigaction()
    if found is not None:
        found[0](number, action, None)


def _stand_in_for(number: int, usual: Any) -> None:
    """Have a signal kept, unless a handler in C has it: Python's table does not know of that one."""
    global _pythons_own  # noqa: PLW0603  (a process has one table of handlers)
    action = _read_action(number)
    if _pythons_own and action[:_HANDLER] != _pythons_own:
        return
    # One that was left behind by a fault knows whose place it took.
    held = _StandIn(number, usual.usual if isinstance(usual, _StandIn) else usual, action)
    _held.append(held)
    try:
        _handle(number, held)
    except ValueError:  # in a subinterpreter, which no signal reaches
        _held.remove(held)
        return
    if not _pythons_own:
        _pythons_own = _read_action(number)[:_HANDLER]
        if action[:_HANDLER] != _pythons_own:
            held.leave()
            _held.remove(held)


def is_deferring() -> bool:
    """Return whether signals are held back on this thread."""
    return _deferring == threading.get_ident()


def stop_deferring() -> None:
    """Put back the handlers that stand aside on this thread, and deliver what has come.

    It is done at the end of `interrupts_deferred`, and again by who comes after a fault in that.
    """
    global _deferring  # noqa: PLW0603  (a process has one table of handlers)
    if not is_deferring():
        return
    try:
        _leave()
    except BaseException:
        _leave()
        raise
    finally:
        held = list(_held)
        _held.clear()
        _deferring = None
        _deliver(held)


def _leave() -> None:
    for one in _held:
        one.leave()


class interrupts_deferred:  # noqa: N801  (a context manager reads as a function)
    """Hold back signals with handlers in Python for the milliseconds of a block, and deliver them after it.

    Elsewhere than on the main thread, where signals never arrive, and within another such block it does
    nothing. A class, because a generator costs twice as much.
    """

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        global _deferring  # noqa: PLW0603  (a process has one table of handlers)
        here = threading.get_ident()
        self._is_outermost = here != _deferring and here == threading.main_thread().ident
        if not self._is_outermost:
            return
        try:
            _deferring = here
            for number in DEFERRED:
                usual = _handler_of(number)
                if callable(usual):
                    _stand_in_for(number, usual)
        except BaseException:
            stop_deferring()
            raise

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            stop_deferring()


def raised_by_handler(error: BaseException) -> bool:
    """Return whether it was a handler of a signal that raised: an error of the user's, for the user's code.

    Handlers run between any two instructions, so whoever catches a fault of ours may catch such an error.
    """
    codes = set(map(_code_of, map(_handler_of, signal.valid_signals())))
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in codes:
            return True
        if frame.f_code is _deliver.__code__ and "one" in frame.f_locals:
            # One that has put another in its place is no longer in the table.
            codes.add(_code_of(frame.f_locals["one"].usual))
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
