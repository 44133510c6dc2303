"""PyTorch's CUDA caching allocator (ROCm's too), used without ever initialising CUDA.

Reading takes 10 µs on an H200: host-side counters, no call of CUDA's runtime, no synchronisation. Nothing is
called before the user's own code has initialised CUDA, because most of `torch.cuda` would initialise it, or
create a context, or forbid forking (pytorch#103584, accelerate#1751).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.session import Device
from hfmem_widget.sources.allocator import RanOut, ReadStats, ResetPeak, Stats
from hfmem_widget.sources.torch_cuda_history import CudaHistory, backend_of
from hfmem_widget.text import plain

RAW: Final = "__hfmem_raw__"
"""The attribute by which a wrapped entry point gives the original."""

_STATS: Final = "_cuda_memoryStats"
_RESET: Final = "_cuda_resetPeakMemoryStats"


class _EntryPoint(NamedTuple):
    """A wrapped attribute of `torch._C`: the function before, the original, and the wrapper."""

    before: Callable[..., Any]
    raw: Callable[..., Any]
    wrapper: Callable[..., Any]


class CudaAllocator:
    """The only object that touches the CUDA allocator's entry points: an `Allocator`.

    Python reads and resets the counters through attributes of `torch._C`, looked up at every call, so that
    wrapping them reaches `torch.cuda.max_memory_allocated` and its kin however they were imported. Calls made
    before CUDA is initialised, or with anything but a device's index, reach the original as they are.
    torch is found in `modules` once the user has imported it.
    """

    device_type = "cuda"

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules
        self._wrapped: dict[str, _EntryPoint] = {}
        self._indices = range(0)
        self._up_in = -1

    @property
    def installed(self) -> bool:
        """Whether the entry points are wrapped by this very object."""
        return bool(self._wrapped)

    def supported(self) -> bool:
        """Return whether torch is loaded and has both of the CUDA entry points."""
        return hasattr(self._extension(), _STATS) and hasattr(self._extension(), _RESET)

    def other_accelerator(self) -> str | None:
        """Return the device type of a torch without CUDA ("mps", "xpu"), "" for none; None while it loads."""
        torch: Any = self._modules.get("torch")
        if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return None
        if self.supported():
            return ""
        try:
            return str(self._extension()._accelerator_getAccelerator().type)
        except (AttributeError, RuntimeError):  # a build for CPUs raises
            return ""

    def devices(self) -> range:
        """Return the indices of the visible devices; empty until the user has initialised CUDA."""
        # Once up, CUDA stays up in the process that initialised it; asking torch each time costs 10 µs.
        if self._up_in == os.getpid():
            return self._indices
        cuda = getattr(self._modules.get("torch"), "cuda", None)
        is_initialized = getattr(cuda, "is_initialized", None)
        if is_initialized is None or not is_initialized():
            return range(0)
        # Not `torch.cuda.device_count`, which parses CUDA_VISIBLE_DEVICES anew through NVML.
        self._indices = range(int(self._extension()._cuda_getDeviceCount()))
        self._up_in = os.getpid()
        return self._indices

    def device(self, index: int) -> Device:
        """Return what an initialised device is, with NVML's UUID."""
        properties = self._cuda().get_device_properties(index)
        name, uuid = plain(properties.name), plain(getattr(properties, "uuid", ""))
        # CUDA gives a MIG instance its own UUID and says in its name that it is one.
        prefix = "MIG-" if " MIG " in name else "GPU-"
        total = float(properties.total_memory)
        return Device(f"cuda:{index}", name, prefix + uuid if uuid else "", total)

    def capability(self, index: int) -> tuple[int, ...]:
        """Return an initialised device's compute capability."""
        properties = self._cuda().get_device_properties(index)
        return int(properties.major), int(properties.minor)

    def stats(self, index: int) -> Stats:
        """Return the counters of one initialised device, past any wrapper."""
        stats: Stats = self._raw(_STATS)(index)
        return stats

    def reset_peak(self, index: int) -> None:
        """Set one initialised device's peaks to its current values, past any wrapper."""
        self._raw(_RESET)(index)

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the segments, copied under the allocator's lock: no call of CUDA's runtime."""
        if (backend := backend_of(self._modules["torch"])) not in {"native", ""}:
            # CUDA's own pool would be listed as empty, or raise, by version.
            raise SourceUnavailable(backend)
        segments: Sequence[Mapping[str, Any]]
        try:
            segments = self._cuda().memory_snapshot(include_traces=False)
        except TypeError:
            # Before torch 2.13 a snapshot brings the traces along, which takes seconds where there are any.
            is_recording = getattr(self._extension(), "_cuda_isHistoryEnabled", lambda: False)
            if quick and is_recording():
                message = "this torch cannot list its segments without their history"
                raise SourceUnavailable(message) from None
            segments = self._cuda().memory_snapshot()
        except RuntimeError as error:
            raise SourceUnavailable(plain(error)) from error
        return segments

    def observe(self, ran_out: RanOut) -> None:
        """Attach an observer for good; this would initialise CUDA, so nothing is done before CUDA is up."""
        attach = getattr(self._extension(), "_cuda_attach_out_of_memory_observer", None)
        if attach is not None and self.devices():
            with contextlib.suppress(Exception):  # backend:cudaMallocAsync has no observers
                attach(ran_out)

    def history(self, on_start: Callable[[], object]) -> CudaHistory:
        """Return a recording of allocations that waits for its first look."""
        return CudaHistory(self._modules, on_start=on_start)

    def autocast(self) -> bool:
        """Return whether autocast is on for CUDA on the calling thread."""
        is_on: Any = self._modules["torch"].is_autocast_enabled
        try:
            return bool(is_on("cuda"))
        except TypeError:  # before torch 2.4 it took nothing
            return bool(is_on())

    def empty_cache(self) -> None:
        """Return cached memory to the driver; torch does nothing where CUDA is not up."""
        self._cuda().empty_cache()

    def install(
        self, read: Callable[[ReadStats, int], Stats], reset: Callable[[ResetPeak, int], None]
    ) -> None:
        """Let the user's readings and resets go through two functions."""
        if not self.supported():
            message = "this build of torch has no CUDA memory counters, so peaks are sampled"
            raise SourceUnavailable(message)
        self.uninstall()
        self._wrap(_STATS, read)
        self._wrap(_RESET, reset)
        self._wrap("_accelerator_getDeviceStats", read, self._accelerator_is_cuda)
        self._wrap("_accelerator_resetPeakStats", reset, self._accelerator_is_cuda)

    def uninstall(self) -> None:
        """Put the originals back; where somebody has since wrapped ours, it stays and only passes on."""
        extension = self._extension()
        wrapped, self._wrapped = self._wrapped, {}
        for name, entry in wrapped.items():
            if getattr(extension, name, None) is entry.wrapper:
                setattr(extension, name, entry.before)

    def _cuda(self) -> Any:
        torch: Any = self._modules["torch"]
        return torch.cuda

    def _extension(self) -> Any:
        return getattr(self._modules.get("torch"), "_C", None)

    def _raw(self, name: str) -> Any:
        if name in self._wrapped:
            return self._wrapped[name].raw
        entry = getattr(self._extension(), name)
        return getattr(entry, RAW, entry)

    def _accelerator_is_cuda(self) -> bool:
        # A registered PrivateUse1 backend comes before CUDA as "the accelerator" of torch.accelerator.
        return bool(self._extension()._accelerator_getAccelerator().type == "cuda")

    def _wrap(
        self,
        name: str,
        through: Callable[[Callable[..., Any], int], Any],
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        extension = self._extension()
        before = getattr(extension, name, None)
        if before is None:
            return
        raw = getattr(before, RAW, before)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ours = self._wrapped.get(name)
            if ours is None or ours.wrapper is not wrapper or kwargs or len(args) != 1:
                return before(*args, **kwargs)
            if type(args[0]) is not int or args[0] not in self.devices() or not applies():
                return raw(*args)
            return through(raw, args[0])

        wrapper.__name__ = wrapper.__qualname__ = name
        wrapper.__doc__ = before.__doc__
        setattr(wrapper, RAW, raw)
        self._wrapped[name] = _EntryPoint(before, raw, wrapper)
        setattr(extension, name, wrapper)
