"""Which cells run, on which threads, and which of them has ended."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython import version_info
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

if TYPE_CHECKING:
    from hfmem_widget.drivers.watch import Watch


@dataclass(eq=False, slots=True)
class Execution:
    """A running cell."""

    info: ExecutionInfo
    number: int  # in the brackets beside it; that of the next cell, if it is not stored
    is_outermost: bool  # no other cell runs it
    thread: int = field(default_factory=threading.get_ident)  # each subshell has its own
    watches: list[Watch] = field(default_factory=list)  # those that end with the cell


class Executions:
    """The cells that run: a cell can run others, and several threads can run cells at once."""

    def __init__(self) -> None:
        self._running: list[Execution] = []

    @property
    def watches(self) -> tuple[Watch, ...]:
        """All watches that end with a cell, in the order in which they began."""
        return tuple(watch for execution in self._running for watch in execution.watches)

    def current(self) -> Execution | None:
        """Return the innermost cell that runs on this thread."""
        return next(reversed(self._own()), None)

    def begins(self, info: ExecutionInfo, count: int) -> tuple[Execution, list[Execution]]:
        """Enter a cell that begins. Return it, and the cells of this thread whose end was not announced.

        `count` is the shell's, which some IPythons raise before `pre_run_cell` and some after the cell.
        """
        lost = [execution for execution in self._own() if not _is_alive(execution.info)]
        self._drop(lost)
        number = next((result.execution_count for result in _results_of(info)), None)
        cell_number = count if number is None else number
        execution = Execution(info, cell_number, is_outermost=not self._own())
        self._running.append(execution)
        return execution, lost

    def ends(self, result: ExecutionResult | None) -> list[Execution]:
        """Remove and return the cell that has ended, and the cells it ran whose end was not announced.

        The outermost comes first. After an error that cannot be shown, or an interrupt, IPython announces the
        end of the innermost cell with a result that it made anew, or with none.
        """
        running = self._own()
        info = None if result is None else result.info
        at = next((at for at, execution in enumerate(running) if execution.info is info), None)
        if at is None and running:
            newest = running[-1].info
            may_be = info is None or info.raw_cell == newest.raw_cell
            at = len(running) - 1 if may_be and not _is_alive(newest) else None
        ended = [] if at is None else running[at:]
        self._drop(ended)
        return ended

    def _own(self) -> list[Execution]:
        here = threading.get_ident()
        return [execution for execution in self._running if execution.thread == here]

    def _drop(self, executions: list[Execution]) -> None:
        # One by one: another thread may enter its own meanwhile.
        for execution in executions:
            self._running.remove(execution)


def name_code(shell: InteractiveShell, execution: Execution) -> None:
    """Keep the number of a cell by the file name of its code, as IPython itself does from 8.0 on."""
    if version_info < (8,):
        compiler: Any = shell.compile
        code = execution.info.raw_cell or ""
        # A kernel names code by what was typed, and does not look at what becomes of it.
        name = compiler.get_code_name(code, code, execution.number)
        vars(compiler).setdefault("_filename_map", {})[name] = execution.number


def _is_alive(info: ExecutionInfo) -> bool:
    """Return whether IPython still runs a cell: this code is within it, or it awaits something."""
    return any(True for _ in _results_of(info))


def _results_of(info: ExecutionInfo) -> Iterator[ExecutionResult]:
    frames = [frame for frame, _ in traceback.walk_stack(inspect.currentframe())]
    with suppress(RuntimeError):  # no loop is running on this thread
        frames += [frame for task in asyncio.all_tasks() for frame in task.get_stack()]
    for frame in frames:
        if frame.f_code.co_name == "run_cell_async":
            for value in frame.f_locals.values():
                if isinstance(value, ExecutionResult) and value.info is info:
                    yield value
