"""What is in use on a device, whoever uses it, where no library of its driver's is read."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.session import Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.source import BaseSource
from hfmem_widget.text import plain

LOOK_EVERY = 1.0
"""Seconds between two looks while no device tells."""


class DeviceMemorySource(BaseSource):
    """Memory in use on AMD's and Intel's GPUs, as their driver tells PyTorch.

    A device is read once this process uses it: to ask before that would open it.
    """

    name = "driver"
    blocks = True

    def __init__(self, allocators: Sequence[Allocator]) -> None:
        super().__init__()
        self._allocators = allocators
        self._allocator: Allocator | None = None

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes."""
        if self._allocator is None:  # one torch has one accelerator
            self._allocator = next((each for each in self._allocators if each.devices()), None)
        if (allocator := self._allocator) is None:
            return ()
        try:
            told = [allocator.free_and_total(index) for index in allocator.devices()]
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._note(f"The driver did not tell what is in use on the devices ({plain(error)}).")
            return self._padded(())
        if not self.series:
            if not any(told):  # as on NVIDIA's, which NVML reads
                self.due = now + LOOK_EVERY
                return ()
            kind = allocator.device_type
            self.series = tuple(Series(f"{kind}:{at}", "device_used") for at in range(len(told)))
        used = [NOT_AVAILABLE if pair is None else pair[1] - pair[0] for pair in told]
        return self._padded(used)
