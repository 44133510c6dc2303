"""The magics of one shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.drivers.install import attach, detach
from hfmem_widget.guard import forget_faults, harmless
from hfmem_widget.magics import memwatch
from hfmem_widget.magics.reports import RENAMED, WORDS, ReportMagics
from hfmem_widget.magics.usage import Offered, complete, remove
from hfmem_widget.monitor.process import Installed, process_state

__all__ = ["register", "unregister"]


class Shells(WeakKeyDictionary[InteractiveShell, Callable[[], None]], Installed):
    """The shells with the extension loaded, each with a function that ends its completion."""


def register(shell: InteractiveShell) -> None:
    """Add the magics and their completion, and follow the libraries that they watch."""
    unregister(shell)
    forget_faults()
    memwatch.register(shell)
    offered: dict[str, Offered] = {
        memwatch.NAME: (memwatch.MemwatchMagics.memwatch.parser, memwatch.ACTIONS)
    }
    reports = ReportMagics(shell)
    shell.register_magics(reports)
    for name in RENAMED:
        magic: Any = partial(reports.run_renamed, name)
        shell.register_magic_function(magic, "line", name)
    for name, words in WORDS.items():
        offered[name] = (getattr(ReportMagics, name).parser, words)
    process_state(Shells)[shell] = complete(shell, offered)
    attach()


def unregister(shell: InteractiveShell) -> None:
    """Remove all of it; after the last shell also the poller and the allocator's wrapped entry points."""
    if "MemwatchMagics" not in shell.magics_manager.registry:
        return
    # Each is guarded: a fault in one must not leave the poller or the allocator's wrappers behind.
    harmless(memwatch.unregister, shell)
    for name in (*WORDS, *RENAMED):
        harmless(remove, shell, name)
    harmless(shell.magics_manager.registry.pop, "ReportMagics", None)
    shells = process_state(Shells)
    harmless(shells.pop(shell, lambda: None))
    if shells:
        return
    HISTORY.clear()
    HISTORY.latest = None
    harmless(detach)
    monitor = sys.modules.get("hfmem_widget.monitor.shared")
    if monitor is not None and (sentence := monitor.release_monitor()):
        print(sentence)  # noqa: T201
