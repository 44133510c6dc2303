"""The guard between the user's code and ours: no fault of ours reaches it, and no signal is lost in ours.

Whatever the user's code enters of ours (a hook, a callback, a wrapped function, an edge of a span, a
listener) is an `entry`. It holds signals back while our code runs, and keeps our faults from the user's.
"""

from __future__ import annotations

# `signal.signal` and `signal.getsignal` spend 4 microseconds a call on turning numbers into enumerations.
import _signal  # type: ignore[import-not-found]  # CPython's own, without a stub
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[[int, FrameType | None], object]

_NAMES = "INT ALRM TERM HUP QUIT BREAK USR1 USR2 VTALRM PROF"
DEFERRED = tuple(
    int(getattr(signal, f"SIG{name}")) for name in _NAMES.split() if hasattr(signal, f"SIG{name}")
)
"""Signals whose handlers may raise: to interrupt, to end, and when time is up."""

NO_THREADS: Mapping[int, object] = MappingProxyType({})
"""Threads for which nothing is to be done: none."""

FADING, MOST_SECONDS = 0.05, 1e-4
"""The mean time of the guard: the weight of each new time, and the most seconds that count of it."""

_handler_of: Callable[[int], Any] = _signal.getsignal
_handle: Callable[[int, Any], Any] = _signal.signal

_imported = globals().get("_imported", time.time())
"""When the package was imported, in seconds since 1970; a reload of this module leaves it."""

CHANGED = "hfmem_widget's files have changed since it was imported: restart the kernel."


class _StandIn:
    """A handler that keeps what comes while signals are held back, and passes on what comes later."""

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
        """Put the usual handler back, and what the system calls, such as `signal.siginterrupt` had it."""
        _handle(self.number, self.usual)
        _action(self.number, self.action)


@dataclass(slots=True)
class _State:
    """What changes in the guard of this process, which has one table of handlers."""

    deferring: int | None = None
    """The thread that holds signals back: a child that another thread forks meanwhile does not."""
    held: list[_StandIn] = field(default_factory=list)
    """The handlers that stand in on that thread."""
    seconds: float = 1e-5
    """The mean time of the guard, in seconds."""
    faults: set[tuple[type[Exception], tuple[CodeType, int] | None]] = field(default_factory=set)
    """The faults of ours that are on stderr already: what was raised, and where."""


_state = _State()


@functools.cache
def _sigaction() -> tuple[Callable[..., int], Any] | None:
    """Return the C library's function, and a buffer for its result; None where there is no such function."""
    import ctypes

    try:
        function = ctypes.CDLL(None).sigaction
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return function, ctypes.create_string_buffer(512)


def _action(number: int, new: bytes | None = None) -> bytes:
    """Return what the system does at a signal, and set it if something new is given."""
    function_and_action = _sigaction()
    if function_and_action is None:
        return b""
    function, before = function_and_action
    function(number, new, before)
    return before.raw  # type: ignore[no-any-return]


def _stand_in_for(number: int, usual: Any) -> None:
    """Have a signal kept. A handler in C that has taken Python's place stays, and may pass the signal on."""
    action = _action(number)
    # One that was left behind by a fault knows whose place it took.
    stand_in = _StandIn(number, usual.usual if isinstance(usual, _StandIn) else usual, action)
    _state.held.append(stand_in)
    try:
        _handle(number, stand_in)
    except ValueError:  # in a subinterpreter, which no signal reaches
        _state.held.remove(stand_in)
        return
    # polars takes SIGINT when it is imported, and passes it on.
    _action(number, action)


def is_deferring() -> bool:
    """Return whether signals are held back on this thread."""
    return _state.deferring == threading.get_ident()


def stop_deferring() -> None:
    """Put back the usual handlers on this thread, and deliver what has come; harmless if it is done twice."""
    if not is_deferring():
        return
    try:
        _leave()
    except BaseException:
        _leave()
        raise
    finally:
        held = list(_state.held)
        _state.held.clear()
        _state.deferring = None
        _deliver(held)


def _leave() -> None:
    for stand_in in _state.held:
        stand_in.leave()


class interrupts_deferred:  # noqa: N801  (a context manager reads as a function)
    """Hold back signals with handlers in Python for the milliseconds of a block, and deliver them after it.

    Within another such block, and off the main thread, where no signal arrives, it does nothing.
    """

    # A class, because a generator costs twice as much.
    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        here = threading.get_ident()
        self._is_outermost = here != _state.deferring and here == threading.main_thread().ident
        if not self._is_outermost:
            return
        try:
            began = time.perf_counter()
            _state.deferring = here
            for number in DEFERRED:
                usual = _handler_of(number)
                if callable(usual):
                    _stand_in_for(number, usual)
            # Putting them back takes as long. Another process in between is none of it.
            took = 2 * (time.perf_counter() - began)
            _state.seconds += FADING * (min(took, MOST_SECONDS) - _state.seconds)
        except BaseException:
            stop_deferring()
            raise

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            stop_deferring()


def seconds_of_an_event() -> float:
    """Return what the guard takes around an event of a training, which who measures an event does not see."""
    return _state.seconds


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised an error, which is then for the user's code.

    Handlers run between any two instructions, so whoever catches a fault of ours may catch such an error.
    """
    codes = set(map(_code_of, map(_handler_of, signal.valid_signals())))
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in codes:
            return True
        if frame.f_code is _deliver.__code__ and "stand_in" in frame.f_locals:
            # A handler that has put another in its place is no longer in the table.
            codes.add(_code_of(frame.f_locals["stand_in"].usual))
        traceback = traceback.tb_next
    return False


def _deliver(held: list[_StandIn]) -> None:
    """Call the handlers of what has come, each once; one that raises does not keep another from it."""
    while held:
        stand_in = held.pop(0)
        if stand_in.arrived:
            try:
                stand_in.usual(stand_in.number, stand_in.arrived[0])
            finally:
                _deliver(held)


def _code_of(handler: Any) -> CodeType | None:
    if isinstance(handler, functools.partial):
        handler = handler.func
    # A method says its function's; an object that can be called has a method for it.
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


def entry(
    *,
    unless_on: Mapping[int, object] = NO_THREADS,
    otherwise: Callable[..., Any] | None = None,
    undo: Callable[..., object] | None = None,
    lets: type[Exception] | tuple[type[Exception], ...] = (),
    defers: bool = True,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function that the user's code calls: a fault in it costs one line on stderr.

    What the handler of a signal raised passes once the function is done, and so do `SystemExit` and the like.
    Where what `unless_on` has for the thread is true nothing is done, which takes far less than the guard.
    For the same arguments, `otherwise` returns what the user's code gets after a fault (by default None), and
    `undo` takes back what was begun, if the function did not return. It `lets` errors pass that the function
    raises on purpose. Signals wait until it is done if it `defers`; that is not worth it where it only makes
    something.
    """

    def guarded_by(action: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(action)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            # IPython leaves frames that say so out of the user's traceback.
            __tracebackhide__ = True
            is_outermost = False
            try:
                here = threading.get_ident()
                if unless_on.get(here):
                    return None  # type: ignore[return-value]  # what tells nothing has no result
                is_outermost = _state.deferring != here
                if not defers:
                    return action(*args, **kwargs)
                with interrupts_deferred():
                    return action(*args, **kwargs)
            except BaseException as error:
                passes = not isinstance(error, Exception)
                try:
                    passes = not isinstance(error, Exception) or is_for_user(error, lets)
                    if undo is not None and not isinstance(error, lets):
                        with interrupts_deferred():
                            undo(*args, **kwargs)
                except Exception:  # noqa: BLE001, S110  (no memory is left, or no stack, even for this)
                    pass
                if is_outermost:
                    stop_deferring()
                if passes:
                    raise
            return _instead(otherwise, *args, **kwargs)  # type: ignore[no-any-return]  # the caller's own

        return guarded

    return guarded_by


def _instead(otherwise: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    """Return what the user's code gets after a fault of ours."""
    try:
        return otherwise(*args, **kwargs) if otherwise is not None else None
    except (MemoryError, RecursionError):
        raise  # the user's code has come to the same limit
    except Exception:  # noqa: BLE001  (what it stands in for has failed before)
        return None


def harmless(action: Callable[..., R], *args: object, **kwargs: object) -> R | None:
    """Call something of ours; a fault in it costs one line on stderr, and the caller goes on with None."""
    try:
        return action(*args, **kwargs)
    except Exception as error:
        if is_for_user(error):
            raise
    return None


def call_all(*actions: Callable[[], object]) -> None:
    """Call all of them, in this order; a fault in one is raised after the others were called."""
    if actions:
        try:
            actions[0]()
        finally:
            call_all(*actions[1:])


def warn(sentence: str) -> None:
    """Write a sentence to stderr, if that can be written to, and Python is not shutting down."""
    if sys.is_finalizing():
        return
    try:
        print(f"memwatch: {sentence}", file=sys.stderr)  # noqa: T201
    except Exception as error:
        # The disk is full, the reader of a pipe is gone, a test has closed it.
        if raised_by_handler(error):
            raise


def is_for_user(error: Exception, lets: type[Exception] | tuple[type[Exception], ...] = ()) -> bool:
    """Return whether an error is for the user's code; if it is a fault of ours, write it to stderr once.

    A hook that fails in every step would fill a notebook with its line.
    """
    try:
        if isinstance(error, lets) or raised_by_handler(error):
            return True
        # The limits of memory and of depth are met all over the place.
        is_limit = isinstance(error, (MemoryError, RecursionError))
        fault = type(error), None if is_limit else _place_of(error)
        if fault not in _state.faults:
            _state.faults.add(fault)
            warn(fault_text(error))
    except Exception:  # noqa: BLE001, S110  (no memory is left, or no stack, even for this)
        pass
    return False


def fault_text(error: Exception) -> str:
    """Return a fault of ours in words; an upgrade under a running kernel may leave parts of two versions."""
    fault = f"{type(error).__name__}: {error}"[:400]
    return f"{fault}. {CHANGED}" if _files_changed() else fault


def _files_changed() -> bool:
    """Return whether a file of the package was written since the package was imported."""
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) if name.partition(".")[0] == package else None
        with suppress(OSError):  # the upgrade took the file away
            if file is not None and Path(file).stat().st_mtime > _imported:
                return True
    return False


def _place_of(error: Exception) -> tuple[CodeType, int] | None:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else (traceback.tb_frame.f_code, traceback.tb_lineno)


def forget_faults() -> None:
    """Say the faults of ours again that were said before."""
    _state.faults.clear()
