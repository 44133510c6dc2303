"""Shows the memory map below a running cell's chart; afterwards the maps at the end and at the highest."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from hfmem_widget.analysis.facts import PATIENCE
from hfmem_widget.features.memory_map.api import read_map
from hfmem_widget.features.memory_map.html import live_bundle, moments_bundle
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.ticker import NOT_STARTED, Ticker
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span
from hfmem_widget.session.segments import MemoryMap
from hfmem_widget.sources.malloc import find_glibc_heap
from hfmem_widget.text import format_duration
from hfmem_widget.view.screen import Screen
from hfmem_widget.view.wire.publisher import ENVELOPE, PACES

PERIOD = 1.0  # seconds between readings, at least
MOST_SECONDS = 0.02  # CPU seconds that a reading may take while the cell runs: it holds the GIL
SHARE = 0.02  # share of the time that reading and drawing may take


class LiveMemoryMap(Companion):
    """Reads the allocator's segments from time to time; without a live screen, shows them at the end."""

    screen: Screen | None = None

    def __init__(
        self,
        options: WatchOptions,
        read: Callable[[], MemoryMap] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._devices = options.devices
        # CPU time, as waiting for the GIL costs the user nothing. The heap is searched for once.
        self._read_map = read or partial(read_map, find_heap=cache(find_glibc_heap), clock=cpu)
        self._clock = clock
        self._cpu = cpu
        self._display_id = ""
        self._lock = threading.Lock()
        self._began = self._draw_due = -math.inf
        self._ticker = Ticker(self.tick, PATIENCE)
        self._shown: Mapping[str, Any] = {}
        self._last = self._highest = MemoryMap()
        self._highest_at = 0.0

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Show an empty output below the chart, and begin to read."""
        self._session, self._began = recorder.session, self._clock()
        if self.screen is not None and self.screen.live:
            self._display_id = self.screen.show({})
        with suppress(*NOT_STARTED):  # then it is shown at the end
            self._ticker.start()

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Read the last map."""
        self._ticker.stop(0.0)
        with self._lock:
            self._last = self._read(recorder.session)

    def report(self, session: Session, span: Span) -> Mapping[str, Any] | None:
        """Replace the live map by the last and the highest; without a live map, return them."""
        moments = [("at the end", self._last)]
        if self._highest.segments and self._highest.segments != self._last.segments:
            title = f"after {format_duration(self._highest_at)}, when most was reserved"
            moments.append((title, self._highest))
        bundle = moments_bundle(moments)
        if self.screen is None or not self._display_id:
            return bundle
        self.screen.replace(self._display_id, bundle)
        return None

    def tick(self) -> None:
        """Read the map, and draw it where that is due; called at least a second apart."""
        with self._lock:
            # A tick that was on its way when the cell ended does nothing.
            if self._ticker.stopping or self._clock() < self._began + PATIENCE:
                return
            try:
                self._read_and_draw(self._session)
            except Exception as error:  # noqa: BLE001  (the cell and its card go on without)
                self._ticker.stop(0.0)
                what = f"({type(error).__name__}: {error})"
                note = f"The live memory map stopped {what}. The card is complete."
                self._session.notes.append(note)

    def _read_and_draw(self, session: Session) -> None:
        started, now = self._cpu(), self._clock()
        memory_map = self._read(session)
        if memory_map.seconds > MOST_SECONDS:
            self._ticker.stop(0.0)
            session.notes.append(
                f"Reading the memory map takes {format_duration(memory_map.seconds)}, too long while the "
                "cell runs; it is shown at the end."
            )
            return
        size = self._draw(memory_map) if now >= self._draw_due else 0
        cost = (self._cpu() - started) / SHARE
        self._ticker.interval = max(PERIOD, cost)
        if now >= self._draw_due:
            # At the pace of a chart that has not been seen since the cell began.
            rate = next(pace.rate for pace in PACES if now - self._began <= pace.unseen)
            self._draw_due = now + max(PERIOD, cost, size / rate)

    def _draw(self, memory_map: MemoryMap) -> int:
        """Show a map if it differs from the current one; return the bytes that were sent."""
        # An output that the user's code has cleared stays empty until the end.
        if self.screen is None or not self._display_id or self.screen.cleared:
            return 0
        bundle = live_bundle(memory_map)
        if bundle == self._shown:
            return 0
        self.screen.replace(self._display_id, bundle)
        self._shown = bundle
        return ENVELOPE + sum(len(text.encode()) for text in bundle.values())

    def _read(self, session: Session) -> MemoryMap:
        memory_map = self._read_map()
        if self._devices:
            memory_map = memory_map.only(self._devices)
        if memory_map.devices != self._highest.devices or _size(memory_map) > _size(self._highest):
            self._highest, self._highest_at = memory_map, session.last_sample.time
        return memory_map


def _size(memory_map: MemoryMap) -> tuple[int, int]:
    blocks = (block for segment in memory_map.segments for block in segment.blocks)
    in_use = sum(block.size for block in blocks if block.state == "allocated")
    return sum(segment.size for segment in memory_map.segments), in_use
