"""The magics of one shell: what a person types in a notebook. One file for each."""

from __future__ import annotations

import sys
from weakref import WeakSet

from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.attaching import attach, detach
from hfmem_widget.faults import harmless
from hfmem_widget.history import History
from hfmem_widget.magics import memwatch
from hfmem_widget.magics.memanatomy import MemanatomyMagics
from hfmem_widget.magics.memcompare import MemcompareMagics
from hfmem_widget.magics.memfit import MemfitMagics
from hfmem_widget.magics.memfree import MemfreeMagics
from hfmem_widget.magics.memholders import MemholdersMagics
from hfmem_widget.magics.memmap import MemmapMagics
from hfmem_widget.magics.report import ReportMagics, add, remove

__all__ = ["register", "unregister"]

REPORTS: tuple[type[ReportMagics], ...] = (
    MemanatomyMagics,
    MemcompareMagics,
    MemfitMagics,
    MemholdersMagics,
    MemfreeMagics,
    MemmapMagics,
)
"""The line magics that tell something on demand."""

_shells: WeakSet[InteractiveShell] = WeakSet()
"""Those that the extension is loaded in: a process has one monitor for all of them."""


def register(shell: InteractiveShell) -> None:
    """Add the magics, their completion, and what they live by."""
    unregister(shell)
    history = History()
    memwatch.register(shell, history)
    for report in REPORTS:
        add(report(shell, history), shell)
    _shells.add(shell)
    attach()


def unregister(shell: InteractiveShell) -> None:
    """Take all of it back; with the last shell the poller and the allocator's wrapped entry points too."""
    if "MemwatchMagics" not in shell.magics_manager.registry:
        return
    # Each by itself: a fault in one must not leave the poller or the allocator's wrappers behind.
    harmless(memwatch.unregister, shell)
    for report in REPORTS:
        harmless(remove, report, shell)
    _shells.discard(shell)
    if _shells:
        return
    harmless(detach)
    monitor = sys.modules.get("hfmem_widget.monitor")
    if monitor is not None:
        said = monitor.release_monitor()
        if said:
            print(said)  # noqa: T201
