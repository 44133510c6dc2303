"""The memory in use on a device, and by which processes, where NVML does not report it."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Allocator, reading_of
from hfmem_widget.sources.procfs import Pool, ProcessIds, process_ids
from hfmem_widget.sources.source import SLOWLY, Looks, Source
from hfmem_widget.text import plain

SHARES: Final = (
    ("process", "this process"),
    ("others",),
    ("context",),
    ("utilization", "GPU busy (%)"),
)


class DeviceMemorySource(Source):
    """Memory in use on AMD's and Intel's GPUs, as their driver reports it to PyTorch.

    For AMD's also each process' share and the utilisation, if AMD SMI is installed. A device is read once
    this process uses it: reading it before would open it. `pool` reads the memory in use of GPUs that share
    the machine's memory, unless `nvml` has devices.
    """

    name = "driver"
    blocks = True

    def __init__(
        self,
        allocators: Sequence[Allocator],
        *,
        pids: Callable[[], ProcessIds] = process_ids,
        pool: Callable[[], Pool] | None = None,
        nvml: Source | None = None,
    ) -> None:
        super().__init__()
        self._allocators = allocators
        self._allocator: Allocator | None = None
        self._pids = pids
        self._read_pool, self._nvml = pool, nvml
        self._pool: Pool | None = None
        self._pooled: Collection[int] = ()
        self._looks: list[Looks] = []
        self._shares: list[list[float]] = []
        self._busy_due = -math.inf

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes, and in percent."""
        if self._allocator is None:  # one torch has one accelerator
            self._allocator = next((each for each in self._allocators if each.devices()), None)
        if (allocator := self._allocator) is None:
            return ()
        try:
            memory_info = self._free_and_total(allocator)
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._note(f"The driver did not tell what is in use on the devices ({plain(error)}).")
            return self._padded(())
        if not self.series:
            if not any(memory_info):  # as on NVIDIA's, which NVML reads
                self.due = now + SLOWLY
                return ()
            keys = [*map(allocator.key, range(len(memory_info)))]
            self.series = tuple(Series(key, "device_used") for key in keys)
            if self._pool is not None:
                total = self._pool.total
                self.devices = tuple(Device(keys[at], "", total=total) for at in self._pooled)
            if self._pool is not None or self._has_shares(allocator):
                self.series += tuple(Series(key, *share) for key in keys for share in SHARES)
                self._looks = [Looks() for _ in keys]
                self._shares = [[NOT_AVAILABLE] * len(SHARES) for _ in keys]
        used = [NOT_AVAILABLE if pair is None else pair[1] - pair[0] for pair in memory_info]
        self._look(allocator, used, now)
        return self._padded([*used, *(value for shares in self._shares for value in shares)])

    def _free_and_total(self, allocator: Allocator) -> list[tuple[float, float] | None]:
        indices, pooled = allocator.devices(), {}
        if not self.series and not (self._nvml and self._nvml.devices):
            self._pooled = [at for at in indices if allocator.device(at).shared]
        if self._pooled and self._read_pool is not None:
            self._pool = pool = self._read_pool()
            pooled = dict.fromkeys(self._pooled, (pool.total - pool.in_use, pool.total))
        return [pooled.get(at) or allocator.free_and_total(at) for at in indices]

    def _has_shares(self, allocator: Allocator) -> bool:
        try:
            return any(allocator.processes(at) is not None for at in allocator.devices())
        except Exception as error:  # noqa: BLE001  (AMD SMI may raise anything)
            self._give_up_shares(error)
            return False

    def _look(self, allocator: Allocator, used: Sequence[float], now: float) -> None:
        # Devices that this process does not use yet are left out.
        opened = [at for at in range(len(self._looks)) if not math.isnan(used[at])]
        try:
            for at in opened:
                if self._looks[at].is_due(now, used[at]):
                    started = time.thread_time()
                    self._shares[at][:3] = self._shares_of(allocator, at, used[at])
                    self._looks[at].took(now, used[at], time.thread_time() - started)
        except Exception as error:  # noqa: BLE001
            self._give_up_shares(error)
        if now >= self._busy_due and self._looks:
            self._busy_due = now + SLOWLY
            try:
                for at in opened:
                    self._shares[at][3] = allocator.busy(at)
            except Exception:  # noqa: BLE001  (virtual machines do not report it, and it is an extra)
                self._busy_due = math.inf

    def _shares_of(self, allocator: Allocator, at: int, used: float) -> list[float]:
        try:
            reserved = reading_of(allocator.stats(at)).reserved
        except Exception:  # noqa: BLE001  (pluggable allocators raise what they like)
            reserved = NOT_AVAILABLE
        if at in self._pooled and (pool := self._pool) is not None:
            process = pool.own + (0.0 if pool.is_all else reserved)
            return [process, max(used - process, 0.0), NOT_AVAILABLE]
        process = self._pids().bytes_in(allocator.processes(at) or {})
        return [process, max(used - process, 0.0), max(process - reserved, 0.0)]

    def _give_up_shares(self, error: Exception) -> None:
        self._looks, self._shares = [], []
        self._note(
            f"AMD SMI did not tell whose memory is in use on the devices ({plain(error)}); "
            "the sum for all processes is not affected."
        )
