"""An interrupt may come at any instant, but not in the middle of our own bookkeeping."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back SIGINT for the few milliseconds of the block, and deliver it right after.

    Elsewhere than on the main thread, where signals never arrive, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual):
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if arrived:
            usual(*arrived[0])
