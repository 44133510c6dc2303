"""Counting the bytes of live tensors while something runs on the meta device.

Meta tensors have storages with a size and no memory. They come and go as real ones would, since Python and
autograd hold and drop them alike. So the highest sum is what a device would have had to give.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ITEM = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  (an operator's name, not a private one)


def storage_id(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (the identity of a storage is nowhere public)


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """The bytes of all storages made while it is active, and their peak.

    A value that only a device could know is taken to be 1 or True: the mask is full, nothing is packed. Each
    storage is rounded up to a granularity. `marked` are the bytes of the tensors given to `mark`.
    """

    def __init__(self, granularity: int = 1, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.now = self.peak = 0
        self.marked = self.marked_at_peak = 0
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
        return -(-size // self._granularity) * self._granularity

    def restart(self) -> int:
        """Return the peak so far, and begin a new one at what is alive now."""
        peak, self.peak = self.peak, self.now
        self.marked_at_peak = self.marked
        return peak

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _ITEM and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device:
            return
        key, storage = storage_id(tensor), tensor.untyped_storage()
        if key in self._known:
            return
        size = self.rounded(storage.nbytes())
        self.now += size
        if self.now > self.peak:
            self.peak = self.now
            self.marked_at_peak = self.marked

        def gone(_: object) -> None:
            self.now -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)
