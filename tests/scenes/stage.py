"""Devices whose memory follows a script, sampled into a session like by a poller."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from hfmem_widget.features import judge
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
from hfmem_widget.session.series import USUAL
from hfmem_widget.text import GIB, MIB

NO_MONITOR: Final[Any] = None  # most companions ask nothing of it

STARTED_AT: Final = 1_763_683_200.0
H200_TOTAL: Final = 143_771 * MIB
HOST_TOTAL: Final = 15.6 * GIB

_GPU_SERIES: Final = {
    "allocated": "",
    "reserved": "",
    "peak": "allocator peak",
    "device_used": "",
    "driver_reserved": "driver's reserve",
    "process": "this process",
    "others": "",
    "context": "",
}
_HOST_SERIES: Final = {"allocated": "", "reserved": "", "peak": "resident peak", "device_used": ""}
_PARTS: Final = (*USUAL, "unattributed")
_CONTEXT: Final = 620 * MIB
_DRIVER: Final = 615 * MIB
_OTHERS: Final = 0.03 * GIB
_MOST_RESERVED: Final = H200_TOTAL - _DRIVER - _CONTEXT - _OTHERS


_NO_PARTS: Final[Mapping[str, float]] = {}


class FakeClock:
    """A clock that advances only on request."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


class Stage:
    """Devices whose memory follows a script, sampled into a session like by a poller."""

    def __init__(self, label: str, *, gpus: int, interval: float = 0.1) -> None:
        self.recorder = Recorder(label, started_at=STARTED_AT)
        self.session = self.recorder.session
        self.session.polling.interval = self.session.polling.current_interval = interval
        self.clock = FakeClock()
        self.certainty: Certainty = "exact"
        self._gpus = tuple(f"cuda:{index}" for index in range(gpus))
        self._now = {"cpu/allocated": 0.21 * GIB, "cpu/device_used": 9.4 * GIB}
        for gpu in self._gpus:
            known = {"driver_reserved": _DRIVER, "others": _OTHERS, "context": _CONTEXT}
            self._set(gpu, {"allocated": 0.0, "reserved": 0.0, **known})
        self._peaks: dict[int, dict[str, float]] = {}
        self._due = interval
        devices = [Device(gpu, "NVIDIA H200", f"GPU-{gpu}", H200_TOTAL) for gpu in self._gpus]
        series = [Series(gpu, *metric) for gpu in self._gpus for metric in _GPU_SERIES.items()]
        self.recorder.adopt(
            (*devices, Device("cpu", "AMD EPYC 9454", "", HOST_TOTAL)),
            (*series, *(Series("cpu", *metric) for metric in _HOST_SERIES.items())),
        )

    @contextmanager
    def span(self, kind: SpanKind, label: str, outcome: str = "done") -> Iterator[Span]:
        """Keep a span open for a ``with`` block; unattributed memory is known only within a step."""
        if kind == "step":
            for key in self._with_parts():
                known = sum(self._now.get(f"{key}/{part}", 0.0) for part in HELD)
                self._set(key, {"unattributed": max(0.0, self._now[f"{key}/allocated"] - known)})
        span = self.recorder.open_span(kind, label, self.sample())
        self._peaks[span.id] = {}
        self._raise_peaks()
        yield span
        after = self.sample()
        known_peaks = self._peaks.pop(span.id)
        peaks = {key: Peak(value, self.certainty) for key, value in known_peaks.items()}
        self.recorder.close_span(span.id, after, peaks, outcome)
        if kind == "step":
            for key in self._with_parts():
                self._set(key, {"unattributed": math.nan})

    def hold(
        self, target: Mapping[str, float], seconds: float, parts: Mapping[str, float] = _NO_PARTS
    ) -> None:
        """Move each device, and some of its parts, to given bytes within some seconds; sample meanwhile."""
        known = self._with_parts()
        self.find([key for key in target if key not in known], dict.fromkeys(parts, 0.0))
        goals = {f"{key}/allocated": goal for key, goal in target.items()}
        goals |= {f"{key}/{part}": goal for key in target for part, goal in parts.items()}
        start, began = dict(self._now), self.clock.now
        while self._due < began + seconds:
            self._move(start, goals, (self._due - began) / seconds)
            self.clock.now = self._due
            self.sample()
        self._move(start, goals, 1.0)
        self.clock.now = began + seconds

    def hold_elsewhere(self, target: Mapping[str, float], seconds: float) -> None:
        """Let other processes hold some bytes of each device from now on, and sample for some time."""
        for key, size in target.items():
            self._set(key, {"others": size})
        self.hold({}, seconds)

    def hold_in_children(
        self, target: Mapping[str, float], seconds: float, processes: int = 1
    ) -> None:
        """Let child processes hold some bytes of each device from now on, and sample for some time."""
        if "cpu/gpu_children" not in self._now:
            more = [Series("cpu", "gpu_children"), *(Series(key, "children") for key in self._gpus)]
            self._now |= dict.fromkeys((series.key for series in more), 0.0)
            self.recorder.adopt(self.session.devices, (*self.session.series, *more))
            self.sample()
        self._set("cpu", {"gpu_children": processes})
        for key, size in target.items():
            foreign = self._now[f"{key}/others"] - self._now[f"{key}/children"]
            self._set(key, {"children": size})
            self.hold_elsewhere({key: foreign + size}, 0.0)
        self.hold({}, seconds)

    def find(self, keys: Iterable[str], parts: Mapping[str, float]) -> None:
        """Set the bytes of some parts on each device from now on."""
        for key in keys if parts else ():
            if key not in self._with_parts():
                self._set(key, dict.fromkeys(_PARTS, 0.0) | {"unattributed": math.nan})
                more = [Series(key, part) for part in _PARTS]
                self.recorder.adopt(self.session.devices, (*self.session.series, *more))
            self._set(key, parts)

    def sleep_unsampled(self, seconds: float) -> None:
        """Advance the time without samples, as if one call held the interpreter."""
        began = self.clock.now
        self.clock.advance(seconds)
        self.session.timeline.add_gap(began, self.clock.now)
        polling = self.session.polling
        polling.missed += int(seconds / polling.interval)
        polling.longest_gap = max(polling.longest_gap, seconds)
        self._due = self.clock.now

    def sample(self) -> Sample:
        for gpu in self._gpus:
            ours, key = self._now[f"{gpu}/reserved"] + _CONTEXT, f"{gpu}/allocated"
            peak = max((known.get(key, 0.0) for known in self._peaks.values()), default=0.0)
            used = ours + self._now[f"{gpu}/others"]
            self._set(gpu, {"peak": peak, "device_used": used, "process": ours})
        heap = self._now["cpu/allocated"]
        self._set("cpu", {"reserved": heap + 0.52 * GIB, "peak": heap + 0.6 * GIB})
        if self.clock.now >= self._due:
            self._due = self.clock.now + self.session.polling.interval
            self.session.polling.ticks += 1
        values = tuple(self._now[series.key] for series in self.session.series)
        return self.recorder.append(Sample(self.clock.now, values))

    def finish(self) -> Session:
        self.recorder.stop(STARTED_AT + self.clock.now)
        return judge(self.session)

    def _with_parts(self) -> list[str]:
        return [series.device for series in self.session.series if series.metric == _PARTS[0]]

    def _set(self, device: str, values: Mapping[str, float]) -> None:
        self._now |= {f"{device}/{metric}": value for metric, value in values.items()}

    def _move(self, start: Mapping[str, float], goals: Mapping[str, float], share: float) -> None:
        for key, goal in goals.items():
            self._now[key] = start[key] + (goal - start[key]) * share
        self._raise_peaks()

    def _raise_peaks(self) -> None:
        for gpu in self._gpus:
            allocated, reserved = f"{gpu}/allocated", f"{gpu}/reserved"
            wanted = min(1.06 * self._now[allocated], _MOST_RESERVED)
            self._now[reserved] = max(self._now[reserved], wanted)
            for peaks in self._peaks.values():
                for key in (allocated, reserved):
                    peaks[key] = max(peaks.get(key, 0.0), self._now[key])
