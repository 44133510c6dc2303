"""Marks: the edges of a training's steps as what is read at them, and nothing more.

A step of which no more is wanted than its peak is the commonest span there is. With the cold caches that a
step leaves behind, each function that an edge goes through takes 3 µs, so these go through few.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from hfmem_widget.monitor.peaks import PeakLedger, Window
from hfmem_widget.monitor.watched import Mark, Watched
from hfmem_widget.sources.tensors import TensorSource

MOST_WAITING = 512
"""Edges that wait at most, where the poller hangs or ticks rarely."""


class Marker:
    """Marks the edges of the steps of one session; whoever makes its next edge, or polls, does the rest.

    Nothing is half done wherever an interrupt comes, so nobody need hold it back. `counted` has what the
    tensors were counted to be. The `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        watched: Watched,
        ledger: PeakLedger,
        counted: TensorSource,
        clock: Callable[[], float],
    ) -> None:
        self._watched = watched
        self._ledger = ledger
        self._counted = counted
        self._clock = clock
        self._pid = os.getpid()
        options = watched.options
        self._may_wait = options.ledger and not options.resident_peak

    def begin(self, label: str) -> int | None:
        """Read that a step begins now, and return the id of its span.

        Returns None where this is not enough, and the span is to be opened.
        """
        watched, ledger = self._watched, self._ledger
        if watched.ending or not ledger.in_use or self._pid != os.getpid():
            return None
        if not (self._may_wait and watched.windows) or len(watched.marks) >= MOST_WAITING:
            return None
        window = Window()
        ledger.edge(opening=window)
        time = self._clock() - watched.origin
        span_id = watched.recorder.next_span_id()
        held = self._counted.latest
        mark = Mark(span_id, window, time, window.readings, held, label)
        watched.marked = mark
        watched.marks.append(mark)
        return span_id

    def end(self, span_id: int, counts: Mapping[str, float]) -> bool:
        """Read that a step ends now, and well; return False where it is to be closed instead."""
        watched, ledger = self._watched, self._ledger
        marked = watched.marked
        if marked is not None and marked.span_id == span_id:
            window = marked.window
            # Until it is settled, nothing else has been opened.
            is_newest = span_id not in watched.late or watched.ends_late(span_id)
        elif is_newest := not watched.marks and watched.ends_late(span_id):
            window = watched.windows[span_id]
        if not is_newest or not ledger.in_use or self._pid != os.getpid():
            return False
        readings = ledger.ends(window)
        time = self._clock() - watched.origin
        held = self._counted.latest
        watched.marks.append(Mark(span_id, window, time, readings, held, counts=counts))
        return True
