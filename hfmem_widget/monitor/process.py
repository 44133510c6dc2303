"""The state of this process, as one object: what is watched, followed and open in it.

A module keeps what changes in a class of its own, of which `process_state` returns this process' instance.
A forked child begins with a new state, and each test has one to itself.
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
    """What a module keeps of this process."""

    __slots__ = ()


class Installed(Part):
    """A part that says what of ours is in other libraries: a forked child has that, too."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Process:
    """What changes while a process runs."""

    monitor: Monitor | None = None  # of all watches
    # Held while that is made: two would each know of half the watches.
    making: threading.Lock = field(default_factory=threading.Lock)
    parts: dict[type, Any] = field(default_factory=dict)  # what the modules keep, by their classes

    def child(self) -> Process:
        """Return the state with which a forked child begins: its threads and watches did not come along."""
        installed = {kind: part for kind, part in self.parts.items() if issubclass(kind, Installed)}
        return Process(parts=installed)


this = Process()

threads_in_group: dict[int, Collection[int]] = {}
"""The open spans of a session, by the thread on which a group of its steps goes by.

Nothing is looked at there but the ends of steps. Where the session has ended there are none, so who finds
some has nothing to do. It is no part of `this`, because every step asks for it.
"""


def process_state(kind: type[Kind]) -> Kind:
    """Return what this process keeps in a class; it is made where there is none yet."""
    parts = this.parts
    # Of two threads that come first, both get the same one.
    part: Kind = parts[kind] if kind in parts else parts.setdefault(kind, kind())
    return part


def replace(process: Process) -> Process:
    """Put another state in place of this process', and return the one before."""
    global this
    before, this = this, process
    threads_in_group.clear()
    return before
