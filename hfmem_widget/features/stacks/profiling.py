"""When torch's own profiler begins and ends, so that what would disturb it can stand aside.

torch calls two functions of `torch.autograd.profiler` for that, each time by their names there; the same for
its profilers of every kind, since torch 2.1. They are wrapped for the time of a watch that needs to know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hfmem_widget.guard import harmless

_STARTS, _STOPS = "_run_on_profiler_start", "_run_on_profiler_stop"


class ProfilerWatch:
    """Calls back before a profiler begins, and after it has ended, on its thread.

    Parameters
    ----------
    starts, stops : callable
    """

    def __init__(self, starts: Callable[[], object], stops: Callable[[], object]) -> None:
        self._calls = {_STARTS: starts, _STOPS: stops}
        self._module: Any = None
        self._wrappers: dict[str, tuple[Any, Any]] = {}
        self._watching = False

    def begin(self, torch: Any) -> bool:
        """Begin to call back; return whether a profiler runs already."""
        self._module = module = getattr(getattr(torch, "autograd", None), "profiler", None)
        self._watching = True
        for name, call in self._calls.items():
            original = getattr(module, name, None)
            if original is not None:
                wrapper = self._wrapped(original, call)
                self._wrappers[name] = (original, wrapper)
                setattr(module, name, wrapper)
        return bool(getattr(module, "_is_profiler_enabled", False))

    def end(self) -> None:
        """Call back no more. A wrapper that somebody has wrapped in turn stays, and does nothing."""
        self._watching = False
        for name, (original, wrapper) in self._wrappers.items():
            if getattr(self._module, name, None) is wrapper:
                setattr(self._module, name, original)
        self._wrappers.clear()

    def _wrapped(self, original: Callable[[], object], call: Callable[[], object]) -> Any:
        @functools.wraps(original)
        def told() -> object:
            if self._watching:
                harmless(call)
            return original()

        return told
