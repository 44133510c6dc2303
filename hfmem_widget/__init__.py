"""Live, exact, explained memory of Hugging Face models, in the notebook.

``%load_ext hfmem_widget`` brings ``%memwatch`` and ``%%memwatch``; `watch` is the same for a ``with`` block.
Importing this package imports nothing heavy and starts nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from hfmem_widget.analysis.comparison import Comparison
    from hfmem_widget.comparing import compare
    from hfmem_widget.errors import HFMemError, OptionError, SourceUnavailable, WatchStateError
    from hfmem_widget.forecast.fit import fit
    from hfmem_widget.forecast.model import Fit, Forecast
    from hfmem_widget.forecast.room import max_memory
    from hfmem_widget.freeing import free
    from hfmem_widget.held import holders
    from hfmem_widget.holding.growth import Growth
    from hfmem_widget.holding.model import Holders
    from hfmem_widget.holding.release import Release
    from hfmem_widget.mapping import memory_map
    from hfmem_widget.options import WatchOptions
    from hfmem_widget.session import (
        Anatomy,
        Device,
        Finding,
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
    from hfmem_widget.session.stacks import Stacks
    from hfmem_widget.spans import SpanScope, span
    from hfmem_widget.stretch import Watch
    from hfmem_widget.trainer import MemoryCallback
    from hfmem_widget.watching import watch

__version__ = "0.1.0.dev0"

_HOMES = {
    "Anatomy": "session",
    "Comparison": "analysis.comparison",
    "Device": "session",
    "Finding": "session",
    "Fit": "forecast.model",
    "Forecast": "forecast.model",
    "Growth": "holding.growth",
    "HFMemError": "errors",
    "Holders": "holding.model",
    "MemoryCallback": "trainer",
    "MemoryMap": "session.segments",
    "OptionError": "errors",
    "Part": "session",
    "Peak": "session",
    "Release": "holding.release",
    "Sample": "session",
    "Series": "session",
    "Session": "session",
    "SourceUnavailable": "errors",
    "Span": "session",
    "SpanScope": "spans",
    "Stacks": "session.stacks",
    "Steps": "session",
    "Timeline": "session",
    "Watch": "stretch",
    "WatchOptions": "options",
    "WatchStateError": "errors",
    "compare": "comparing",
    "fit": "forecast.fit",
    "free": "freeing",
    "holders": "held",
    "max_memory": "forecast.room",
    "memory_map": "mapping",
    "span": "spans",
    "watch": "watching",
}

__all__ = [
    "Anatomy",
    "Comparison",
    "Device",
    "Finding",
    "Fit",
    "Forecast",
    "Growth",
    "HFMemError",
    "Holders",
    "MemoryCallback",
    "MemoryMap",
    "OptionError",
    "Part",
    "Peak",
    "Release",
    "Sample",
    "Series",
    "Session",
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
    "fit",
    "free",
    "holders",
    "max_memory",
    "memory_map",
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
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; for ``%load_ext hfmem_widget``."""
    from hfmem_widget.magics import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take everything back; for ``%unload_ext hfmem_widget``."""
    from hfmem_widget.faults import harmless
    from hfmem_widget.magics import unregister

    # IPython takes an extension whose unloading raises for one that is still loaded.
    harmless(unregister, shell)
