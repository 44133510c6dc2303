"""PyTorch's caching allocator for Intel GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.sources.allocator import Allocator, Stats
from hfmem_widget.sources.torch_history import XpuHistory


class XpuAllocator(Allocator):
    """The only object that touches the XPU allocator's entry points.

    `torch.xpu` does not count allocations (torch/csrc/xpu/Module.cpp); `torch.accelerator` does, for the same
    allocator (torch/csrc/DeviceAccelerator.cpp). Without this count peaks are lower bounds.
    """

    device_type = "xpu"
    recording = XpuHistory
    integrated = "is_integrated_gpu"

    def stats(self, index: int) -> Stats:
        """Return the counters of one initialised device, past any wrapper."""
        name = "_accelerator_getDeviceStats"
        if not hasattr(self._extension(), name) or not self._is_the_accelerator():
            return super().stats(index)
        stats: Stats = self._raw(name)(index)
        # XPU does not count errors (c10/xpu/XPUCachingAllocator.cpp), and reports 0.
        stats.pop("num_ooms", None)
        return stats

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the segments, copied under the allocator's lock: no call of the device's runtime."""
        if quick and XpuHistory.active is not None:
            raise SourceUnavailable(
                "this torch lists its segments only together with their history"
            )
        return super().snapshot()
