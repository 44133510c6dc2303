"""Devices whose memory a script moves, sampled into a session as a poller would."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from hfmem_widget.features.judgement import judge
from hfmem_widget.session import (
    HELD,
    Certainty,
    Device,
    Peak,
    Recorder,
    Sample,
    Series,
    Session,
    Span,
    SpanKind,
)
from hfmem_widget.testing.fakes import FakeClock
from hfmem_widget.text import GIB, MIB

STARTED_AT: Final = 1_763_683_200.0
H200_TOTAL: Final = 143_771 * MIB
HOST_TOTAL: Final = 15.6 * GIB

_GPU_SERIES: Final = (
    ("allocated",),
    ("reserved",),
    ("peak", "allocator peak"),
    ("device_used",),
    ("driver_reserved", "driver's reserve"),
    ("process", "this process"),
    ("others",),
    ("context",),
)
_HOST_SERIES: Final = (("allocated",), ("reserved",), ("peak", "resident peak"), ("device_used",))
_PARTS: Final = (*HELD, "unattributed")
_CONTEXT: Final = 620 * MIB
_DRIVER: Final = 615 * MIB
_OTHERS: Final = 0.03 * GIB
_MOST_RESERVED: Final = H200_TOTAL - _DRIVER - _CONTEXT - _OTHERS


_NO_PARTS: Final[Mapping[str, float]] = {}


class Stage:
    """Devices whose memory a script moves, sampled into a session as a poller would."""

    def __init__(self, label: str, *, gpus: int, interval: float = 0.1) -> None:
        self.recorder = Recorder(label, started_at=STARTED_AT)
        self.session = self.recorder.session
        self.session.polling.interval = self.session.polling.current_interval = interval
        self.clock = FakeClock()
        self.certainty: Certainty = "exact"
        self._gpus = tuple(f"cuda:{index}" for index in range(gpus))
        self._allocated = dict.fromkeys((*self._gpus, "cpu"), 0.0)
        self._reserved = dict.fromkeys(self._gpus, 0.0)
        self._elsewhere = dict.fromkeys(self._gpus, _OTHERS)
        self._held: dict[str, dict[str, float]] = {}
        self._peaks: dict[int, dict[str, float]] = {}
        self._due = interval
        self._allocated["cpu"] = 0.21 * GIB
        devices = [Device(key, "NVIDIA H200", f"GPU-{key}", H200_TOTAL) for key in self._gpus]
        series = [Series(key, *metric) for key in self._gpus for metric in _GPU_SERIES]
        self.recorder.adopt(
            (*devices, Device("cpu", "AMD EPYC 9454", "", HOST_TOTAL)),
            (*series, *(Series("cpu", *metric) for metric in _HOST_SERIES)),
        )

    @contextmanager
    def span(self, kind: SpanKind, label: str, outcome: str = "done") -> Iterator[Span]:
        """Keep a span open for a ``with`` block."""
        if kind == "step":
            self._explain_remainder()
        span = self.recorder.open_span(kind, label, self.sample())
        self._peaks[span.id] = {}
        self._raise_peaks()
        yield span
        after = self.sample()
        known = self._peaks.pop(span.id)
        peaks = {key: Peak(value, self.certainty) for key, value in known.items()}
        self.recorder.close_span(span.id, after, peaks, outcome)
        if kind == "step":
            for held in self._held.values():
                held["unattributed"] = math.nan

    def hold(
        self, target: Mapping[str, float], seconds: float, parts: Mapping[str, float] = _NO_PARTS
    ) -> None:
        """Move each device, and some of its parts, to so many bytes within some time; sample as it goes."""
        unknown = [key for key in target if key not in self._held]
        self.find(unknown, dict.fromkeys(parts, 0.0))
        start, began = dict(self._allocated), self.clock.now
        before = {key: dict(held) for key, held in self._held.items()}
        stop = began + seconds
        while self._due < stop:
            share = (self._due - began) / seconds
            self._move(start, target, share)
            self._move_parts(before, target, parts, share)
            self.clock.now = self._due
            self.sample()
        self.clock.now = stop
        self._move(start, target, 1.0)
        self._move_parts(before, target, parts, 1.0)

    def hold_elsewhere(self, target: Mapping[str, float], seconds: float) -> None:
        """Have other processes hold so many bytes of each device from now on, and sample for some time."""
        self._elsewhere.update(target)
        self.hold({}, seconds)

    def find(self, keys: Iterable[str], parts: Mapping[str, float]) -> None:
        """Know so many bytes of some parts from now on, on each device."""
        for key in keys if parts else ():
            if key not in self._held:
                self._held[key] = dict.fromkeys(_PARTS, 0.0) | {"unattributed": math.nan}
                more = [Series(key, metric) for metric in _PARTS]
                self.recorder.adopt(self.session.devices, (*self.session.series, *more))
            self._held[key].update(parts)

    def sleep_unsampled(self, seconds: float) -> None:
        """Let time pass without samples, as when one call held the interpreter."""
        began = self.clock.now
        self.clock.advance(seconds)
        self.session.timeline.add_gap(began, self.clock.now)
        polling = self.session.polling
        polling.missed += int(seconds / polling.interval)
        polling.longest_gap = max(polling.longest_gap, seconds)
        self._due = self.clock.now

    def sample(self) -> Sample:
        """Take a sample now."""
        values: list[float] = []
        for key in self._gpus:
            ours = self._reserved[key] + _CONTEXT
            peak = max(
                (known.get(f"{key}/allocated", 0.0) for known in self._peaks.values()), default=0.0
            )
            values += (self._allocated[key], self._reserved[key], peak)
            others = self._elsewhere[key]
            values += (ours + others, _DRIVER, ours, others, _CONTEXT)
        heap = self._allocated["cpu"]
        values += (heap, heap + 0.52 * GIB, heap + 0.6 * GIB, 9.4 * GIB)
        for held in self._held.values():
            values += (held[metric] for metric in _PARTS)
        if self.clock.now >= self._due:
            self._due = self.clock.now + self.session.polling.interval
            self.session.polling.ticks += 1
        return self.recorder.append(Sample(self.clock.now, tuple(values)))

    def finish(self) -> Session:
        """End the session."""
        self.recorder.stop(STARTED_AT + self.clock.now)
        return judge(self.session)

    def _move(self, start: Mapping[str, float], target: Mapping[str, float], share: float) -> None:
        for key, goal in target.items():
            self._allocated[key] = start[key] + (goal - start[key]) * share
        self._raise_peaks()

    def _move_parts(
        self,
        start: Mapping[str, Mapping[str, float]],
        keys: Iterable[str],
        goals: Mapping[str, float],
        share: float,
    ) -> None:
        for key in keys if goals else ():
            for part, goal in goals.items():
                began = start[key][part]
                self._held[key][part] = began + (goal - began) * share

    def _explain_remainder(self) -> None:
        for key, held in self._held.items():
            known = sum(held[metric] for metric in HELD)
            held["unattributed"] = max(0.0, self._allocated[key] - known)

    def _raise_peaks(self) -> None:
        for key in self._gpus:
            self._reserved[key] = max(
                self._reserved[key], min(1.06 * self._allocated[key], _MOST_RESERVED)
            )
            for known in self._peaks.values():
                for metric, now in (("allocated", self._allocated), ("reserved", self._reserved)):
                    name = f"{key}/{metric}"
                    known[name] = max(known.get(name, 0.0), now[key])
