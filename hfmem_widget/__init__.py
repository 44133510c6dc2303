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

    from hfmem_widget.drivers.api import watch as watch
    from hfmem_widget.drivers.follow import follow as follow
    from hfmem_widget.drivers.span import SpanScope as SpanScope
    from hfmem_widget.drivers.span import span as span
    from hfmem_widget.drivers.trainer import MemoryCallback as MemoryCallback
    from hfmem_widget.drivers.watch import Watch as Watch
    from hfmem_widget.errors import HFMemError as HFMemError
    from hfmem_widget.errors import OptionError as OptionError
    from hfmem_widget.errors import SourceUnavailable as SourceUnavailable
    from hfmem_widget.errors import WatchStateError as WatchStateError
    from hfmem_widget.features.compare.api import compare as compare
    from hfmem_widget.features.compare.model import Comparison as Comparison
    from hfmem_widget.features.doctor.api import Diagnosis as Diagnosis
    from hfmem_widget.features.doctor.api import doctor as doctor
    from hfmem_widget.features.fit.api import fit as fit
    from hfmem_widget.features.fit.model import Fit as Fit
    from hfmem_widget.features.fit.model import Forecast as Forecast
    from hfmem_widget.features.fit.room import max_memory as max_memory
    from hfmem_widget.features.free.api import free as free
    from hfmem_widget.features.free.model import Release as Release
    from hfmem_widget.features.history.model import CellHistory as CellHistory
    from hfmem_widget.features.history.model import history as history
    from hfmem_widget.features.holders.api import holders as holders
    from hfmem_widget.features.memory_map.api import memory_map as memory_map
    from hfmem_widget.options import WatchOptions as WatchOptions
    from hfmem_widget.ranks.run import Run as Run
    from hfmem_widget.ranks.run import open as open  # noqa: A004  (as in PIL, tarfile, xarray)
    from hfmem_widget.session import Anatomy as Anatomy
    from hfmem_widget.session import Device as Device
    from hfmem_widget.session import Finding as Finding
    from hfmem_widget.session import KVCache as KVCache
    from hfmem_widget.session import Part as Part
    from hfmem_widget.session import Peak as Peak
    from hfmem_widget.session import Sample as Sample
    from hfmem_widget.session import Series as Series
    from hfmem_widget.session import Session as Session
    from hfmem_widget.session import Span as Span
    from hfmem_widget.session import Steps as Steps
    from hfmem_widget.session import Timeline as Timeline
    from hfmem_widget.session.segments import MemoryMap as MemoryMap
    from hfmem_widget.session.stacks import Snapshot as Snapshot
    from hfmem_widget.session.stacks import Stacks as Stacks
    from hfmem_widget.sources.heap.model import Growth as Growth
    from hfmem_widget.sources.heap.model import Holders as Holders

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

__all__ = list(_HOMES)


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
