"""PyTorch's allocator for Apple's GPUs: the bytes of tensors, and those that Metal holds for this process."""

from collections.abc import Mapping, Sequence
from typing import Any

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.session import Device
from hfmem_widget.sources.allocator import Allocator, Stats
from hfmem_widget.text import plain


class MpsAllocator(Allocator):
    """The only object that calls the MPS allocator, which has no peaks and segments.

    The peaks of `torch.accelerator` since torch 2.13 are not read: they have no count of allocations, and are
    of torch's own heaps alone (ATen/mps/MPSAllocator.mm). The memory is a part of the machine's.
    """

    device_type = "mps"

    def supported(self) -> bool:
        """Return whether torch is loaded and built for Metal."""
        return bool(getattr(self._extension(), "_has_mps", False))

    def devices(self) -> range:
        """Return the one device, once the user's code has asked for it; nothing in a forked child.

        Any question to Metal opens it. But once somebody has called `torch.backends.mps.is_available`, which
        keeps its answer (`lru_cache`), as Trainer, accelerate and pipelines do, Metal is already open.
        """
        if not self.supported():
            return range(0)
        is_available = getattr(self._backend(), "is_available", None)
        cache = getattr(is_available, "cache_info", None)
        if is_available is None or cache is None or not cache().currsize or not is_available():
            return range(0)
        return range(0 if self._module()._is_in_bad_fork() else 1)

    def device(self, index: int) -> Device:
        """Return the chip's name, with the most bytes that Metal recommends to use as its total."""
        name = getattr(self._backend(), "get_name", lambda: "Apple GPU")
        total = float(self._module().recommended_max_memory())
        return Device(self.key(index), plain(name()), "", total, shared=total)

    def free_and_total(self, index: int) -> None:
        """Return nothing: the memory is the machine's."""

    def stats(self, index: int) -> Stats:
        """Return the bytes of tensors, and those that Metal holds for this process; there are no peaks."""
        module = self._module()
        return {
            "allocated_bytes": {"all": {"current": module.current_allocated_memory()}},
            "reserved_bytes": {"all": {"current": module.driver_allocated_memory()}},
        }

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Raise `SourceUnavailable`: it lists no segments."""
        raise SourceUnavailable("PyTorch lists no segments on MPS")

    def _backend(self) -> Any:
        torch: Any = self._modules["torch"]
        return getattr(torch.backends, "mps", None)
