"""Exact peaks for any number of windows, from the one peak counter that a device has.

PyTorch keeps one peak per device and everybody resets it (pytorch#16266). At each edge of each window
the ledger reads the counter, folds it into every open window and into the user's own *shadow*
peak, and resets it. Every window is then a union of such epochs, and the highest of their peaks is
its own, to the byte. The entry points through which Python reads and resets the counter are wrapped, so that
the user's functions say what they would have said without us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hfmem_widget.session import Peak
from hfmem_widget.units import format_bytes

DEVICE_TYPE = "cuda"

STATISTICS = {
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "active": "active_bytes",
    "requested": "requested_bytes",
}
"""The metrics whose peaks are kept, and what the allocator calls them."""

Stats = dict[str, Any]
Peaks = dict[str, Peak]


class Allocator(Protocol):
    """The caching allocator's counters, as `sources.torch_cuda.CudaAllocator` offers them."""

    @property
    def installed(self) -> bool:
        """True while the entry points are wrapped."""
        ...

    def supported(self) -> bool:
        """Return True once the entry points exist."""
        ...

    def devices(self) -> Sequence[int]:
        """Return the indices of the initialised devices."""
        ...

    def stats(self, device: int) -> Stats:
        """Return the raw nested statistics of one device."""
        ...

    def reset_peak(self, device: int) -> None:
        """Reset the raw peak counters of one device."""
        ...

    def install(
        self,
        read: Callable[[Callable[[int], Stats], int], Stats],
        reset: Callable[[Callable[[int], None], int], None],
    ) -> None:
        """Let the user's reads and resets go through `read(raw, device)` and `reset(raw, device)`."""
        ...

    def uninstall(self) -> None:
        """Put the original entry points back."""
        ...


class Window:
    """A stretch of time whose peaks are wanted. Compared by identity.

    Attributes
    ----------
    bounded : bool
        True if it may not reset counters: its peaks are then lower bounds.
    flawed : bool
        True once something happened in it that may have hidden a higher peak.
    """

    __slots__ = ("at_open", "bounded", "flawed", "peaks")

    def __init__(self, *, bounded: bool) -> None:
        self.bounded = bounded
        self.flawed = False
        self.peaks: dict[tuple[int, str], float] = {}
        self.at_open: dict[tuple[int, str], tuple[float, float]] = {}
        """Current and peak value when a bounded window was opened."""


class PeakLedger:
    """Keeps the peaks of nested and overlapping windows, and the user's own.

    Parameters
    ----------
    allocator : Allocator
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._windows: list[Window] = []
        self._shadow: dict[int, Stats] = {}
        self._lock = threading.RLock()

    @property
    def open_windows(self) -> int:
        """How many windows are open."""
        return len(self._windows)

    def install(self) -> None:
        """Wrap the entry points if they exist and are not wrapped; a window open since before is flawed.

        Only where CUDA was already up: before that there was no peak to lose.
        """
        if self._allocator.installed or not self._allocator.supported():
            return
        with self._lock:
            if self._allocator.devices():
                for window in self._windows:
                    window.flawed = True
            self._allocator.install(self._user_reads, self._user_resets)

    def uninstall(self) -> str:
        """Put the entry points back; return a sentence if the user's peaks now read lower, else ``""``."""
        with self._lock:
            if not self._allocator.installed:
                return ""
            lowered = [
                f"{DEVICE_TYPE}:{device} {format_bytes(shadow)} (the counter says {format_bytes(raw)})"
                for device in self._allocator.devices()
                if (shadow := _statistic(self._shadow.get(device, {}), "allocated_bytes", "peak"))
                > (raw := _statistic(self._allocator.stats(device), "allocated_bytes", "peak"))
            ]
            for window in self._windows:
                window.flawed = True
            self._allocator.uninstall()
            self._shadow.clear()
        if not lowered:
            return ""
        return "Peak allocated since your last reset was " + ", ".join(lowered) + "."

    def open(self, *, bounded: bool = False) -> Window:
        """Begin a window now.

        Parameters
        ----------
        bounded : bool
            Do not touch any counter; the peaks are then bounds.
        """
        window = Window(bounded=bounded)
        with self._lock:
            if bounded:
                for device in self._allocator.devices():
                    stats = self._seen_by_user(device)
                    for metric, name in STATISTICS.items():
                        now, peak = (
                            _statistic(stats, name, "current"),
                            _statistic(stats, name, "peak"),
                        )
                        window.at_open[device, metric] = (now, peak)
                return window
            self.install()
            self._edge()
            self._windows.append(window)
        return window

    def close(self, window: Window) -> Peaks:
        """End a window and return its peaks by series key; closing it again returns the same."""
        with self._lock:
            if window.bounded:
                return self._bounds(window)
            if window in self._windows:
                self._edge()
                self._windows = [one for one in self._windows if one is not window]
            return _named(window)

    def so_far(self) -> dict[Window, Peaks]:
        """Return the peaks of every open window up to now, without touching a counter."""
        with self._lock:
            seen = {device: self._allocator.stats(device) for device in self._allocator.devices()}
            result = {}
            for window in self._windows:
                current = Window(bounded=False)
                current.flawed = window.flawed
                current.peaks = dict(window.peaks)
                for device, stats in seen.items():
                    _raise(current, device, stats)
                result[window] = _named(current)
            return result

    def forget_windows(self) -> None:
        """Drop all windows and who holds the lock: for a forked child."""
        self._lock = threading.RLock()
        self._windows = []

    def _edge(self) -> None:
        for device in self._allocator.devices():
            before = self._allocator.stats(device)
            if _statistic(before, "reserved_bytes", "peak"):
                self._begin_epoch(device, before, self._allocator.reset_peak)
                _remember_peaks(self._shadow.setdefault(device, {}), before)

    def _begin_epoch(self, device: int, before: Stats, reset: Callable[[int], None]) -> None:
        """Fold the counter as it was read into the open windows, and reset it."""
        for window in self._windows:
            _raise(window, device, before)
        reset(device)
        # Between the reading and the reset another thread may have allocated; the count of all
        # allocations ever made tells. It stays 0 under cudaMallocAsync, which then has no certificate.
        after = self._allocator.stats(device)
        counted = _statistic(before, "allocation", "allocated")
        uncounted = not counted and _statistic(after, "reserved_bytes", "peak") > 0
        if uncounted or counted != _statistic(after, "allocation", "allocated"):
            for window in self._windows:
                window.flawed = True

    def _bounds(self, window: Window) -> Peaks:
        peaks: Peaks = {}
        for device in self._allocator.devices():
            stats = self._seen_by_user(device)
            for metric, name in STATISTICS.items():
                now, peak = _statistic(stats, name, "current"), _statistic(stats, name, "peak")
                now_at_open, peak_at_open = window.at_open.get((device, metric), (0.0, 0.0))
                # Risen, the counter is the window's own, unless the user reset it meanwhile: nobody
                # can tell, so it stays a bound.
                known = peak if peak > peak_at_open else max(now, now_at_open)
                peaks[_key(device, metric)] = Peak(known, "at least")
        return peaks

    def _seen_by_user(self, device: int) -> Stats:
        stats = self._allocator.stats(device)
        _show_peaks(stats, self._shadow.get(device, {}))
        return stats

    def _user_reads(self, raw: Callable[[int], Stats], device: int) -> Stats:
        with self._lock:
            stats = raw(device)
            shadow = self._shadow.get(device)
            if shadow:
                _show_peaks(stats, shadow)
            return stats

    def _user_resets(self, raw: Callable[[int], None], device: int) -> None:
        with self._lock:
            if self._windows and device in self._allocator.devices():
                self._begin_epoch(device, self._allocator.stats(device), raw)
            else:
                raw(device)
            self._shadow.pop(device, None)


def _key(device: int, metric: str) -> str:
    return f"{DEVICE_TYPE}:{device}/{metric}"


def _named(window: Window) -> Peaks:
    return {
        _key(device, metric): Peak(value, "at least" if window.flawed else "exact")
        for (device, metric), value in window.peaks.items()
    }


def _raise(window: Window, device: int, stats: Stats) -> None:
    for metric, name in STATISTICS.items():
        peak = _statistic(stats, name, "peak")
        if peak >= window.peaks.get((device, metric), 0.0):
            window.peaks[device, metric] = peak


def _statistic(stats: Stats, name: str, which: str) -> float:
    try:
        return float(stats[name]["all"][which])
    except (KeyError, TypeError):
        return 0.0


def _remember_peaks(shadow: Stats, stats: Stats) -> None:
    """Raise every ``peak`` that a shadow holds to the one in some statistics."""
    for key, value in stats.items():
        if isinstance(value, dict):
            _remember_peaks(shadow.setdefault(key, {}), value)
        elif key == "peak" and value > shadow.get(key, -1):
            shadow[key] = value


def _show_peaks(stats: Stats, shadow: Stats) -> None:
    """Raise every ``peak`` in some statistics to the one that a shadow holds."""
    for key, value in stats.items():
        if isinstance(value, dict) and key in shadow:
            _show_peaks(value, shadow[key])
        elif key == "peak" and shadow.get(key, -1) > value:
            stats[key] = shadow[key]
