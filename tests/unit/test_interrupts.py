"""Interrupts are held back for our bookkeeping, and never lost."""

from __future__ import annotations

import signal
import threading

import pytest

from hfmem_widget.interrupts import interrupts_deferred


def test_an_interrupt_within_the_block_comes_right_after_it() -> None:
    """The block is finished, then KeyboardInterrupt is raised."""
    finished: list[bool] = []

    def work() -> None:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert finished == [True]


def test_the_users_handler_is_put_back() -> None:
    """Whoever handled interrupts before does so again, and got the one that came meanwhile."""
    seen: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    ours = signal.getsignal(signal.SIGINT)
    try:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            assert seen == []
        assert seen == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is ours
    finally:
        signal.signal(signal.SIGINT, usual)


def test_an_error_in_the_block_passes_through() -> None:
    """Holding interrupts back hides no error."""
    with pytest.raises(LookupError), interrupts_deferred():
        raise LookupError


def test_other_threads_are_left_alone() -> None:
    """Elsewhere than on the main thread no handler is touched."""
    seen: list[object] = []

    def work() -> None:
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [signal.getsignal(signal.SIGINT)]
