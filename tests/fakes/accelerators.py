"""Builds of torch for the supported accelerators, which behave as their source says.

After torch/xpu/{__init__,memory}.py, torch/csrc/{xpu/Module,DeviceAccelerator}.cpp,
torch/{mps,backends/mps}/__init__.py and torch/cuda/memory.py of torch 2.13. What would initialise a device,
or synchronise, fails the test.
"""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

from hfmem_widget.sources.allocator import Allocator, Stats
from hfmem_widget.sources.torch_cuda import CudaAllocator
from hfmem_widget.sources.torch_mps import MpsAllocator
from hfmem_widget.sources.torch_xpu import XpuAllocator
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch

GIB = 1 << 30


def cuda(allocator: FakeAllocator) -> FakeTorch:
    return FakeTorch(allocator)


def rocm(allocator: FakeAllocator) -> FakeTorch:
    """Return a build for AMD's GPUs, in which torch.cuda is HIP and can read a device's memory in use."""
    torch: Any = FakeTorch(allocator)
    torch.version = SimpleNamespace(hip="7.1", cuda=None)
    torch._C._cuda_hasPrimaryContext = lambda index: index == 0
    torch.cuda.mem_get_info = _driver(allocator)
    built: FakeTorch = torch
    return built


class AmdSmi:
    """The used part of AMD SMI 7.0.2 (amdsmi_interface.py): memory by process, and a device's utilisation.

    It is None to `torch.cuda` where it is not installed. `listed` is by process id; a `fault` is raised.
    """

    def __init__(self, allocator: FakeAllocator) -> None:
        self._allocator = allocator
        self.listed: dict[int, int] = {os.getpid(): 3 * GIB, 1: GIB}
        self.activity: int | str | Exception = 87
        self.fault: Exception | None = None
        self.asked = 0

    def handler(self, index: int) -> str:
        """Return the handle of a device of HIP's, like `torch.cuda._get_amdsmi_handler`."""
        if not self._allocator.initialized:
            raise AssertionError("AMD SMI was asked before the device was initialised")
        return f"processor {index}"

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[Any]:
        assert handle == "processor 0"
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return [
            {
                "name": "N/A",
                "pid": pid,
                "mem": size,
                "engine_usage": {"gfx": 0, "enc": 0},
                "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": size},
                "cu_occupancy": "N/A",
            }
            for pid, size in self.listed.items()
        ]

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        """Return a device's utilisation; "N/A" if unknown."""
        assert handle == "processor 0"
        if isinstance(self.activity, Exception):
            raise self.activity
        return {"gfx_activity": self.activity, "umc_activity": 3, "mm_activity": "N/A"}


def with_amd_smi(torch: Any, allocator: FakeAllocator) -> AmdSmi:
    """Let a build for AMD's GPUs find AMD SMI, as torch/cuda/__init__.py does on import."""
    torch.cuda.amdsmi = smi = AmdSmi(allocator)
    torch.cuda._get_amdsmi_handler = smi.handler
    return smi


def xpu(allocator: FakeAllocator) -> FakeTorch:
    """Return a build for Intel's GPUs.

    `torch.xpu` shows four kinds of bytes, `torch.accelerator` all counters; errors are never counted
    (c10/xpu/XPUCachingAllocator.cpp).
    """
    torch = FakeTorch(allocator)
    counters = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    read = torch._stats

    def stats(device: int) -> Stats:
        figures = read(device)
        return {name: figures[name] for name in counters}

    def all_stats(device: int) -> Stats:
        figures = read(device)
        del figures["reserved_bytes_by_private_pools"]
        return figures | {"num_ooms": 0}

    torch._C._xpu_memoryStats = stats
    torch._C._accelerator_getDeviceStats = all_stats
    torch.xpu.mem_get_info = _driver(allocator)
    torch.xpu.memory_snapshot = allocator.snapshot
    return torch


class _MpsTorch(ModuleType):
    def __init__(self, allocator: FakeAllocator) -> None:
        super().__init__("torch")

        def asks_metal() -> bool:
            if not allocator.initialized:
                raise AssertionError("Metal was asked before the user's code had asked it")
            return True

        def counter(name: str) -> Callable[[], int]:
            def read() -> int:
                asks_metal()
                current: int = allocator.pools[0].stats[name]["all"]["current"]
                return current

            return read

        self.allocator = allocator
        self._C = SimpleNamespace(
            _has_mps=True,
            _accelerator_getAccelerator=lambda: SimpleNamespace(type="mps"),
            _accelerator_getDeviceStats=None,
        )
        self.mps = SimpleNamespace(
            _is_in_bad_fork=lambda: False,
            current_allocated_memory=counter("allocated_bytes"),
            driver_allocated_memory=counter("reserved_bytes"),
            recommended_max_memory=lambda: allocator.pools[0].total,
            empty_cache=allocator.empty_cache,
        )
        self.backends = SimpleNamespace(
            mps=SimpleNamespace(is_available=lru_cache(asks_metal), get_name=lambda: "Apple M4 Max")
        )
        if allocator.initialized:
            self.come_up()

    def come_up(self) -> None:
        """Let the user's code ask whether MPS is available."""
        self.allocator.initialized = True
        self.backends.mps.is_available()


def mps(allocator: FakeAllocator) -> _MpsTorch:
    """Return a build for Apple's GPUs, which has only current values."""
    return _MpsTorch(allocator)


def _driver(allocator: FakeAllocator) -> Callable[[int], tuple[int, int]]:
    def mem_get_info(device: int) -> tuple[int, int]:
        if not allocator.initialized:
            raise AssertionError("mem_get_info was called before the device was initialised")
        pool = allocator.pools[device]
        used = pool.stats["reserved_bytes"]["all"]["current"]
        return pool.total - used - GIB, pool.total  # a GiB is another process'

    return mem_get_info


BUILDS: Mapping[str, tuple[str, Callable[[FakeAllocator], Any], type[Allocator]]] = {
    "cuda": ("cuda", cuda, CudaAllocator),
    "rocm": ("cuda", rocm, CudaAllocator),
    "xpu": ("xpu", xpu, XpuAllocator),
    "mps": ("mps", mps, MpsAllocator),
}
"""By name: the device type, how to build such a torch, and the allocator that reads it."""
