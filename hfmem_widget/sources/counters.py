"""The series of readings at edges: a caching allocator's counters, and the bytes of tensors."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from hfmem_widget.session import HELD, Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.series import USUAL
from hfmem_widget.sources.allocator import Allocator, Instant, Reading, reading_of
from hfmem_widget.sources.source import Source
from hfmem_widget.text import plain

_METRICS: Final = {
    "allocated": "allocated",
    "reserved": "reserved",
    "peak": "allocator peak",
    "active": "active",
    "requested": "requested",
    "inactive_split": "inactive, split",
    "alloc_retries": "allocation retries (count)",
    "ooms": "out-of-memory errors (count)",
    "private_pools": "reserved in private pools",
}
"""The first fields of a `Reading`, as metrics with their labels."""

_UNOPENED = (0.0,) * len(_METRICS)
"""The values of a device that this process has not opened."""

_ALLOCATED, _RESERVED, _REQUESTED, _INACTIVE_SPLIT = 0, 1, 4, 5


class AllocatorSource(Source):
    """The counters of every initialised device; other sources read the types of device in `others`."""

    name = "torch"

    def __init__(self, allocator: Allocator, others: Collection[str] = ()) -> None:
        super().__init__()
        self.allocator = allocator
        self._others = others
        self._other_accelerator: str | None = None

    def uuids(self) -> tuple[str, ...] | None:
        """Return the devices' UUIDs in the allocator's order; None until the devices have been read."""
        return tuple(device.uuid for device in self.devices) or None

    def shares(self, uuid: str) -> bool | None:
        """Return whether a device shares the machine's memory; None until the devices have been read."""
        if not self.devices:
            return None
        return any(device.shared for device in self.devices if device.uuid == uuid)

    def reserved(self, uuid: str) -> float:
        """Return the bytes that are reserved on a device now; NaN if unknown, 0 on an unknown device."""
        for index in self.allocator.opened():
            if index < len(self.devices) and self.devices[index].uuid == uuid:
                return self._read_device(index)[_RESERVED]
        return 0.0

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes and counts; `now` is not needed."""
        try:
            indices = self.allocator.devices()
            if len(indices) > len(self.devices):
                self._describe(indices)
            elif not indices and self._other_accelerator is None:
                self._look_for_other_accelerator()
            opened = self.allocator.opened()
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._note(f"GPU memory cannot be read from torch ({plain(error)}); update torch.")
            indices, opened = range(0), ()
        rows = [self._read_device(index) if index in opened else _UNOPENED for index in indices]
        return self._padded([value for row in rows for value in row])

    def at(self, instant: Instant) -> Sequence[float] | None:
        """Return the values of this allocator's readings at an instant; None if there are none."""
        readings = instant.readings
        if instant.allocator is not self.allocator or not readings:
            return None
        # Before the devices are described, the number of values shows that there are devices to describe.
        values: list[float] = []
        for index in range(len(self.devices) or max(readings) + 1):
            values += values_of(readings[index]) if index in readings else _UNOPENED
        return values

    def _read_device(self, index: int) -> Sequence[float]:
        try:
            return values_of(reading_of(self.allocator.stats(index)))
        except Exception as error:  # noqa: BLE001  (pluggable allocators raise what they like)
            self._note(
                f"The allocator of {self.allocator.key(index)} reports no figures ({plain(error)}); other "
                "devices are not affected. PyTorch's own CUDA allocator reports them."
            )
            return (NOT_AVAILABLE,) * len(_METRICS)

    def _describe(self, indices: range) -> None:
        devices = tuple(map(self._device, indices))
        # Assigned whole, series first: the poller and the user's thread may come here at the same time.
        self.series = tuple(
            Series(device.key, metric, label)
            for device in devices
            for metric, label in _METRICS.items()
        )
        self.devices = devices

    def _device(self, index: int) -> Device:
        try:
            return self.allocator.device(index)
        except Exception as error:  # noqa: BLE001  (a device off the bus must not hide others)
            self._note(f"torch cannot describe {self.allocator.key(index)} ({plain(error)}).")
            return Device(self.allocator.key(index), "")

    def _look_for_other_accelerator(self) -> None:
        self._other_accelerator = other = self.allocator.other_accelerator()
        if other is not None and not self.allocator.supported():
            self.due = math.inf  # this torch is not built for these devices
        if other and other not in self._others:
            self._note(
                f"This torch is built for {plain(other)}, whose memory is not supported yet: "
                "showing this process's own memory. For GPUs, install a torch built for CUDA."
            )


def values_of(reading: Reading) -> Sequence[float]:
    """Return the values of one device's series; NaN where a value is not a number."""
    try:
        values = [*map(float, reading[: len(_METRICS)])]
    except (TypeError, ValueError):
        return (NOT_AVAILABLE,) * len(_METRICS)
    if values[_REQUESTED] == 0.0 < values[_ALLOCATED]:
        # backend:cudaMallocAsync keeps neither of the two and reports 0.
        values[_REQUESTED] = values[_INACTIVE_SPLIT] = NOT_AVAILABLE
    if min(values) >= 0.0 and max(values) < math.inf:
        return values
    return [value if 0.0 <= value < math.inf else NOT_AVAILABLE for value in values]


class TensorSource(Source):
    """The bytes of weights, buffers, gradients and optimizer states, as `monitor.attribution` counts them."""

    name = "tensors"

    def __init__(self) -> None:
        super().__init__()
        self.latest: Sequence[float] = ()
        """The values of `series`; a new sequence at each count, so that those of an instant can be kept."""
        self.counted: Mapping[str, Mapping[str, float]] = {}
        """The newest count, by device key."""
        self.before_reading: Callable[[], None] = lambda: None
        """Removes freed tensors from the count; called on any thread."""

    def count(self, held: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the count; a known device that is missing in it has no such tensors now."""
        if held == self.counted:
            return
        described = {(series.device, series.metric) for series in self.series}
        self.counted = {**{key: {} for key in self.counted}, **held}
        # The series come first: a reader in between finds too few values, never too many.
        self.series += tuple(
            Series(key, metric)
            for key, parts in held.items()
            for metric in (*HELD, "unattributed")
            if (metric not in HELD or metric in USUAL or metric in parts)
            and (key, metric) not in described
        )
        # A session computes the unattributed bytes: it knows when its steps began.
        self.latest = tuple(
            self.counted[series.device].get(series.metric, 0.0)
            if series.metric in HELD
            else NOT_AVAILABLE
            for series in self.series
        )

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes; `now` is not needed."""
        self.before_reading()
        return self._padded(self.latest)

    def at(self, instant: Instant) -> Sequence[float] | None:
        """Return the count of an instant."""
        return instant.held
