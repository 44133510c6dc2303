"""The one monitor of a process, however many watches there are."""

import atexit
import functools
import os
from collections.abc import Callable

from hfmem_widget.guard import forget_faults, harmless, interrupts_deferred
from hfmem_widget.monitor import process
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session


def shared_monitor() -> Monitor:
    """Return this process' monitor; the first call opens the sources, and still starts nothing."""
    with process.this.making:
        monitor = process.this.monitor
        if monitor is None or not monitor.in_this_process:
            forget_faults()
            from hfmem_widget.sources import open_allocators, open_sources
            from hfmem_widget.sources.counters import TensorSource

            allocators = open_allocators()
            sources = open_sources(os.environ, allocators)
            tensors = next(source for source in sources if isinstance(source, TensorSource))
            attribution = Attribution(tensors)
            monitor = Monitor(Sampler(sources), PeakLedger(*allocators), attribution=attribution)
            atexit.register(monitor.shutdown)
            _follow_forks()
            process.this.monitor = monitor
    return monitor


def current_watch() -> tuple[Monitor, Session] | None:
    """Return the monitor and the session of further spans of this thread; None where nothing is watched."""
    monitor = process.this.monitor
    session = monitor.current if monitor is not None else None
    return None if monitor is None or session is None else (monitor, session)


def running_monitor() -> Monitor | None:
    """Return this process' monitor if it is watching something."""
    watch = current_watch()
    return None if watch is None else watch[0]


def read_once() -> Session:
    """Read everything once, now, and return it as a session that has ended; nothing is shown."""
    monitor = shared_monitor()
    with interrupts_deferred():
        session = monitor.begin(WatchOptions(label="now"), is_one_reading=True)
        try:
            # A cell's edges count all tensors there are, whenever they were counted last.
            monitor.close_span(session, monitor.open_span(session, "cell", "now").id)
        finally:
            monitor.end(session)
    return session


def release_monitor() -> str:
    """End everything this process' monitor does; return what the user must know of it, or ``""``."""
    monitor, process.this.monitor = process.this.monitor, None
    if monitor is None:
        return ""
    atexit.unregister(monitor.shutdown)
    return monitor.shutdown()


@functools.cache  # These hooks cannot be taken back, so there is one set for good.
def _follow_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lambda: _on_fork(lambda monitor: monitor.poller.before_fork()),
            after_in_parent=lambda: _on_fork(lambda monitor: monitor.poller.after_fork_in_parent()),
            after_in_child=_in_child,
        )


def _on_fork(act: Callable[[Monitor], object]) -> None:
    if process.this.monitor is not None:
        harmless(act, process.this.monitor)


def _in_child() -> None:
    _on_fork(Monitor.after_fork_in_child)
    process.replace(process.this.child())
