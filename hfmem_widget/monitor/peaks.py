"""Exact peaks for any number of windows, from the one peak counter that a device has.

PyTorch keeps one peak per device and everybody resets it (pytorch#16266). Where a window begins, the ledger
reads the counter, adds it to the user's own *shadow* peak, resets it, and folds it into the open windows.
Every window is then a union of such epochs, and the highest of their peaks is its own, to the byte. Where a
window ends, the counter is only read: all open windows are at least as old as its last reset, so its count
belongs to each of them. An edge is the instant of a reading: a window that ends there has the peak of that
reading, and one that begins there begins with the current value. Signals are deferred at an edge: an
interrupt between the reading and the reset would lose the peak.

The entry points through which Python reads and resets the counter are wrapped, so that the user's
functions say what they would have said without us.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from hfmem_widget.guard import entry, interrupts_deferred
from hfmem_widget.session import Certainty, Peak
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.spans import NOTHING, Highs
from hfmem_widget.sources.allocator import Allocator, Instant, Reading, Stats, reading_of
from hfmem_widget.text import format_bytes

Shadow = dict[Any, Any]
"""The peaks of a device that the user would read if only the user had reset the counters, in nested dicts.

Most of them stand in families of pools, ``{"allocated_bytes": {"all": {"peak": ...}, ...}}``. Private pools
(CUDA graphs) come and go, and lie one level deeper. A function shows fewer of them than another may."""


def remember(shadow: Shadow, stats: Stats) -> None:
    """Keep the highest of every ``peak`` in some statistics, which are about to be reset."""
    for key, value in stats.items():
        if isinstance(value, dict):
            if "peak" not in value:
                remember(shadow.setdefault(key, {}), value)
            elif value["peak"] > shadow.get(key, -1):
                shadow[key] = value["peak"]


def show(shadow: Shadow, stats: Stats) -> None:
    """Raise every peak in some statistics to the one remembered."""
    for key, value in stats.items():
        if isinstance(value, dict) and key in shadow:
            if "peak" not in value:
                show(shadow[key], value)
            elif shadow[key] > value["peak"]:
                value["peak"] = shadow[key]


_METRICS = {
    "allocated": ("allocated", "peak"),
    "reserved": ("reserved", "peak_reserved"),
    "active": ("active", "peak_active"),
    "requested": ("requested", "peak_requested"),
    "peak": ("allocated", "peak"),
}
"""The metrics whose peaks are kept, and the fields of a `Reading` with their current and highest value."""

_current_of, _peaks_of = (
    itemgetter(*map(Reading._fields.index, fields))
    for fields in zip(*_METRICS.values(), strict=True)
)

Readings = Mapping[int, Reading]
"""The readings of each device at one instant."""

Peaks = dict[str, Peak]


@dataclass(eq=False, slots=True)
class Window:
    """An interval whose peaks are wanted. Compared by identity."""

    bounded: bool = False  # it must not reset counters, so its peaks are lower bounds
    flawed: bool = False  # something happened in it that may have hidden a higher peak
    lasts: bool = False  # it belongs to no session, and stays open when sessions are dropped
    keys: Sequence[str] = ()  # the series that have highs, once it has ended
    highs: list[float] = field(default_factory=list)  # bytes; `NOTHING` of a device not in use
    at_open: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Current and peak value by series key when a bounded window was opened."""
    readings: Readings = field(default_factory=dict)  # of its newest edge, until `take_readings`
    _seen: tuple[Sequence[float], bool] = ((), False)

    @property
    def peaks(self) -> Peaks:
        """The highs of a window that has ended as peaks, by series key."""
        return self.named(self.keys, self.highs)

    def named(self, keys: Sequence[str], highs: Sequence[float]) -> Peaks:
        """Return highs as peaks, by series key."""
        certainty: Certainty = "at least" if self.flawed else "exact"
        pairs = zip(keys, highs, strict=False)
        return {key: Peak(float(high), certainty) for key, high in pairs if high != NOTHING}

    def take_readings(self) -> Readings:
        """Return the readings of its newest edge, once: that instant needs no other reading."""
        readings, self.readings = self.readings, {}
        return readings

    def is_news(self, highs: Sequence[float]) -> bool:
        """Return whether the highs or their certainty have changed since the last call."""
        before, self._seen = self._seen, (highs, self.flawed)
        return self._seen != before


class PeakLedger:
    """Keeps the peaks of nested and overlapping windows, and the user's own.

    Of several allocators it keeps the peaks of the first that torch is built for, its `allocator`. It is
    `in_use` once an edge has found a device that this process has allocated on.
    """

    def __init__(self, *allocators: Allocator) -> None:
        self.in_use = False
        self.allocator = allocators[0]
        self._allocators = allocators
        # The peaks of `_METRICS` of one device after the other.
        self._windows: Highs[Window] = Highs()
        self._keys: tuple[str, ...] = ()
        self._shadow: dict[int, Shadow] = defaultdict(dict)
        self._lock = threading.RLock()

    def install(self) -> None:
        """Wrap the entry points that exist; if CUDA was up before, open windows are marked as flawed."""
        if self.allocator.installed:
            return
        supported = next((each for each in self._allocators if each.supported()), None)
        with self._lock:
            if supported is None or supported.installed:  # another thread has done it meanwhile
                return
            self.allocator = supported
            if self.allocator.devices():
                self._mark_flawed()
            self.allocator.install(self._user_reads, self._user_resets)

    def uninstall(self) -> str:
        """Put the entry points back; return a sentence if the user's peaks now read lower, else ``""``."""
        with self._lock:
            if not self.allocator.installed:
                return ""
            lowered = [
                f"{self._key(device)} {format_bytes(shadow)} (the counter says {format_bytes(raw)})"
                for device in self.allocator.devices()
                if (shadow := self._seen_by_user(device).peak)
                > (raw := reading_of(self._stats(device)).peak)
            ]
            self._mark_flawed()
            self.allocator.uninstall()
            self._shadow.clear()
            self.in_use = False
        if not lowered:
            return ""
        return "Peak allocated since your last reset was " + ", ".join(lowered) + "."

    def open(self, *, bounded: bool = False, lasts: bool = False) -> Window:
        """Begin a window now; a `bounded` one touches no counter, so its peaks are lower bounds."""
        window = Window(bounded, lasts=lasts)
        with self._lock:
            if bounded:
                window.at_open = self._all_seen_by_user()
            else:
                self._add_edge(opening=window)
        return window

    def close(self, window: Window) -> Peaks:
        """End a window and return its peaks by series key; closing it again returns the same."""
        with self._lock:
            if window.bounded:
                return self._bounds(window)
            if window in self._windows:
                self._add_edge(closing=window)
            return window.peaks

    def turn(self, window: Window) -> Window:
        """End a window and begin another of its kind at the same instant, for the price of one edge."""
        with self._lock:
            if window.bounded or window not in self._windows:
                self.close(window)
                return self.open(bounded=window.bounded)
            following = Window()
            self._add_edge(closing=window, opening=following)
        return following

    def _add_edge(self, *, closing: Window | None = None, opening: Window | None = None) -> None:
        """Read the counters now, reset them where a window begins, and turn the readings into peaks."""
        if not self.in_use:
            self.install()
        with interrupts_deferred():
            try:
                readings = self._readings(resets=opening is not None)
                self.in_use = any(reading.in_use for reading in readings.values())
                certified = opening is None or self._reset(readings)
                self._fold(readings, closing, opening, certified=certified)
            except BaseException:
                self._mark_flawed()  # no peak is called exact
                raise

    def _reset(self, readings: Readings) -> bool:
        """Reset the counters that were just read; return whether nothing was allocated meanwhile."""
        certified = True
        for device, reading in readings.items():
            if reading.in_use:
                self.allocator.reset_peak(device)
                certified &= _certificate(reading) == self._allocations(device)
        return certified

    def so_far(self) -> dict[Window, Peaks]:
        """Return the peaks of every open window up to now, without touching a counter."""
        with self._lock:
            self.read()
            return {
                window: window.named(self._keys_of(highs), highs)
                for window, highs in self._windows.highs_by_key()
            }

    def look(self) -> tuple[dict[Window, Peaks], Instant]:
        """Return `so_far` of the windows whose peaks have changed since the last look, and what was read."""
        with self._lock:
            readings = self.read()
            news = {
                window: window.named(self._keys_of(highs), highs)
                for window, highs in self._windows.highs_by_key()
                if window.is_news(highs)
            }
        return news, Instant(self.allocator, readings)

    def read(self) -> Readings:
        """Read the counters of all devices, without a reset; the open windows get their peaks."""
        with self._lock:
            readings = self._readings()
            for device, reading in readings.items():
                if reading.in_use:
                    self._note(device, reading)
        return readings

    def drop(self, windows: Iterable[Window]) -> None:
        """Drop windows whose peaks are no longer wanted."""
        with self._lock:
            for window in windows:
                self._windows.drop(window)

    def drop_all(self) -> None:
        """Drop the windows of all sessions; the user's own peaks are kept."""
        with self._lock:
            if any(window.lasts for window in self._windows):
                self.drop([window for window in self._windows if not window.lasts])
            else:
                self._windows = Highs()

    def forget_windows(self) -> None:
        """Drop all windows, and make a new lock: for a forked child."""
        self._lock = threading.RLock()
        self._windows = Highs()

    def _fold(
        self, readings: Readings, closing: Window | None, opening: Window | None, *, certified: bool
    ) -> None:
        """Turn the readings of an edge into peaks; `certified` if no reset has lost one."""
        peaks: list[float] = []
        current: list[float] = []
        for device, reading in readings.items():
            if reading.in_use:
                # A device that is not in use has no values.
                none = [NOT_AVAILABLE] * (device * len(_METRICS) - len(peaks))
                peaks += [*none, *_peaks_of(reading)]
                current += [*none, *_current_of(reading)]
        self._windows.note(peaks)
        if not certified:
            self._mark_flawed()
        if closing is not None:
            closing.readings = readings
            # The counters are integers.
            closing.highs = list(map(float, self._windows.close(closing)))
            closing.keys = self._keys_of(closing.highs)
        if opening is not None:
            opening.readings, opening.flawed = readings, not certified
            self._windows.open(opening, current)

    def _note(self, device: int, reading: Reading) -> None:
        none = [NOT_AVAILABLE] * (device * len(_METRICS))
        self._windows.note([*none, *_peaks_of(reading)])

    def _mark_flawed(self) -> None:
        for window in self._windows:
            window.flawed = True

    def _keys_of(self, highs: Sequence[float]) -> Sequence[str]:
        if len(highs) > len(self._keys):
            devices = map(self._key, range(len(highs) // len(_METRICS)))
            self._keys = tuple(f"{key}/{metric}" for key in devices for metric in _METRICS)
        return self._keys

    def _bounds(self, window: Window) -> Peaks:
        seen = self._all_seen_by_user()
        window.flawed, window.keys, window.highs = True, tuple(seen), []
        for key, (now, peak) in seen.items():
            now_at_open, peak_at_open = window.at_open.get(key, (0.0, 0.0))
            # A counter that has risen is the window's own, unless the user has reset it: it stays a bound.
            window.highs.append(peak if peak > peak_at_open else max(now, now_at_open))
        return window.peaks

    def _all_seen_by_user(self) -> dict[str, tuple[float, float]]:
        seen = {}
        for device in self.allocator.devices():
            reading = self._seen_by_user(device)
            pairs = zip(_METRICS, _current_of(reading), _peaks_of(reading), strict=True)
            for metric, now, peak in pairs:
                if not math.isnan(now):
                    seen[f"{self._key(device)}/{metric}"] = now, peak
        return seen

    def _key(self, device: int) -> str:
        return f"{self.allocator.device_type}:{device}"

    def _readings(self, *, resets: bool = False) -> dict[int, Reading]:
        """Read all devices; before a reset, the peaks that the user would read are remembered."""
        readings: dict[int, Reading] = {}
        for device in self.allocator.opened():
            # Not by `_stats`: this is done at every edge, with cold caches.
            try:
                stats = self.allocator.stats(device)
            except Exception:  # noqa: BLE001  (as there)
                stats = {}
            readings[device] = reading = reading_of(stats)
            if resets and reading.in_use:
                remember(self._shadow[device], stats)
        return readings

    def _allocations(self, device: int) -> float:
        # Not a whole `Reading`, which takes 20 figures: this, too, is done at every edge.
        try:
            return float(self.allocator.stats(device)["allocation"]["all"]["allocated"])
        except Exception:  # noqa: BLE001  (as in `_stats`; another torch may not count them)
            return NOT_AVAILABLE

    def _stats(self, device: int) -> Stats:
        try:
            return self.allocator.stats(device)
        except Exception:  # noqa: BLE001  (torch.cuda.CUDAPluggableAllocator keeps none and raises)
            return {}

    def _seen_by_user(self, device: int) -> Reading:
        return reading_of(self._user_reads(self._stats, device))

    def _user_reads(self, raw: Callable[[int], Stats], device: int) -> Stats:
        with self._lock:
            stats = raw(device)
            self._show(device, stats)
            return stats

    def _user_resets(self, raw: Callable[[int], None], device: int) -> None:
        with self._lock:
            before = self._before_reset(device)
            try:
                raw(device)
                self._after_reset(device, before)
            except BaseException:
                if device in self.allocator.devices():  # else there was nothing to reset
                    self._has_been_reset(device, before)
                raise

    @entry()
    def _show(self, device: int, stats: Stats) -> None:
        shadow = self._shadow.get(device)
        if shadow is not None and stats:
            show(shadow, stats)

    @entry()
    def _before_reset(self, device: int) -> Reading | None:
        if not (self._windows and device in self.allocator.devices()):
            return None
        try:
            return reading_of(self.allocator.stats(device))
        except Exception:  # noqa: BLE001  (as in `_stats`)
            self._mark_flawed()
            return None

    def _has_been_reset(self, device: int, before: Reading | None) -> None:
        self._shadow.pop(device, None)
        self._mark_flawed()
        if before is not None:
            self._note(device, before)

    @entry(undo=_has_been_reset)
    def _after_reset(self, device: int, before: Reading | None) -> None:
        self._shadow.pop(device, None)
        if before is not None:
            self._note(device, before)
            after = reading_of(self.allocator.stats(device))
            if _certificate(before) != _certificate(after):
                self._mark_flawed()


def _certificate(reading: Reading) -> float:
    """Return how many allocations were ever made on a device; NaN, which equals nothing, if that is unknown.

    If a reset does not change it, no thread has allocated meanwhile. cudaMallocAsync does not count.
    """
    if reading.allocations > 0:
        return reading.allocations
    return NOT_AVAILABLE if reading.in_use else 0.0
