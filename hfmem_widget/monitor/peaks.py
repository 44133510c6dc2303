"""Exact peaks for any number of windows, from the one peak counter that a device has.

PyTorch keeps one peak per device and everybody resets it (pytorch#16266). Where a window begins, the ledger
reads the counter, folds it into the open windows and into the user's own *shadow* peak, and resets it. Every
window is then a union of such epochs, and the highest of their peaks is its own, to the byte. Where one ends,
the counter is only read: all open windows are at least as old as its last reset, so what it has counted since
belongs to each of them. An edge is the instant of the reading: a window that ends there has its peak, one
that begins there begins with what was current. Only reading and resetting must happen at that instant; the
folding of a late edge is left to whoever looks next.

The entry points through which Python reads and resets the counter are wrapped, so that the user's
functions say what they would have said without us.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hfmem_widget.guard import entry, interrupts_deferred
from hfmem_widget.monitor.shadow import Shadow
from hfmem_widget.session import Certainty, Peak
from hfmem_widget.session.highs import NOTHING, Highs
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Allocator, Instant, Stats
from hfmem_widget.text import format_bytes

STATISTICS = {
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "active": "active_bytes",
    "requested": "requested_bytes",
    "peak": "allocated_bytes",
}
"""The metrics whose peaks are kept, and what the allocator calls them; "peak" is the counter itself."""

_NAMES = tuple(STATISTICS.values())
_NONE = (NOT_AVAILABLE,) * len(STATISTICS)

Readings = Mapping[int, Stats]
"""The raw statistics of each device, read at one instant."""

Peaks = dict[str, Peak]


@dataclass(eq=False, slots=True)
class Window:
    """An interval whose peaks are wanted. Compared by identity.

    Attributes
    ----------
    bounded : bool
        True if it may not reset counters: its peaks are then lower bounds.
    flawed : bool
        True once something happened in it that may have hidden a higher peak.
    lasts : bool
        True if it is no session's: it stays open when sessions begin anew.
    keys : tuple of str
        The series that have highs, once it has ended.
    highs : list of float
        Of `keys`, in bytes; `NOTHING` where a device was not in use.
    at_open : dict of str to tuple of float
        Current and peak value by series key when a bounded window was opened.
    readings : mapping of int to dict
        What was read at its newest edge, until `take_readings`.
    """

    bounded: bool = False
    flawed: bool = False
    lasts: bool = False
    keys: Sequence[str] = ()
    highs: list[float] = field(default_factory=list)
    at_open: dict[str, tuple[float, float]] = field(default_factory=dict)
    readings: Readings = field(default_factory=dict)
    _seen: tuple[Sequence[float], bool] = ((), False)

    @property
    def peaks(self) -> Peaks:
        """The highs of a window that has ended as peaks, by series key."""
        return _named(self, self.keys, self.highs)

    def take_readings(self) -> Readings:
        """Return what was read at its newest edge, once: another reading of that instant is not needed."""
        readings, self.readings = self.readings, {}
        return readings

    def is_news(self, highs: Sequence[float]) -> bool:
        """Return whether the highs, or how well they are known, differ from those of the last look."""
        before, self._seen = self._seen, (highs, self.flawed)
        return self._seen != before


@dataclass(slots=True)
class _Edge:
    """What was read at an edge, and which windows meet there; `after` is `_counted` once it was reset."""

    before: dict[int, Stats]
    after: dict[int, float]
    closing: Window | None
    opening: Window | None


class PeakLedger:
    """Keeps the peaks of nested and overlapping windows, and the user's own.

    Of several allocators it keeps the peaks of the first that torch is built for, its `allocator`. It is
    `in_use` once an edge has found a device that this process has allocated on.
    """

    def __init__(self, *allocators: Allocator) -> None:
        self.in_use = False
        self.allocator = allocators[0]
        self._allocators = allocators
        self._unfolded: deque[_Edge] = deque()
        # The peaks of `STATISTICS` of one device after the other.
        self._windows: Highs[Window] = Highs()
        self._keys: tuple[str, ...] = ()
        self._shadow: dict[int, Shadow] = {}
        self._lock = threading.RLock()

    @property
    def open_windows(self) -> int:
        """How many windows are open."""
        return len(self._windows)

    def install(self) -> None:
        """Wrap the entry points if they exist and are not wrapped; a window open since before is flawed.

        Only where CUDA was already up: before that there was no peak to lose.
        """
        if self.allocator.installed:
            return
        for supported in self._allocators:
            if supported.supported():
                break
        else:
            return
        with self._lock:
            self.allocator = supported
            self.fold()
            if self.allocator.devices():
                self._flaw()
            self.allocator.install(self._user_reads, self._user_resets)

    def uninstall(self) -> str:
        """Put the entry points back; return a sentence if the user's peaks now read lower, else ``""``."""
        with self._lock:
            if not self.allocator.installed:
                return ""
            lowered = [
                f"{self._key(device)} {format_bytes(shadow)} (the counter says {format_bytes(raw)})"
                for device in self.allocator.devices()
                if (shadow := _statistic(self._seen_by_user(device), "allocated_bytes", "peak"))
                > (raw := _statistic(self._stats(device), "allocated_bytes", "peak"))
            ]
            self._flaw()
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
                self.edge(opening=window)
                self.fold()
        return window

    def close(self, window: Window) -> Peaks:
        """End a window and return its peaks by series key; closing it again returns the same."""
        with self._lock:
            if window.bounded:
                return self._bounds(window)
            self.fold()
            if window in self._windows:
                self.edge(closing=window)
                self.fold()
            return window.peaks

    def turn(self, window: Window) -> Window:
        """End a window and begin another of its kind at the same instant, for the price of one edge."""
        with self._lock:
            self.fold()
            if window.bounded or window not in self._windows:
                self.close(window)
                return self.open(bounded=window.bounded)
            following = Window()
            self.edge(closing=window, opening=following)
            self.fold()
        return following

    def edge(self, *, closing: Window | None = None, opening: Window | None = None) -> None:
        """Read the counters now, and reset them where a window begins; `fold` makes peaks of the readings."""
        with self._lock:
            if closing is None and not self.in_use:
                self.install()
            edge = _Edge({}, {}, closing, opening)
            # First, so that what was read is not lost with what is reset, whatever comes between.
            self._unfolded.append(edge)
            try:
                self._read_at(edge)
            except BaseException:
                with interrupts_deferred():
                    self._read_at(edge)
                raise
            # Now, not when it is folded: by then the window may have met its other edge.
            for window in (closing, opening):
                if window is not None:
                    window.readings = edge.before

    def _read_at(self, edge: _Edge) -> None:
        """Read the counters at an edge as far as that was not done, and reset them where a window begins."""
        if not edge.before:
            edge.before = self._readings()
        in_use = False
        for device, stats in edge.before.items():
            if _in_use(stats):
                in_use = True
                if edge.opening is not None and device not in edge.after:
                    self.allocator.reset_peak(device)
                    edge.after[device] = _counted(self._stats(device))
        self.in_use = in_use

    def ends(self, window: Window) -> Readings:
        """Read the counters where a window ends, and return the readings; an interrupt leaves no half of it.

        As nothing is reset, a reading that did not come to its end is as if there had been none.
        """
        with self._lock:
            edge = _Edge(self._readings(), {}, window, None)
            self._unfolded.append(edge)
        return edge.before

    def fold(self) -> None:
        """Make peaks of what edges have read."""
        with self._lock:
            while self._unfolded:
                edge = self._unfolded.popleft()
                try:
                    self._fold(edge)
                except BaseException:
                    # What the user reads is kept all the same, and no peak is called exact.
                    self._flaw()
                    self._remember(edge)
                    raise

    def so_far(self) -> dict[Window, Peaks]:
        """Return the peaks of every open window up to now, without touching a counter."""
        with self._lock:
            self._read()
            return {
                window: self._named(window, self._windows.since(window)) for window in self._windows
            }

    def look(self) -> tuple[dict[Window, Peaks], Instant]:
        """Return `so_far` of the windows whose peaks have changed since the last look, and what was read."""
        with self._lock:
            readings = self._read()
            highs = {window: self._windows.since(window) for window in self._windows}
            news = {
                window: self._named(window, own)
                for window, own in highs.items()
                if window.is_news(own)
            }
        return news, Instant(self.allocator, readings)

    def drop(self, windows: Iterable[Window]) -> None:
        """Drop windows whose peaks are not wanted any more."""
        with self._lock:
            for window in windows:
                self._windows.drop(window)

    def drop_all(self) -> None:
        """Drop the windows of all sessions; the user's own peaks are kept."""
        with self._lock:
            try:
                self.fold()
            finally:
                self._unfolded.clear()
                if any(window.lasts for window in self._windows):
                    self.drop([window for window in self._windows if not window.lasts])
                else:
                    self._windows = Highs()

    def forget_windows(self) -> None:
        """Drop all windows, and make a new lock: for a forked child."""
        self._lock = threading.RLock()
        self._windows = Highs()
        self._unfolded.clear()

    def _read(self) -> Readings:
        self.fold()
        readings = self._readings()
        for device, stats in readings.items():
            if _in_use(stats):
                self._note(device, stats)
        return readings

    def _fold(self, edge: _Edge) -> None:
        closing, opening = edge.closing, edge.opening
        if opening is not None:
            self._remember(edge)
        peaks: list[float] = []
        current: list[float] = []
        certified = True
        for device, before in edge.before.items():
            if not _in_use(before):
                peaks += _NONE
                current += _NONE
                continue
            pools = _pools(before)
            peaks += [pool["peak"] for pool in pools]
            if opening is not None:
                # Both are there but for a fault in between.
                certified &= _counted(before) == edge.after.get(device)
                current += [pool["current"] for pool in pools]
        self._windows.note(peaks)
        if not certified:
            self._flaw()
        if closing is not None and closing in self._windows:
            # The counters are integers.
            closing.highs = list(map(float, self._windows.close(closing)))
            closing.keys = self._keys_of(closing.highs)
        if opening is not None:
            opening.flawed = not certified
            self._windows.open(opening, current)

    def _remember(self, edge: _Edge) -> None:
        for device, before in edge.before.items():
            if _in_use(before):
                shadow = self._shadow.get(device)
                if shadow is None:
                    shadow = self._shadow[device] = Shadow()
                shadow.remember(before)

    def _note(self, device: int, stats: Stats) -> None:
        self._windows.note([*_NONE * device, *(pool["peak"] for pool in _pools(stats))])

    def _flaw(self) -> None:
        for window in self._windows:
            window.flawed = True

    def _keys_of(self, highs: Sequence[float]) -> Sequence[str]:
        if len(highs) > len(self._keys):
            devices = map(self._key, range(len(highs) // len(STATISTICS)))
            self._keys = tuple(f"{key}/{metric}" for key in devices for metric in STATISTICS)
        return self._keys

    def _named(self, window: Window, highs: Sequence[float]) -> Peaks:
        return _named(window, self._keys_of(highs), highs)

    def _bounds(self, window: Window) -> Peaks:
        seen = self._all_seen_by_user()
        window.flawed, window.keys, window.highs = True, tuple(seen), []
        for key, (now, peak) in seen.items():
            now_at_open, peak_at_open = window.at_open.get(key, (0.0, 0.0))
            # A counter that has risen is the window's own, unless the user has reset it meanwhile. That
            # cannot be known, so it stays a bound.
            window.highs.append(peak if peak > peak_at_open else max(now, now_at_open))
        return window.peaks

    def _all_seen_by_user(self) -> dict[str, tuple[float, float]]:
        seen = {
            self._key(device): self._seen_by_user(device) for device in self.allocator.devices()
        }
        return {
            f"{key}/{metric}": (_statistic(stats, name, "current"), _statistic(stats, name, "peak"))
            for key, stats in seen.items()
            for metric, name in STATISTICS.items()
        }

    def _key(self, device: int) -> str:
        return f"{self.allocator.device_type}:{device}"

    def _readings(self) -> dict[int, Stats]:
        # Without a function for each device: this is done at every edge, with cold caches.
        readings: dict[int, Stats] = {}
        for device in self.allocator.devices():
            try:
                readings[device] = self.allocator.stats(device)
            except Exception:  # noqa: BLE001  (as in `_stats`)
                readings[device] = {}
        return readings

    def _stats(self, device: int) -> Stats:
        try:
            return self.allocator.stats(device)
        except Exception:  # noqa: BLE001  (torch.cuda.CUDAPluggableAllocator keeps none and raises)
            return {}

    def _seen_by_user(self, device: int) -> Stats:
        return self._user_reads(self._stats, device)

    def _user_reads(self, raw: Callable[[int], Stats], device: int) -> Stats:
        with self._lock:
            stats = raw(device)
            self._show(device, stats)
            return stats

    def _user_resets(self, raw: Callable[[int], None], device: int) -> None:
        with self._lock:
            before = self._before_reset(device)
            raw(device)
            self._after_reset(device, before)

    @entry()
    def _show(self, device: int, stats: Stats) -> None:
        self.fold()
        shadow = self._shadow.get(device)
        if shadow is not None and stats:
            shadow.show(stats)

    @entry()
    def _before_reset(self, device: int) -> Stats | None:
        self.fold()
        open_here = self._windows and device in self.allocator.devices()
        return self.allocator.stats(device) if open_here else None

    def _has_been_reset(self, device: int, _before: Stats | None) -> None:
        self._shadow.pop(device, None)
        self._flaw()

    @entry(undo=_has_been_reset)
    def _after_reset(self, device: int, before: Stats | None) -> None:
        self._shadow.pop(device, None)
        if before is not None:
            self._note(device, before)
            if _counted(before) != _counted(self.allocator.stats(device)):
                self._flaw()


def _named(window: Window, keys: Sequence[str], highs: Sequence[float]) -> Peaks:
    certainty: Certainty = "at least" if window.flawed else "exact"
    known = zip(keys, highs, strict=False)
    return {key: Peak(float(high), certainty) for key, high in known if high != NOTHING}


def _counted(stats: Stats) -> float:
    """Return how many allocations were ever made on a device; NaN, which equals nothing, if that is not kept.

    If it is the same before a counter is reset and after that, nothing was allocated meanwhile, by whatever
    thread. It stays 0 under cudaMallocAsync, which then has no such certificate.
    """
    try:
        if counted := stats["allocation"]["all"]["allocated"]:
            return float(counted)
    except (KeyError, TypeError):
        pass
    return NOT_AVAILABLE if _in_use(stats) else 0.0


def _in_use(stats: Stats) -> bool:
    try:
        return bool(stats["reserved_bytes"]["all"]["peak"] > 0)
    except (KeyError, TypeError):
        return False


def _pools(stats: Stats) -> list[Mapping[str, float]]:
    """Return the current and the peak value of each of `STATISTICS`; 0 for those that there are not."""
    try:
        return [stats[name]["all"] for name in _NAMES]
    except (KeyError, TypeError):
        return [
            {which: _statistic(stats, name, which) for which in ("current", "peak")}
            for name in _NAMES
        ]


def _statistic(stats: Stats, name: str, which: str) -> float:
    try:
        return float(stats[name]["all"][which])
    except (KeyError, TypeError):
        return 0.0
