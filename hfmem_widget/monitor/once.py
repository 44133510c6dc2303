"""One reading of everything, now, for whoever asks on demand."""

from __future__ import annotations

from hfmem_widget.guard import harmless, interrupts_deferred
from hfmem_widget.monitor.optimizers import follow_optimizers
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session


def read_once(label: str = "now") -> Session:
    """Read everything once, now, and return it as a session that has ended; nothing is shown."""
    monitor = shared_monitor()
    with interrupts_deferred():
        session = monitor.begin(WatchOptions(label=label))
        harmless(follow_optimizers)
        try:
            # A cell's edges count all tensors there are, whenever they were counted last.
            monitor.close_span(session, monitor.open_span(session, "cell", label).id)
        finally:
            monitor.end(session)
    return session
