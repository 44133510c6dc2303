"""A caching allocator without a device: by itself, as an `Allocator`, or behind a fake `torch`."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from hfmem_widget.session import Device
from hfmem_widget.sources.allocator import Allocator, RanOut, Stats

BYTES = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
COUNTS = ("allocation", "segment", "active", "inactive_split")
EVENTS = (
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
    "num_oom_rejections",
)  # fmt: skip
POOLS = ("all", "small_pool", "large_pool")

ROUND = 512
SMALL_SEGMENT = 2 << 20


class OutOfMemoryError(RuntimeError):
    """The stand-in for `torch.OutOfMemoryError`."""


def _stat() -> dict[str, int]:
    return {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


def _empty_stats() -> Stats:
    stats: Stats = {name: {pool: _stat() for pool in POOLS} for name in (*BYTES, *COUNTS)}
    stats.update(dict.fromkeys(EVENTS, 0))
    stats.update(
        {"oversize_allocations": _stat(), "oversize_segments": _stat(), "max_split_size": -1}
    )
    stats["reserved_bytes_by_private_pools"] = {}
    return stats


def _copied(stats: Stats) -> Stats:
    """Return a copy of nested counters; `copy.deepcopy` would be far slower, and this runs at every edge."""
    return {
        name: {
            pool: stat.copy() if isinstance(stat, dict) else stat for pool, stat in pools.items()
        }
        if isinstance(pools, dict)
        else pools
        for name, pools in stats.items()
    }


@dataclass
class FakeDevice:
    """One device's caching allocator: blocks of 512 bytes, segments that are kept when freed."""

    name: str = "NVIDIA Fake"
    uuid: str = "00000000-0000-0000-0000-000000000000"
    total: int = 80 << 30  # bytes; an allocation beyond it raises `OutOfMemoryError`
    stats: Stats = field(default_factory=_empty_stats)
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts_allocations: bool = True
    opened: bool = False
    integrated: bool = False  # a part of the processor

    def alloc(self, block: int, size: int) -> None:
        """Hand out a block; from then on the process has the device open."""
        self.opened = True
        rounded = -(-size // ROUND) * ROUND
        free = self._current("reserved_bytes") - self._current("allocated_bytes")
        if rounded > free:
            segment = max(SMALL_SEGMENT, rounded - free)
            if self._current("reserved_bytes") + segment > self.total:
                self.stats["num_ooms"] += 1
                raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
            self._add("reserved_bytes", segment)
            self._add("segment", 1)
            self.stats["num_device_alloc"] += 1
        self.blocks[block] = (size, rounded)
        for name, amount in self._figures(size, rounded).items():
            self._add(name, amount)

    def free(self, block: int) -> None:
        """Take a block back; its segment stays reserved."""
        for name, amount in self._figures(*self.blocks.pop(block)).items():
            self._take(name, amount)

    def _figures(self, size: int, rounded: int) -> dict[str, int]:
        figures = {"requested_bytes": size, "active": 1, "allocation": int(self.counts_allocations)}
        return figures | dict.fromkeys(("allocated_bytes", "active_bytes"), rounded)

    def reset_peak(self) -> None:
        """Set every peak to the current value."""
        for name in (*BYTES, *COUNTS):
            for stat in self.stats[name].values():
                stat["peak"] = stat["current"]

    def segment(self, index: int) -> dict[str, Any]:
        """Return all reserved memory as one segment in torch's form; empty if there is none."""
        reserved = self._current("reserved_bytes")
        if not reserved:
            return {}
        blocks = [
            {"size": rounded, "requested_size": size, "state": "active_allocated"}
            for size, rounded in self.blocks.values()
        ]
        if free := reserved - self._current("allocated_bytes"):
            blocks.append({"size": free, "requested_size": 0, "state": "inactive"})
        return {
            "device": index, "address": 4096, "total_size": reserved, "segment_type": "large",
            "blocks": blocks,
        }  # fmt: skip

    def empty_cache(self) -> None:
        """Return the reserved memory that is not allocated."""
        self._take(
            "reserved_bytes", self._current("reserved_bytes") - self._current("allocated_bytes")
        )

    def _current(self, name: str) -> int:
        current: int = self.stats[name]["all"]["current"]
        return current

    def _add(self, name: str, amount: int) -> None:
        for pool in ("all", "large_pool"):
            stat = self.stats[name][pool]
            stat["current"] += amount
            stat["allocated"] += amount
            stat["peak"] = max(stat["peak"], stat["current"])

    def _take(self, name: str, amount: int) -> None:
        for pool in ("all", "large_pool"):
            stat = self.stats[name][pool]
            stat["current"] -= amount
            stat["freed"] += amount


class FakeAllocator(Allocator):
    """An `Allocator` over `FakeDevice`s, with the user's own calls.

    It has nothing of torch, and so is also what a second allocator must be at least.
    """

    def __init__(
        self, devices: int = 1, *, initialized: bool = True, device_type: str = "cuda"
    ) -> None:
        self.device_type = device_type
        super().__init__({})
        self.pools = [FakeDevice(uuid=f"0000000{index}-fake") for index in range(devices)]
        self.initialized = initialized
        # Called once just before the next raw reset, as another thread would be.
        self.before_reset: Callable[[], Any] | None = None
        self.calls: Counter[str] = Counter()  # past any wrapper, whoever made them
        self._observers: list[RanOut] = []
        self._blocks = itertools.count(1)
        self._owner: dict[int, FakeDevice] = {}
        self._through: tuple[Callable[..., Stats], Callable[..., None]] | None = None

    @property
    def resets(self) -> int:
        """The number of raw resets so far, by anybody."""
        return self.calls["reset_peak"]

    @property
    def counts_allocations(self) -> bool:
        return all(pool.counts_allocations for pool in self.pools)

    @counts_allocations.setter
    def counts_allocations(self, counts: bool) -> None:
        for pool in self.pools:
            pool.counts_allocations = counts

    @property
    def allocated(self) -> int:
        current: int = self.pools[0].stats["allocated_bytes"]["all"]["current"]
        return current

    def alloc(self, size: int, device: int = 0) -> int:
        """Allocate bytes on a device, as the user's tensors do; return the block."""
        block, pool = next(self._blocks), self.pools[device]
        try:
            pool.alloc(block, size)
        except OutOfMemoryError:
            free = pool.total - pool.stats["reserved_bytes"]["all"]["current"]
            for ran_out in self._observers:
                ran_out(device, size, pool.total, free)
            raise
        self._owner[block] = self.pools[device]
        return block

    def free(self, block: int) -> None:
        self._owner.pop(block).free(block)

    def user_stats(self, device: int) -> Stats:
        """Return the counters that the user reads through `torch.cuda`."""
        if self._through is None or not self.initialized:
            return self.stats(device)
        return self._through[0](self.stats, device)

    def user_reset(self, device: int) -> None:
        if self._through is None or not self.initialized:
            self.reset_peak(device)
        else:
            self._through[1](self.reset_peak, device)

    def supported(self) -> bool:
        return True

    def other_accelerator(self) -> str | None:
        return ""

    def devices(self) -> range:
        return range(len(self.pools) if self.initialized else 0)

    def opened(self) -> list[int]:
        return [index for index in self.devices() if self.pools[index].opened]

    def device(self, index: int) -> Device:
        pool = self.pools[index]
        return Device(f"{self.device_type}:{index}", pool.name, pool.uuid, float(pool.total))

    def free_and_total(self, index: int) -> tuple[float, float] | None:
        return None

    def snapshot(self, *, quick: bool = False) -> list[dict[str, Any]]:
        """Return one segment for each device, with a block for each live one, and a free one."""
        return [
            segment for index, pool in enumerate(self.pools) if (segment := pool.segment(index))
        ]

    def observe(self, ran_out: RanOut) -> None:
        self._observers.append(ran_out)

    def autocast(self) -> bool | None:
        return None

    def empty_cache(self) -> None:
        self.calls["empty_cache"] += 1
        for pool in self.pools:
            pool.empty_cache()

    def stats(self, index: int) -> Stats:
        self.calls["stats"] += 1
        return _copied(self.pools[index].stats)

    def reset_peak(self, index: int) -> None:
        meanwhile, self.before_reset = self.before_reset, None
        if meanwhile is not None:
            meanwhile()
        self.calls["reset_peak"] += 1
        self.pools[index].reset_peak()

    def install(self, read: Callable[..., Stats], reset: Callable[..., None]) -> None:
        self._through, self.installed = (read, reset), True

    def uninstall(self) -> None:
        self._through, self.installed = None, False


FORBIDDEN_IN_CUDA = (
    "is_available", "device_count", "current_device", "mem_get_info", "get_device_name",
    "get_device_capability", "synchronize", "current_stream", "empty_cache", "memory_summary",
    "memory_stats", "memory_allocated", "memory_reserved", "max_memory_allocated",
    "max_memory_reserved", "reset_peak_memory_stats", "reset_accumulated_memory_stats",
    "get_arch_list", "list_gpu_processes", "device_memory_used", "utilization", "init", "cudart",
    "get_device_properties", "memory_snapshot",
)  # fmt: skip
"""What initialises CUDA, makes a context, forbids forking, synchronises, or changes what is measured."""


def _forbidden(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{name} was called")

    return refuse


class FakeTorch(ModuleType):
    """A module `torch` for the allocator's devices, for `sys.modules`.

    Every forbidden function fails the test.
    """

    def __init__(self, allocator: FakeAllocator, *, accelerator: str = "") -> None:
        super().__init__("torch")
        self.allocator = allocator
        kind = allocator.device_type
        module: Any = ModuleType(f"torch.{kind}")
        for name in FORBIDDEN_IN_CUDA:
            setattr(module, name, _forbidden(f"torch.{kind}.{name}"))
        module.is_initialized = lambda: allocator.initialized
        module.get_device_properties = self._properties
        setattr(self, kind, module)
        own = {
            "memoryStats": self._stats,
            "resetPeakMemoryStats": self._reset,
            "getDeviceCount": self._count,
            "hasPrimaryContext": self._has_context,
        }
        self._C = SimpleNamespace(
            **{f"_{kind}_{name}": entry for name, entry in own.items()},
            _accelerator_getDeviceStats=self._stats,
            _accelerator_resetPeakStats=self._reset,
            _accelerator_getAccelerator=lambda: SimpleNamespace(type=accelerator or kind),
        )

    def _needs_cuda(self, what: str) -> None:
        if not self.allocator.initialized:
            raise AssertionError(f"{what} was called before CUDA was initialised")

    def _properties(self, index: int) -> SimpleNamespace:
        self._needs_cuda("get_device_properties")
        pool = self.allocator.pools[index]
        return SimpleNamespace(
            name=pool.name,
            uuid=pool.uuid,
            total_memory=pool.total,
            is_integrated=int(pool.integrated),
            is_integrated_gpu=pool.integrated,
            pci_domain_id=0,
            pci_bus_id=0xC6,
            pci_device_id=0,
        )

    def _count(self) -> int:
        self._needs_cuda("_cuda_getDeviceCount")
        return len(self.allocator.pools)

    def _has_context(self, device: int) -> bool:
        self._needs_cuda("_cuda_hasPrimaryContext")
        return self.allocator.pools[device].opened

    def _stats(self, device: int) -> Stats:
        """Return the counters in the form of the C entry point."""
        self._check(device)
        return self.allocator.stats(device)

    def _reset(self, device: int) -> None:
        self._check(device)
        self.allocator.reset_peak(device)

    def _check(self, device: Any) -> None:
        if not isinstance(device, int):
            raise TypeError("invalid argument to memory_allocated")
        if not self.allocator.initialized or not 0 <= device < len(self.allocator.pools):
            raise RuntimeError("Invalid device argument : did you call init?")
