"""Live, exact, explained memory of Hugging Face models, in the notebook.

``%load_ext hfmem_widget`` brings ``%memwatch`` and ``%%memwatch``; `watch` is the same for a ``with`` block.
Importing this package imports nothing heavy and starts nothing.

PYTEST_DONT_REWRITE: pytest, which loads a plug-in of ours, else warns where a notebook imported us before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from hfmem_widget.drivers.api import watch
    from hfmem_widget.drivers.follow import follow
    from hfmem_widget.drivers.span import SpanScope, span
    from hfmem_widget.drivers.trainer import MemoryCallback
    from hfmem_widget.drivers.watch import Watch
    from hfmem_widget.errors import HFMemError, OptionError, SourceUnavailable, WatchStateError
    from hfmem_widget.features.compare.api import compare
    from hfmem_widget.features.compare.model import Comparison
    from hfmem_widget.features.doctor.api import Diagnosis, doctor
    from hfmem_widget.features.fit.api import fit
    from hfmem_widget.features.fit.model import Fit, Forecast
    from hfmem_widget.features.fit.room import max_memory
    from hfmem_widget.features.free.api import free
    from hfmem_widget.features.free.model import Release
    from hfmem_widget.features.history.model import CellHistory, history
    from hfmem_widget.features.holders.api import holders
    from hfmem_widget.features.memory_map.api import memory_map
    from hfmem_widget.options import WatchOptions
    from hfmem_widget.ranks.run import Run, open  # noqa: A004  (as in PIL, tarfile, xarray)
    from hfmem_widget.session import (
        Anatomy,
        Device,
        Finding,
        KVCache,
        Part,
        Peak,
        Sample,
        Series,
        Session,
        Span,
        Steps,
        Timeline,
    )
    from hfmem_widget.session.segments import MemoryMap
    from hfmem_widget.session.stacks import Snapshot, Stacks
    from hfmem_widget.sources.heap.model import Growth, Holders

__version__ = "0.2.0"

_HOMES = {
    name: module
    for module, names in {
        "drivers.api": "watch",
        "drivers.follow": "follow",
        "drivers.span": "SpanScope span",
        "drivers.trainer": "MemoryCallback",
        "drivers.watch": "Watch",
        "errors": "HFMemError OptionError SourceUnavailable WatchStateError",
        "features.compare.api": "compare",
        "features.compare.model": "Comparison",
        "features.doctor.api": "Diagnosis doctor",
        "features.fit.api": "fit",
        "features.fit.model": "Fit Forecast",
        "features.fit.room": "max_memory",
        "features.free.api": "free",
        "features.free.model": "Release",
        "features.history.model": "CellHistory history",
        "features.holders.api": "holders",
        "features.memory_map.api": "memory_map",
        "options": "WatchOptions",
        "ranks.run": "Run open",
        "session": "Anatomy Device Finding KVCache Part Peak Sample Series Session Span Steps Timeline",
        "session.segments": "MemoryMap",
        "session.stacks": "Snapshot Stacks",
        "sources.heap.model": "Growth Holders",
    }.items()
    for name in names.split()
}

__all__ = [
    "Anatomy",
    "CellHistory",
    "Comparison",
    "Device",
    "Diagnosis",
    "Finding",
    "Fit",
    "Forecast",
    "Growth",
    "HFMemError",
    "Holders",
    "KVCache",
    "MemoryCallback",
    "MemoryMap",
    "OptionError",
    "Part",
    "Peak",
    "Release",
    "Run",
    "Sample",
    "Series",
    "Session",
    "Snapshot",
    "SourceUnavailable",
    "Span",
    "SpanScope",
    "Stacks",
    "Steps",
    "Timeline",
    "Watch",
    "WatchOptions",
    "WatchStateError",
    "compare",
    "doctor",
    "fit",
    "follow",
    "free",
    "history",
    "holders",
    "max_memory",
    "memory_map",
    "open",
    "span",
    "watch",
]


if not TYPE_CHECKING:  # a type checker would take it for a promise that every name is there

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    # What one calls, and no class of which the package itself makes the objects.
    called = {name for name in __all__ if name.islower() or name == "MemoryCallback"}
    return sorted({*called, *(name for name in globals() if name.startswith("__"))})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; for ``%load_ext hfmem_widget``."""
    from hfmem_widget.magics import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take everything back; for ``%unload_ext hfmem_widget``."""
    from hfmem_widget.guard import harmless
    from hfmem_widget.magics import unregister

    # IPython takes an extension whose unloading raises for one that is still loaded.
    harmless(unregister, shell)
