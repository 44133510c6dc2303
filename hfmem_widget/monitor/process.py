"""The state of this process, as one object: what is watched, followed and open in it.

A module keeps its changing state in a class of its own; `process_state` returns the instance of this process.
A forked child begins with a new state, and so does each test.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hfmem_widget.monitor.monitor import Monitor

Kind = TypeVar("Kind")


class Part:
    """The state of one module."""

    __slots__ = ()


class Installed(Part):
    """A state that records what of ours is in other libraries, which a forked child has, too."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Process:
    """The state that changes while a process runs."""

    monitor: Monitor | None = None  # of all watches
    # Held while the monitor is created: two monitors would each know half of the watches.
    making: threading.Lock = field(default_factory=threading.Lock)
    parts: dict[type, Any] = field(default_factory=dict)  # the states of the modules, by class

    def child(self) -> Process:
        """Return the state that a forked child begins with, which has no threads and no watches."""
        installed = {kind: part for kind, part in self.parts.items() if issubclass(kind, Installed)}
        return Process(parts=installed)


this = Process()

threads_in_group: dict[int, Collection[int]] = {}
"""The open spans of a session, by the thread on which a group of its steps goes by.

On that thread only the ends of steps are looked at; after the session's end there are no open spans. Every
step reads it, so it is not part of `this`.
"""


def process_state(kind: type[Kind]) -> Kind:
    """Return this process' instance of a state class, created at the first call."""
    parts = this.parts
    # Two threads that come first both get the same instance.
    part: Kind = parts[kind] if kind in parts else parts.setdefault(kind, kind())
    return part


def replace(process: Process) -> Process:
    """Replace the state of this process, and return the old one."""
    global this
    before, this = this, process
    threads_in_group.clear()
    return before
