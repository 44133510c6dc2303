"""A fake GPU whose allocator hands out, to the byte, whatever torch allocates on the CPU."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hfmem_widget.monitor import process
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.sources.counters import AllocatorSource, TensorSource
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch


class Mirror(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed by mypy
    """Allocates every new storage on a fake GPU as well, and frees it there when it dies."""

    def __init__(self, allocator: FakeAllocator) -> None:
        super().__init__()
        self._allocator = allocator
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self._note(one.untyped_storage())
        return result

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        size = storage.nbytes()
        if not size or (key in self._known and self._known[key].alive):
            return
        block = self._allocator.alloc(size)
        self._known[key] = weakref.finalize(storage, self._allocator.free, block)
        self._known[key].atexit = False

    def workspace(self, size: int) -> None:
        """Allocate bytes that no tensor explains and nobody frees, as cuBLAS does."""
        self._allocator.alloc(size)


@contextmanager
def mirrored() -> Iterator[Mirror]:
    """Let every watch in a ``with`` block watch a fake GPU."""
    allocator = FakeAllocator()
    modules = {"torch": FakeTorch(allocator)}
    held = TensorSource()
    cuda = CudaAllocator(modules)
    sampler = Sampler([AllocatorSource(cuda), held])
    with (
        _shared(Monitor(sampler, PeakLedger(cuda), attribution=Attribution(held))),
        Mirror(allocator) as one,
    ):
        yield one


@contextmanager
def on_the_host() -> Iterator[None]:
    """Let every watch in a ``with`` block watch only this process' heap."""
    held = TensorSource()
    ledger = PeakLedger(CudaAllocator({}))
    with _shared(Monitor(Sampler([HostSource(), held]), ledger, attribution=Attribution(held))):
        yield


@contextmanager
def _shared(ours: Monitor) -> Iterator[None]:
    before, process.this.monitor = process.this.monitor, ours
    try:
        yield
    finally:
        process.this.monitor = before
        ours.shutdown()
