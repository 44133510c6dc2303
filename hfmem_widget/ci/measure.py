"""The memory of a test, read where it begins and where it ends: no poller, no thread, no session."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.peaks import PeakLedger, Peaks, Readings, Window
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.session import Certainty, Peak
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.host import HostSource
from hfmem_widget.text import plain

HOST = "cpu"
"""The device of this process' own memory, as far as it is private."""

__tracebackhide__ = True  # pytest leaves these frames out of a test's traceback


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """What a test did to one device, in bytes; in its report, properties with ``hfmem_`` before each name."""

    device: str  # its key
    peak: float  # the highest allocated, above what was allocated at the start
    left: float  # what is allocated at the end, above the same
    reserved: float  # the highest reserved, with what was reserved at the start
    certainty: Certainty = "exact"  # of the peak; the host's is read at both ends alone
    environment: str = ""  # what peaks depend on; empty of the host

    def properties(self) -> list[tuple[str, object]]:
        """Return names and values; what is not known has none."""
        return [
            (f"hfmem_{name}", round(value) if isinstance(value, float) else value)
            for name, value in asdict(self).items()
            if value != "" and not (isinstance(value, float) and math.isnan(value))
        ]

    @classmethod
    def read(cls, properties: Sequence[tuple[str, Any]]) -> DeviceCost | None:
        """Return what a report's properties say; None if the test was not measured."""
        named = {name.removeprefix("hfmem_"): value for name, value in properties}
        if not {"device", "certainty"} <= named.keys():
            return None
        peak, left, reserved = (
            float(named.get(name, math.nan)) for name in ("peak", "left", "reserved")
        )
        where = named.get("environment", "")
        return cls(named["device"], peak, left, reserved, named["certainty"], where)


@dataclass(frozen=True, slots=True)
class _Reading:
    gpus: Mapping[str, float]
    private: float
    resident: float


class Memory:
    """The GPU memory of a test, or of a part of it; the fixture `memory`.

    All figures are bytes. Allocated memory is counted above what was allocated at the start. Where no GPU is
    used, the figures are of its private memory, and peaks are lower bounds: it has no peak counter.
    """

    def __init__(self, host: HostSource) -> None:
        self._host = host
        self._ledger = shared_monitor().ledger
        self._window: Window | None = None
        self._peaks: Peaks = {}
        self._start = self._end = _Reading({}, math.nan, math.nan)

    def __repr__(self) -> str:
        figures = busiest(self.figures())
        return (
            f"<Memory {figures.device}: peak {figures.peak:,.0f}, left {figures.left:,.0f} bytes>"
        )

    def begin(self) -> None:
        """Begin, or begin anew."""
        self.drop()
        self._ledger = shared_monitor().ledger  # of this process: a test may run in a forked child
        window = self._ledger.open(lasts=True)
        self._window, self._peaks = window, {}
        self._start = self._read(window.take_readings())

    def end(self) -> None:
        """End; ending again does nothing."""
        if self._window is not None:
            window, self._window = self._window, None
            self._peaks = self._ledger.close(window)
            self._end = self._read(window.take_readings() or self._ledger.read())

    def drop(self) -> None:
        """End without figures."""
        if self._window is not None:
            window, self._window = self._window, None
            self._ledger.drop([window])

    def peak(self, device: str = "") -> float:
        """Return the highest allocated so far above the start; by default on the GPU with most of it."""
        return self._of(device).peak

    def left(self, device: str = "") -> float:
        """Return what is allocated now above the start; negative if more was freed."""
        return self._of(device).left

    def reserved(self, device: str = "") -> float:
        """Return the highest reserved so far, with what was reserved at the start."""
        return self._of(device).reserved

    def certainty(self, device: str = "") -> Certainty:
        """Return how the peak is known: "exact", or "at least" that much."""
        return self._of(device).certainty

    @contextmanager
    def span(self) -> Iterator[Memory]:
        """Measure a ``with`` block of the test separately."""
        part = Memory(self._host)
        part.begin()
        try:
            yield part
        finally:
            part.end()

    def figures(self) -> tuple[DeviceCost, ...]:
        """Return the figures of each GPU that can be used, and of the host at the end."""
        if self._window is not None:
            peaks = self._ledger.so_far().get(self._window, {})
            end = self._read(self._ledger.read())
        else:
            peaks, end = self._peaks, self._end
        gpus = (self._gpu(device, peaks, end.gpus[device]) for device in end.gpus)
        grown, resident = end.private - self._start.private, max(self._start.resident, end.resident)
        return (*gpus, DeviceCost(HOST, max(0.0, grown), grown, resident, "at least"))

    def _gpu(self, device: str, peaks: Peaks, after: float) -> DeviceCost:
        before = self._start.gpus.get(device, 0.0)
        peak, reserved = peaks.get(f"{device}/allocated"), peaks.get(f"{device}/reserved")
        if peak is None:
            # Nothing was ever allocated there, or a fault of ours has ended the window.
            highest = max(before, after)
            peak = Peak(highest, "at least" if highest else "exact")
        total = NOT_AVAILABLE if reserved is None else reserved.value
        return DeviceCost(device, peak.value - before, after - before, total, peak.certainty)

    def _of(self, device: str) -> DeviceCost:
        figures = self.figures()
        if not device:
            return busiest(figures)
        cost = next((each for each in figures if each.device == device), None)
        if cost is None:
            here = ", ".join(each.device for each in figures)
            raise OptionError(f"there is no device {plain(device)!r} here, only {here}")
        return cost

    def _read(self, readings: Readings) -> _Reading:
        allocator = self._ledger.allocator
        metrics = (each.metric for each in self._host.series)
        host = dict(zip(metrics, self._host.read(time.monotonic()), strict=False))
        gpus = dict.fromkeys(set(allocator.devices()).difference(allocator.opened()), 0.0)
        gpus |= {index: each.allocated for index, each in readings.items()}
        kind = allocator.device_type
        return _Reading(
            {f"{kind}:{at}": size for at, size in sorted(gpus.items()) if not math.isnan(size)},
            host.get("allocated", math.nan),
            host.get("reserved", math.nan),
        )


def busiest(figures: tuple[DeviceCost, ...]) -> DeviceCost:
    """Return the figures of the GPU with the highest peak; those of the host where there is no GPU."""
    return max(figures[:-1] or figures, key=lambda each: each.peak)


def environment(ledger: PeakLedger, device: str) -> str:
    """Return what peaks depend on: the GPU's name, and torch's version without its last part."""
    name = plain(ledger.allocator.device(int(device.partition(":")[2])).name)
    version = str(getattr(sys.modules.get("torch"), "__version__", "unknown"))
    return f"{name}, torch {plain('.'.join(version.split('.')[:2]))}"
