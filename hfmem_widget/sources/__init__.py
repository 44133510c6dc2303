"""How memory is read: one file for each way, all of the same shape."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.children import ChildSource, find_processes
from hfmem_widget.sources.counters import AllocatorSource, TensorSource
from hfmem_widget.sources.device_memory import DeviceMemorySource
from hfmem_widget.sources.host import HostSource, find_memory
from hfmem_widget.sources.nvml import NvmlSource
from hfmem_widget.sources.procfs import Pool
from hfmem_widget.sources.source import Source
from hfmem_widget.sources.torch_cuda import CudaAllocator
from hfmem_widget.sources.torch_mps import MpsAllocator
from hfmem_widget.sources.torch_xpu import XpuAllocator

__all__ = ["ALLOCATORS", "Source", "loaded_allocator", "open_allocators", "open_sources"]

ALLOCATORS: tuple[Callable[[], Allocator], ...] = (CudaAllocator, XpuAllocator, MpsAllocator)
"""All caching allocators that are supported; a torch is built for one of them at most."""


def open_allocators() -> tuple[Allocator, ...]:
    """Return an instance of each of `ALLOCATORS`, which do nothing before the user's code imports torch."""
    return tuple(make() for make in ALLOCATORS)


def loaded_allocator() -> Allocator:
    """Return the allocator that this process' torch is built for, else the first of all."""
    allocators = open_allocators()
    return next((allocator for allocator in allocators if allocator.supported()), allocators[0])


def open_sources(environ: Mapping[str, str], allocators: Sequence[Allocator]) -> tuple[Source, ...]:
    """Return one source of each kind, in the order of reading; each opens its files at its first reading.

    If two know a device, the earlier is preferred. The first of the allocators is CUDA's, and `environ` has
    `CUDA_VISIBLE_DEVICES`.
    """
    types = [allocator.device_type for allocator in allocators]
    cuda, *others = (AllocatorSource(allocator, types) for allocator in allocators)
    memory = cache(find_memory)  # not the host's, which another thread reads at the same time

    def pool() -> Pool:
        return memory().pool()

    nvml = NvmlSource(cuda, environ, pool=pool)
    driver = DeviceMemorySource(allocators, pool=pool, nvml=nvml)
    pinned = getattr(allocators[0], "pinned", float)
    host = HostSource(pinned=pinned), ChildSource(find_processes())
    return (cuda, *others, nvml, driver, *host, TensorSource())
