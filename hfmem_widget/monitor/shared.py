"""How memory is watched: one monitor per process, however many watches."""

from __future__ import annotations

import atexit
import os
import threading

from hfmem_widget.guard import harmless
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler

__all__ = [
    "Attribution",
    "Monitor",
    "PeakLedger",
    "Sampler",
    "outcome_of",
    "release_monitor",
    "running_monitor",
    "shared_monitor",
]

_shared: Monitor | None = None
_follows_forks = False
_making = threading.Lock()
"""Held while the one monitor is made: two would each know of half the watches."""


def shared_monitor() -> Monitor:
    """Return this process' monitor; the first call opens the sources, and still starts nothing."""
    global _shared  # noqa: PLW0603  (one poller per process is the point)
    with _making:
        if _shared is None or not _shared.in_this_process:
            _shared = _made()
    return _shared


def _made() -> Monitor:
    from hfmem_widget.sources import open_allocators, open_sources
    from hfmem_widget.sources.tensors import TensorSource

    allocators = open_allocators()
    sources = open_sources(os.environ, allocators)
    held = next(one for one in sources if isinstance(one, TensorSource))
    monitor = Monitor(Sampler(sources), PeakLedger(*allocators), attribution=Attribution(held))
    atexit.register(monitor.shutdown)
    _follow_forks()
    return monitor


def running_monitor() -> Monitor | None:
    """Return this process' monitor if something is being watched with it; it is never made for this."""
    return _shared if _shared is not None and _shared.current is not None else None


def release_monitor() -> str:
    """End everything this process' monitor does; return what the user must know of it, or ``""``."""
    global _shared
    monitor, _shared = _shared, None
    if monitor is None:
        return ""
    atexit.unregister(monitor.shutdown)
    return monitor.shutdown()


def _follow_forks() -> None:
    # These hooks cannot be taken back, so there is one set for good, and it asks who is there now.
    global _follows_forks  # noqa: PLW0603
    if _follows_forks or not hasattr(os, "register_at_fork"):
        return
    _follows_forks = True
    os.register_at_fork(
        before=lambda: _tell("before_fork"),
        after_in_parent=lambda: _tell("after_fork_in_parent"),
        after_in_child=lambda: _tell("after_fork_in_child"),
    )


def _tell(event: str) -> None:
    global _making  # noqa: PLW0603  (the thread that holds it did not come along)
    if event == "after_fork_in_child":
        _making = threading.Lock()
    if _shared is not None:
        harmless(getattr(_shared, event))
