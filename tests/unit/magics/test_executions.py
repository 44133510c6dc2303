"""However a cell ends, and whatever runs at the same time, its own watch ends with it and no other."""

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.analysis.record import Record
from hfmem_widget.drivers.watch import EveryCell, Watch
from hfmem_widget.features.leaks import reruns as module
from hfmem_widget.magics.memwatch import MemwatchMagics
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.session import Finding, Session, Span

WATCHED = "%%memwatch --quiet --output session\n"


def outcome(shell: InteractiveShell) -> str:
    session: Session = shell.user_ns["session"]
    assert not session.running
    return session.spans[0].outcome


def assert_later_cells_are_watched(shell: InteractiveShell) -> None:
    shell.run_cell("%memwatch on --quiet --output later")
    shell.run_cell("x = 1")
    shell.run_cell("x = 2")
    later: Session = shell.user_ns["later"]
    labels = [span.label for span in later.spans if span.stop is not None]
    assert labels == ["[1] x = 1", "[1] x = 2"]
    assert not shared_monitor().poller.alive


class Broken(Exception):
    """Raised by IPython's own code."""


def breaks(error: type[BaseException], times: int) -> Callable[..., None]:
    errors = [error] * times

    def showtraceback(*_args: Any, **_kwargs: Any) -> None:
        if errors:
            raise errors.pop()

    return showtraceback


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_cell_whose_error_cannot_be_shown_ends_its_watch(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], times: int
) -> None:
    """The watch has the cell's own error, and later cells are watched as before."""
    monkeypatch.setattr(shell, "showtraceback", breaks(error, times))
    shell.run_cell(f"{WATCHED}1 / 0")

    assert outcome(shell) == "raised ZeroDivisionError"
    assert_later_cells_are_watched(shell)


def test_a_cell_without_result_ends_it(shell: InteractiveShell, magics: MemwatchMagics) -> None:
    """The error of a cell that awaits cannot be shown under ipykernel; the watch ends all the same."""

    async def cell() -> None:
        source = f"{WATCHED}await asyncio.sleep(0)\nraise KeyError"
        await shell.run_cell_async(source, transformed_cell=shell.transform_cell(source))

    shell.user_ns["asyncio"] = asyncio
    asyncio.run(cell())
    shell.events.trigger("post_run_cell", None)

    assert outcome(shell) == "raised KeyError"
    assert_later_cells_are_watched(shell)


def test_a_cell_without_event_ends_later(shell: InteractiveShell, magics: MemwatchMagics) -> None:
    """An interrupt may keep IPython from sending the event."""
    shell.events.unregister("post_run_cell", magics.cell_ends)
    shell.run_cell(f"{WATCHED}x = 1")
    shell.events.register("post_run_cell", magics.cell_ends)
    assert shared_monitor().poller.alive

    assert_later_cells_are_watched(shell)
    assert outcome(shell) == "done"


@pytest.mark.parametrize("inner", ["", "x = 1", "1 / 0", "x = ="])
@pytest.mark.parametrize("silent", [False, True])
def test_an_inner_cell_ends_no_watch(shell: InteractiveShell, inner: str, silent: bool) -> None:
    """An inner, an empty and a silent cell leave the outer cell's watch open."""
    shell.user_ns["inner"], shell.user_ns["silent"] = inner, silent
    shell.run_cell(
        f"{WATCHED}for _ in range(2):\n    get_ipython().run_cell(inner, silent=silent)\n"
        "running = session.running"
    )

    assert shell.user_ns["running"]


def test_a_cell_in_a_task_does_not_end_one_that_awaits(shell: InteractiveShell) -> None:
    """The awaiting cell is in no stack meanwhile, but has not ended."""
    shell.user_ns["asyncio"] = asyncio
    shell.run_cell(
        f"{WATCHED}async def task():\n    get_ipython().run_cell('x = 1')\n"
        "await asyncio.ensure_future(task())\nrunning = session.running"
    )

    assert shell.user_ns["running"]
    assert outcome(shell) == "done"


def test_a_slow_first_watch_ends(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of another thread begins during its imports."""
    began, ended = threading.Event(), threading.Event()
    shell.user_ns.update(began=began, ended=ended)
    other = threading.Thread(target=shell.run_cell, args=("began.set()\nended.wait()",))

    def slow_monitor() -> Monitor:
        if not began.is_set():
            other.start()
            began.wait()
        return shared_monitor()

    monkeypatch.setattr("hfmem_widget.monitor.shared.shared_monitor", slow_monitor)
    shell.run_cell(f"{WATCHED}x = 1")

    assert outcome(shell) == "done"
    ended.set()
    other.join()


def interrupt_in(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    usual = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return usual(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("owner", "name", "first"), [(Watch, "stop", WATCHED), (EveryCell, "cell_begins", "")]
)
def test_an_interrupt_as_a_cell_begins_or_ends_leaves_nothing_half_done(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, first: str
) -> None:
    """Under `%memwatch on`, its watch and its span have ended, and each cell has its own number."""
    shell.run_cell("%memwatch on --quiet --output every", store_history=True)
    with monkeypatch.context() as patched:
        interrupt_in(patched, owner, name)
        shell.run_cell(f"{first}x = 1", store_history=True)
    shell.run_cell("x = 2", store_history=True)

    every: Session = shell.user_ns["every"]
    assert all(span.stop is not None for span in every.spans)
    one, two = HISTORY.records[-2:]
    assert two.number == (one.number or 0) + 1


@pytest.mark.parametrize("label", ["a", ""])
def test_a_cell_is_compared_with_its_earlier_runs(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    """All runs of the label are compared, else all of the cell, which a shell knows by its text alone."""
    counts: list[int] = []

    def reruns(_session: Session, _span: Span, earlier: Sequence[Record]) -> tuple[Finding, ...]:
        assert {one.label for one in earlier} <= {label}
        counts.append(len(earlier))
        return ()

    monkeypatch.setattr(module, "reruns", reruns)
    for _ in range(3):
        shell.run_cell(f"%%memwatch --quiet {'--label a' * bool(label)}\nrun_of_this_test = 1")

    assert counts == [0, 1, 2]
