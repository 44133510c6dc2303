"""PyTorch's caching allocator for Intel GPUs."""

from __future__ import annotations

from hfmem_widget.sources.torch_allocator import TorchAllocator


class XpuAllocator(TorchAllocator):
    """The only object that touches the XPU allocator's entry points: an `Allocator`.

    It counts bytes and peaks and resets them, but not how often it allocated (torch/csrc/xpu/Module.cpp,
    torch 2.13). Without that count another thread's allocation between reading a peak and resetting it cannot
    be seen, so that peaks are lower bounds. Its history of allocations is not read.
    """

    device_type = "xpu"
