"""The guard between the user's code and ours: none of our faults reaches the user, and no signal is lost.

Each of our functions that the user's code enters (a hook, a callback, a wrapped function, an edge of a span,
a listener) is an `entry`. It defers signals while our code runs, and catches our faults.
"""

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
"""No threads: the default of the threads on which an `entry` does nothing."""

FADING, MOST_SECONDS = 0.05, 1e-4
"""The mean time of the guard: the weight of each new time, and the most seconds that count of it."""

_handler_of: Callable[[int], Any] = _signal.getsignal
_handle: Callable[[int, Any], Any] = _signal.signal

_imported = globals().get("_imported", time.time())
"""When the package was imported, in seconds since 1970; a reload of this module keeps it."""

CHANGED = "hfmem_widget's files have changed since it was imported: restart the kernel."


class _StandIn:
    """A handler that keeps signals while they are deferred, and passes on later ones."""

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
        """Restore the usual handler, and the system's action, which includes `signal.siginterrupt`."""
        _handle(self.number, self.usual)
        _action(self.number, self.action)


@dataclass(slots=True)
class _State:
    """The changing state of the guard in this process."""

    # The thread that defers signals; a child forked by another has none
    deferring: int | None = None
    held: list[_StandIn] = field(default_factory=list)  # the handlers that stand in on that thread
    seconds: float = 1e-5  # the mean time of the guard
    # Our faults that are on stderr already: the type, and where it was raised.
    faults: set[tuple[type[Exception], tuple[CodeType, int] | None]] = field(default_factory=set)


_state = _State()


@functools.cache
def _sigaction() -> tuple[Callable[..., int], Any] | None:
    """Return the C library's `sigaction`, and a buffer for its result; None if it does not exist."""
    import ctypes

    try:
        function = ctypes.CDLL(None).sigaction
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return function, ctypes.create_string_buffer(512)


def _action(number: int, new: bytes | None = None) -> bytes:
    """Return the system's action for a signal, and replace it if a `new` one is given."""
    function_and_action = _sigaction()
    if function_and_action is None:
        return b""
    function, before = function_and_action
    function(number, new, before)
    return before.raw  # type: ignore[no-any-return]


def _stand_in_for(number: int, usual: Any) -> None:
    """Keep a signal. A handler in C that has replaced Python's stays, and may pass the signal on."""
    action = _action(number)
    # A stand-in that a fault has left behind knows the usual handler.
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
    """Return whether signals are deferred on this thread."""
    return _state.deferring == threading.get_ident()


def stop_deferring() -> None:
    """Restore the usual handlers on this thread, and deliver the deferred signals; harmless if repeated."""
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
    """Defer signals with handlers in Python for the milliseconds of a block, and deliver them after it.

    Within another such block, or on another thread than the main one, it does nothing.
    """

    # A class, because a generator costs twice as much.
    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        thread = threading.get_ident()
        self._is_outermost = thread != _state.deferring and thread == threading.main_thread().ident
        if not self._is_outermost:
            return
        try:
            began = time.perf_counter()
            _state.deferring = thread
            for number in DEFERRED:
                usual = _handler_of(number)
                if callable(usual):
                    _stand_in_for(number, usual)
            # Restoring them takes as long. The limit excludes the time of other processes.
            took = 2 * (time.perf_counter() - began)
            _state.seconds += FADING * (min(took, MOST_SECONDS) - _state.seconds)
        except BaseException:
            stop_deferring()
            raise

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            stop_deferring()


def seconds_of_an_event() -> float:
    """Return the seconds of the guard around an event of a training, which no clock within it sees."""
    return _state.seconds


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised an error, which then belongs to the user's code.

    Handlers run between any two instructions, so code that catches our faults may catch such an error.
    """
    codes = set(map(_code_of, map(_handler_of, signal.valid_signals())))
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in codes:
            return True
        if frame.f_code is _deliver.__code__ and "stand_in" in frame.f_locals:
            # A handler that has replaced itself is no longer in the table.
            codes.add(_code_of(frame.f_locals["stand_in"].usual))
        traceback = traceback.tb_next
    return False


def _deliver(held: list[_StandIn]) -> None:
    """Call the handler of each signal that has come, once; an error in one does not stop the others."""
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
    # A method has its function's code; a callable object has a method `__call__`.
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

    Errors of signal handlers, `SystemExit` and the like pass. On threads with a true value in `unless_on` the
    function is not called, which takes far less time than the guard. With the arguments of the call,
    `otherwise` returns the result after a fault (by default None), and `undo` reverts what was begun if the
    function did not return. Errors of the types `lets`, raised on purpose, pass. If it `defers`, signals wait
    until the function has ended; a function that only creates an object does not need that.
    """

    def guarded_by(action: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(action)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            # IPython leaves frames with this name out of the user's traceback.
            __tracebackhide__ = True
            is_outermost = False
            try:
                thread = threading.get_ident()
                if unless_on.get(thread):
                    return None  # type: ignore[return-value]  # a function with `unless_on` returns None
                is_outermost = _state.deferring != thread
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
    try:
        return otherwise(*args, **kwargs) if otherwise is not None else None
    except (MemoryError, RecursionError):
        raise  # the user's code has reached the same limit
    except Exception:  # noqa: BLE001  (the function itself has failed already)
        return None


def harmless(action: Callable[..., R], *args: object, **kwargs: object) -> R | None:
    """Call one of our functions; a fault in it costs one line on stderr, and returns None."""
    try:
        return action(*args, **kwargs)
    except Exception as error:
        if is_for_user(error):
            raise
    return None


def call_all(*actions: Callable[[], object]) -> None:
    """Call all of them in order; a fault in one is raised after the others were called."""
    if actions:
        try:
            actions[0]()
        finally:
            call_all(*actions[1:])


def warn(sentence: str) -> None:
    """Write a sentence to stderr, if that is possible and Python is not shutting down."""
    if sys.is_finalizing():
        return
    try:
        print(f"memwatch: {sentence}", file=sys.stderr)  # noqa: T201
    except Exception as error:
        # The disk is full, the reader of a pipe is gone, a test has closed it.
        if raised_by_handler(error):
            raise


def is_for_user(error: Exception, lets: type[Exception] | tuple[type[Exception], ...] = ()) -> bool:
    """Return whether an error is the user's; a fault of ours goes to stderr, once: a hook would repeat it."""
    try:
        if isinstance(error, lets) or raised_by_handler(error):
            return True
        # The limits of memory and of recursion are reached at many places.
        is_limit = isinstance(error, (MemoryError, RecursionError))
        fault = type(error), None if is_limit else _place_of(error)
        if fault not in _state.faults:
            _state.faults.add(fault)
            warn(fault_text(error))
    except Exception:  # noqa: BLE001, S110  (no memory is left, or no stack, even for this)
        pass
    return False


def fault_text(error: Exception) -> str:
    """Return the text of a fault; after an upgrade, a running kernel may have modules of two versions."""
    fault = ": ".join(filter(None, (type(error).__name__, str(error))))[:400]
    return f"{fault}. {CHANGED}" if _files_changed() else fault


def _files_changed() -> bool:
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
    """Report faults again that were reported before."""
    _state.faults.clear()
