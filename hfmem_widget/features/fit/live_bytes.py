"""Counts the bytes that are alive, tensor by tensor, while something runs on the meta device.

Meta tensors have storages with a size and no memory. They come and go as real ones would, since Python and
autograd hold and drop them alike; so the highest sum is what a device would have had to give.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ITEM = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  (an operator's name, not a private one)


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """While it is active: the bytes of all storages made since, and the highest they came to.

    A value that only a device could tell is taken to be 1 or True: the mask is full, nothing is packed.

    Parameters
    ----------
    granularity : int
        What each storage is rounded up to, in bytes: 512 as the CUDA caching allocator does.
    device : str
        Whose tensors are counted.

    Attributes
    ----------
    now, peak : int
        Bytes.
    marked, marked_at_peak : int
        Bytes of what `mark` was told of, now and at the peak.
    """

    def __init__(self, granularity: int = 1, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.now = self.peak = 0
        self.marked = self.marked_at_peak = 0
        self._granularity = granularity
        self._known: dict[int, object] = {}

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count what was there before."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            # Kept, so that no later storage takes its place in memory, and in here.
            self._known[storage._cdata] = storage  # noqa: SLF001  (the identity of a storage is nowhere public)

    def mark(self, tensor: torch.Tensor) -> None:
        """Count a tensor as marked from now on."""
        self.marked += self.rounded(tensor.untyped_storage().nbytes())

    def rounded(self, size: int) -> int:
        """Return what the allocator would give for a size, in bytes."""
        return -(-size // self._granularity) * self._granularity

    def restart(self) -> int:
        """Begin a new peak at what is alive now; return the peak so far."""
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
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  (as above)
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
