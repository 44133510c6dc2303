"""Interrupts are held back for our bookkeeping, and never lost."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget import guard as interrupts
from hfmem_widget.guard import harmless, interrupts_deferred, raised_by_handler
from tests.data.modules import run_alone
from tests.data.threads import on_threads
from tests.data.timeouts import TimeIsUpError, raises


def in_a_block(*numbers: int, action: Callable[[], object] = lambda: None) -> None:
    """Have signals come within a block, and go on in it."""
    with interrupts_deferred():
        for number in numbers:
            signal.raise_signal(number)
        action()


def test_an_error_in_the_block_passes_through() -> None:
    """Holding interrupts back hides no error."""
    with pytest.raises(LookupError), interrupts_deferred():
        raise LookupError


def test_other_threads_are_left_alone() -> None:
    """Elsewhere than on the main thread no handler is touched."""
    handlers: list[object] = []
    look = partial(in_a_block, action=lambda: handlers.append(signal.getsignal(signal.SIGINT)))
    on_threads(look)

    assert handlers == [signal.getsignal(signal.SIGINT)]


class Raiser:
    def __call__(self, _number: int, _frame: object) -> None:
        raise TimeIsUpError

    def method(self, _number: int, _frame: object) -> None:
        raise TimeIsUpError


NAMES = ("SIGALRM", "SIGINT", "SIGTERM", "SIGUSR1", "SIGVTALRM")


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put back whatever handlers a test sets."""
    usual = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in NAMES}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("name", "handler", "error"),
    [
        ("SIGINT", signal.default_int_handler, KeyboardInterrupt),
        *((name, raises, TimeIsUpError) for name in NAMES),
    ],
)
def test_signals_wait_for_the_block(name: str, handler: Any, error: type[BaseException]) -> None:
    """An interrupt, a timeout or a request to end waits until the block is finished."""
    number = getattr(signal, name)
    signal.signal(number, handler)
    finished: list[bool] = []
    with pytest.raises(error):
        in_a_block(number, action=lambda: finished.append(True))
    assert signal.getsignal(number) is handler
    assert finished == [True]


def test_within_another_block_it_waits_for_that_one() -> None:
    """A signal in an inner block is handled right after the outermost block."""
    finished: list[str] = []

    def work() -> None:
        with interrupts_deferred():
            in_a_block(signal.SIGINT)
            finished.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert finished == ["outer"]


@pytest.mark.usefixtures("handlers")
def test_of_two_that_came_each_is_handled() -> None:
    """The first one's error does not keep the second from its handler."""
    numbers: list[int] = []
    signal.signal(signal.SIGALRM, raises)
    signal.signal(signal.SIGUSR1, lambda number, _frame: numbers.append(number))
    with pytest.raises(TimeIsUpError):
        in_a_block(signal.SIGUSR1, signal.SIGALRM)
    assert numbers == [signal.SIGUSR1]


@pytest.mark.usefixtures("handlers")
def test_an_error_as_a_block_begins_restores_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes before its own handler is held back finds the others put back."""
    signal.signal(signal.SIGALRM, raises)
    interrupt = signal.getsignal(signal.SIGINT)
    handle = interrupts._handle

    def interrupted(number: int, handler: object) -> object:
        if number == signal.SIGALRM and handler is not raises:
            raise TimeIsUpError
        return handle(number, handler)

    monkeypatch.setattr(interrupts, "_handle", interrupted)
    with pytest.raises(TimeIsUpError), interrupts_deferred():
        pytest.fail("not entered")

    assert signal.getsignal(signal.SIGINT) is interrupt
    assert signal.getsignal(signal.SIGALRM) is raises


@pytest.mark.usefixtures("handlers")
def test_a_stand_in_that_stayed_passes_on_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If putting back was itself interrupted, the user's handler is still called, and put back later."""
    signal.signal(signal.SIGALRM, raises)
    handle = interrupts._handle

    def interrupted(number: int, handler: object) -> object:
        if handler is raises:
            raise TimeIsUpError
        return handle(number, handler)

    with monkeypatch.context() as patched:
        patched.setattr(interrupts, "_handle", interrupted)
        with pytest.raises(TimeIsUpError), interrupts_deferred():
            pass
    assert signal.getsignal(signal.SIGALRM) is not raises

    with pytest.raises(TimeIsUpError):
        signal.raise_signal(signal.SIGALRM)
    in_a_block()
    assert signal.getsignal(signal.SIGALRM) is raises


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    "handler",
    [raises, Raiser(), Raiser().method, partial(raises)],
    ids=lambda one: type(one).__name__,
)
def test_what_a_handler_raises_is_told_from_a_fault_of_ours(handler: Any) -> None:
    """Whatever a handler is, its error is the user's."""
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(TimeIsUpError) as caught:
        signal.raise_signal(signal.SIGALRM)
    with pytest.raises(LookupError) as ours:
        raise LookupError

    assert raised_by_handler(caught.value)
    assert not raised_by_handler(ours.value)


@pytest.mark.usefixtures("handlers")
def test_what_was_held_back_is_the_users_even_if_its_handler_has_gone() -> None:
    """A handler may take itself off before it raises."""

    def once(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raise TimeIsUpError

    signal.signal(signal.SIGALRM, once)
    with pytest.raises(TimeIsUpError) as caught:
        in_a_block(signal.SIGALRM)

    assert raised_by_handler(caught.value)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("deferred", [True, False])
def test_timeouts_pass_the_guard(capsys: pytest.CaptureFixture[str], *, deferred: bool) -> None:
    """A timeout reaches the user's code without a message; a fault of ours is still reported."""
    signal.signal(signal.SIGALRM, raises)

    def ours() -> None:
        with interrupts_deferred() if deferred else nullcontext():
            signal.raise_signal(signal.SIGALRM)

    with pytest.raises(TimeIsUpError):
        harmless(ours)
    assert capsys.readouterr().err == ""

    harmless([].pop)
    assert "IndexError" in capsys.readouterr().err


@pytest.mark.usefixtures("handlers")
def test_where_no_handler_may_be_set_the_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subinterpreter may set none: `signal.signal` raises there, and no signal reaches it."""
    signal.signal(signal.SIGUSR1, raises)
    done = []
    with monkeypatch.context() as subinterpreter:
        message = "signal only works in main thread of the main interpreter"
        subinterpreter.setattr(interrupts, "_handle", Mock(side_effect=ValueError(message)))
        with interrupts_deferred():
            done.append("the block")

    assert done == ["the block"]
    assert not interrupts.is_deferring()
    assert signal.getsignal(signal.SIGUSR1) is raises


def test_a_handler_in_c_stays_in_force() -> None:
    """What a library has set by `sigaction` is neither called by us nor replaced."""
    libc = ctypes.CDLL(None)
    calls: list[int] = []
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(calls.append)
    before = ctypes.create_string_buffer(512)
    libc.sigaction(signal.SIGINT, None, before)
    in_a_block()
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGINT, handler)
    try:
        for _ in range(2):
            in_a_block()
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        libc.sigaction(signal.SIGINT, before, None)

    assert calls == [signal.SIGINT, signal.SIGINT]


@pytest.mark.usefixtures("handlers")
def test_how_the_system_calls_a_handler_stays() -> None:
    """What `signal.siginterrupt` has set is kept."""

    def flags() -> bytes:
        action = ctypes.create_string_buffer(512)
        ctypes.CDLL(None).sigaction(signal.SIGUSR1, None, action)
        return action.raw[136:140]  # `sa_flags` in glibc's struct, of 64 bits

    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, False)
    before = flags()
    in_a_block()
    assert flags() == before


def test_an_interrupt_waits_behind_a_handler_in_c_that_passes_it_on() -> None:
    """Polars puts one before Python's when it is imported; the block is finished, and it stays in place."""
    pytest.importorskip("polars")
    code = """
import signal
import struct
import polars
from hfmem_widget import guard
place = struct.calcsize("P")
before, finished = guard._action(signal.SIGINT)[:place], []
def work():
    with guard.interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        finished.append(True)
try:
    work()
except KeyboardInterrupt:
    print(finished, guard._action(signal.SIGINT)[:place] == before)
"""

    assert run_alone(code).stdout == "[True] True\n"


def test_what_the_guard_takes_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to twice what entering takes, since leaving takes as long; one long time counts as little."""
    steps = iter([0.0, 1e-5] * 400 + [0.0, 60.0])
    monkeypatch.setattr(interrupts._state, "seconds", 0.0)
    monkeypatch.setattr("hfmem_widget.guard.time.perf_counter", steps.__next__)
    for _ in range(400):
        in_a_block()
    usual = interrupts.seconds_of_an_event()
    in_a_block()

    assert usual == pytest.approx(2e-5)
    assert interrupts.seconds_of_an_event() < 2 * usual


def test_where_there_is_nothing_to_do_no_signal_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the guard nor the function is entered until there is something to do."""
    calls: list[str] = []
    quiet = {threading.get_ident(): True}
    monkeypatch.setattr(interrupts, "_stand_in_for", lambda *_: calls.append("held back"))

    @interrupts.entry(unless_on=quiet)
    def call() -> None:
        calls.append("called")

    call()
    assert calls == []
    quiet.clear()
    call()
    assert calls[-1] == "called"
