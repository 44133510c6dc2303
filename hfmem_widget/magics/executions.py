"""Which cells run, on which threads, and which of them IPython tells the end of."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult

if TYPE_CHECKING:
    from hfmem_widget.drivers.watch import Watch


@dataclass(eq=False, slots=True)
class Execution:
    """A cell that runs.

    Attributes
    ----------
    info : ExecutionInfo
    count : int
        What the shell counted when it began.
    is_outermost : bool
        Whether no other cell runs it.
    thread : int
        Front ends run the cells of a subshell on a thread of its own.
    watches : list of Watch
        What ends with it.
    """

    info: ExecutionInfo
    count: int
    is_outermost: bool
    thread: int = field(default_factory=threading.get_ident)
    watches: list[Watch] = field(default_factory=list)

    @property
    def cell_id(self) -> str:
        """The same for every run of the cell, if the front end has ids; IPython hands them on since 8.8."""
        return getattr(self.info, "cell_id", None) or ""

    def result(self, *candidates: ExecutionResult | None) -> ExecutionResult | None:
        """Return the one that is this cell's own."""
        return next((one for one in candidates if one and one.info is self.info), None)


class Executions:
    """The cells that run: a cell can run others, and several threads can run cells at once."""

    def __init__(self) -> None:
        self._running: list[Execution] = []

    @property
    def watches(self) -> tuple[Watch, ...]:
        """All that end with a cell, in the order in which they began."""
        return tuple(watch for one in self._running for watch in one.watches)

    def current(self) -> Execution | None:
        """Return the innermost cell that this thread runs."""
        own = self._own()
        return own[-1] if own else None

    def begins(self, info: ExecutionInfo, count: int) -> tuple[Execution, list[Execution]]:
        """Note that a cell begins, and return it, and those of this thread of whose end nobody told."""
        lost = [one for one in self._own() if not _is_alive(one.info)]
        self._drop(lost)
        execution = Execution(info, count, is_outermost=not self._own())
        self._running.append(execution)
        return execution, lost

    def ends(self, result: ExecutionResult | None) -> list[Execution]:
        """Take out the cell that has ended, and those it ran of whose end nobody told; outermost first.

        If an error cannot be shown, or an interrupt comes meanwhile, IPython tells the end of a cell with a
        result that it made anew, or with none. Then it is that of the innermost cell.
        """
        own = self._own()
        info = None if result is None else result.info
        found = next((one for one in own if one.info is info), None)
        if found is None and own and _may_be(own[-1], info):
            found = own[-1]
        if found is None:
            return []
        ended = own[own.index(found) :]
        self._drop(ended)
        return ended

    def _own(self) -> list[Execution]:
        here = threading.get_ident()
        return [one for one in self._running if one.thread == here]

    def _drop(self, executions: list[Execution]) -> None:
        # One by one: another thread may enter its own meanwhile.
        for one in executions:
            self._running.remove(one)


def _may_be(execution: Execution, info: ExecutionInfo | None) -> bool:
    """Return whether an `info` that nobody knows may be that of a cell which has ended."""
    own = execution.info
    if info is not None and info.raw_cell != own.raw_cell:
        return False
    return not _is_alive(own)


def _is_alive(info: ExecutionInfo) -> bool:
    """Return whether IPython is still at a cell: this code runs within it, or it awaits something."""
    return any(
        frame.f_code.co_name == "run_cell_async"
        and any(value is info for value in frame.f_locals.values())
        for frame in _frames()
    )


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread: those that are running, and the outermost of each task."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  (inspect.currentframe is the same)
    while frame is not None:
        yield frame
        frame = frame.f_back
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop is running on this thread
        return
    for task in tasks:
        yield from task.get_stack()
