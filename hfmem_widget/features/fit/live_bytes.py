"""Counting the bytes of live tensors while something runs on the meta device.

Meta tensors have storages with a size and no memory. They come and go as real ones would, since Python and
autograd hold and drop them alike. So the highest sum is what a device would have had to give.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hfmem_widget.features.fit.known import Knowing
from hfmem_widget.features.fit.workspaces import within

# Of PyTorch's allocator for a GPU (c10/core/CachingDeviceAllocator.h, c10/cuda/CUDACachingAllocator.cpp).
_OWN_SEGMENT: Final = 10 << 20  # from here on, a tensor gets a segment of its own
_SEGMENT: Final = 2 << 20  # which is a multiple of this
_UNSPLIT: Final = 1 << 20  # and the tensor gets all of it where no more than this would be left


def storage_id(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (the identity of a storage is nowhere public)


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """The bytes of all storages made while it is active, and their peak.

    A value that only a device could know is taken to be 1 or True: the mask is full, nothing is packed. Each
    storage is rounded up to a granularity. `marked` are the bytes of the tensors given to `mark`. The
    values that follow from the batch are known to `knowing`.
    """

    def __init__(self, granularity: int = 1, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.now = self.peak = 0
        self.marked = self.marked_at_peak = 0
        self.knowing = Knowing()
        self._granularity = granularity
        self._known: dict[int, object] = {}

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count tensors that were there before."""
        for tensor in tensors:
            # Kept, so that no later storage takes its place in memory, and in here.
            self._known[storage_id(tensor)] = tensor.untyped_storage()

    def mark(self, tensor: torch.Tensor) -> None:
        """Count a tensor as marked from now on."""
        self.marked += self.rounded(tensor.untyped_storage().nbytes())

    def rounded(self, size: int) -> int:
        """Return the bytes that the allocator would give for a size."""
        given = -(-size // self._granularity) * self._granularity
        segment = -(-given // _SEGMENT) * _SEGMENT
        is_whole = self._granularity > 1 and given >= _OWN_SEGMENT and segment - given <= _UNSPLIT
        return segment if is_whole else given

    def restart(self) -> int:
        """Return the peak so far, and begin a new one at what is alive now."""
        peak = self.peak
        self.peak, self.marked_at_peak = self.now, self.marked
        return peak

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = self.knowing(func, args, kwargs or {})
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        self._reach(self.now + within(func, args, on_gpu=self._granularity > 1))
        return out

    def _reach(self, size: int) -> None:
        if size > self.peak:
            self.peak, self.marked_at_peak = size, self.marked

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device:
            return
        key, storage = storage_id(tensor), tensor.untyped_storage()
        if key in self._known:
            return
        size = self.rounded(storage.nbytes())
        self.now += size
        self._reach(self.now)

        def gone(_: object) -> None:
            self.now -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)
