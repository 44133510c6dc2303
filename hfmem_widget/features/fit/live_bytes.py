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
from hfmem_widget.features.fit.replay import Event, Moment
from hfmem_widget.features.fit.workspaces import within

_ATEN: Final = torch.ops.aten
_ZEROS: Final = _ATEN.new_zeros.default
_IN_PLACE: Final = {
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.index_put.default: _ATEN.index_put_.default,
}
"""What autograd does to the zeros that it has just made: of meta tensors it makes others instead."""


def storage_id(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (the identity of a storage is nowhere public)


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """The bytes of all storages made while it is active, and their peak.

    A value that only a device could know is taken to be 1 or True: the mask is full, nothing is packed. Each
    storage is rounded up to a granularity. `marked` are the bytes of the tensors given to `mark`. The
    values that follow from the batch are known to `knowing`. `events` are what happened, in order.
    """

    def __init__(self, granularity: int = 1, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.now = self.peak = 0
        self.marked = self.marked_at_peak = 0
        self.knowing = Knowing()
        self.events: list[Event] = []
        self._granularity = granularity
        self._numbers: dict[int, int] = {}
        self._known: dict[int, object] = {}
        self.in_backward = False
        self._zeros = 0

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count tensors that were there before."""
        for tensor in tensors:
            # Kept, so that no later storage takes its place in memory, and in here.
            self._known[storage_id(tensor)] = tensor.untyped_storage()

    def mark(self, tensor: torch.Tensor) -> None:
        """Count a tensor as marked from now on."""
        self.marked += self.rounded(tensor.untyped_storage().nbytes())
        if (number := self._numbers.get(storage_id(tensor))) is not None:
            self.events.append((Moment.MARKED, number, 0))

    def rounded(self, size: int) -> int:
        """Return a size as a multiple of the granularity."""
        return -(-size // self._granularity) * self._granularity

    def restart(self) -> int:
        """Return the peak so far, and begin a new one at what is alive now."""
        self.events.append((Moment.RESTARTED, 0, 0))
        peak = self.peak
        self.peak, self.marked_at_peak = self.now, self.marked
        return peak

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_of_autograd = self.in_backward and func in _IN_PLACE and not torch.is_grad_enabled()
        if is_of_autograd and storage_id(args[0]) == self._zeros:
            func = _IN_PLACE[func]
        out = self.knowing(func, args, kwargs or {})
        self._zeros = storage_id(out) if func is _ZEROS else 0
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        if besides := within(func, args, on_gpu=self._granularity > 1):
            self.events.append((Moment.BESIDES, 0, besides))
            self._reach(self.now + besides)
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
        size, number = self.rounded(storage.nbytes()), len(self.events)
        self.now += size
        self._reach(self.now)
        self.events.append((Moment.MADE, number, storage.nbytes()))
        self._numbers[key] = number

        def gone(_: object) -> None:
            self.now -= size
            self._known.pop(key, None)
            self.events.append((Moment.GONE, number, 0))

        self._known[key] = weakref.ref(storage, gone)
