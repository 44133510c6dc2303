"""What PyTorch's caching allocators have in common, used without ever initialising a device.

torch names the entry points of each type of device in one way. Reading takes 10 µs on an H200: host-side
counters, no call of the device's runtime, no synchronisation. Nothing is called before the user's own code
has initialised the device, because most of `torch.cuda` and its kin would initialise it, or create a context,
or forbid forking (pytorch#103584, accelerate#1751).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.session import Device
from hfmem_widget.sources.allocator import Allocator, RanOut, ReadStats, ResetPeak, Stats
from hfmem_widget.sources.torch_history import TorchHistory
from hfmem_widget.text import plain
from hfmem_widget.unseen import OVER, unseen

RAW: Final = "__hfmem_raw__"
"""The attribute by which a wrapped entry point gives the original."""


class _EntryPoint(NamedTuple):
    """A wrapped attribute of `torch._C`: the function before, the original, and the wrapper."""

    before: Callable[..., Any]
    raw: Callable[..., Any]
    wrapper: Callable[..., Any]


class TorchAllocator(Allocator):
    """The base of those allocators that touch the entry points in torch.

    Python reads and resets the counters through attributes of `torch._C`, looked up at every call, so that
    wrapping them reaches `torch.cuda.max_memory_allocated` and its kin however they were imported. Calls made
    before the device is initialised, or with anything but a device's index, reach the original as they are.
    torch is found in `modules` once the user has imported it.
    """

    device_type = ""
    integrated = "is_integrated"
    """The property of a device that says whether it is a part of the processor, without memory of its own."""

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules
        self._stats = f"_{self.device_type}_memoryStats"
        self._reset = f"_{self.device_type}_resetPeakMemoryStats"
        self._wrapped: dict[str, _EntryPoint] = {}
        self._indices = range(0)
        self._up_in = -1

    @property
    def installed(self) -> bool:
        """Whether the entry points are wrapped by this very object."""
        return bool(self._wrapped)

    def supported(self) -> bool:
        """Return whether torch is loaded and has both of the entry points."""
        return hasattr(self._extension(), self._stats) and hasattr(self._extension(), self._reset)

    def other_accelerator(self) -> str | None:
        """Return the device type of a torch without these devices, "" for none; None while it loads."""
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
        """Return the indices of the visible devices; empty until the user has initialised them."""
        # Once up, CUDA stays up in the process that initialised it; asking torch each time costs 10 µs.
        if self._up_in == os.getpid():
            return self._indices
        module = getattr(self._modules.get("torch"), self.device_type, None)
        is_initialized = getattr(module, "is_initialized", None)
        if is_initialized is None or not is_initialized():
            return range(0)
        # Not `torch.cuda.device_count`, which parses CUDA_VISIBLE_DEVICES anew through NVML.
        count = getattr(self._extension(), f"_{self.device_type}_getDeviceCount")
        self._indices = range(int(count()))
        self._up_in = os.getpid()
        return self._indices

    def device(self, index: int) -> Device:
        """Return what an initialised device is, as the driver's library names it."""
        properties = self._module().get_device_properties(index)
        name, uuid = plain(properties.name), plain(getattr(properties, "uuid", ""))
        total = float(properties.total_memory)
        shared = self._shared(properties)
        return Device(f"{self.device_type}:{index}", name, uuid, total, shared=shared)

    def _shared(self, properties: Any) -> float:
        """Return what a device may have of the machine's memory, in bytes; 0 where it has its own."""
        is_integrated = getattr(properties, self.integrated, False)
        return float(properties.total_memory) if is_integrated else 0.0

    def free_and_total(self, index: int) -> tuple[float, float] | None:
        """Return the device's free and total bytes, as its driver counts them."""
        free, total = self._module().mem_get_info(index)
        return float(free), float(total)

    def stats(self, index: int) -> Stats:
        """Return the counters of one initialised device, past any wrapper."""
        stats: Stats = self._raw(self._stats)(index)
        return stats

    def reset_peak(self, index: int) -> None:
        """Set one initialised device's peaks to its current values, past any wrapper."""
        self._raw(self._reset)(index)

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the segments, copied under the allocator's lock: no call of the device's runtime."""
        if quick and TorchHistory.active is not None:
            message = "this torch lists its segments only together with their history"
            raise SourceUnavailable(message)
        try:
            segments: Sequence[Mapping[str, Any]] = self._module().memory_snapshot()
        except (AttributeError, RuntimeError) as error:
            raise SourceUnavailable(plain(error)) from error
        return segments

    def observe(self, ran_out: RanOut) -> None:
        """Attach an observer for good, once the device is up: before, this would initialise it."""
        name = f"_{self.device_type}_attach_out_of_memory_observer"
        attach = getattr(self._extension(), name, None)
        if attach is not None and self.devices():
            with contextlib.suppress(Exception):  # backend:cudaMallocAsync has no observers
                attach(ran_out)

    def autocast(self) -> bool:
        """Return whether autocast is on for these devices on the calling thread."""
        torch: Any = self._modules["torch"]
        return bool(torch.is_autocast_enabled(self.device_type))

    def empty_cache(self) -> None:
        """Return cached memory to the driver; torch does nothing where the devices are not up."""
        self._module().empty_cache()

    def install(
        self, read: Callable[[ReadStats, int], Stats], reset: Callable[[ResetPeak, int], None]
    ) -> None:
        """Let the user's readings and resets go through two functions."""
        if not self.supported():
            kind = self.device_type.upper()
            message = f"this build of torch has no {kind} memory counters, so peaks are sampled"
            raise SourceUnavailable(message)
        self.uninstall()
        self._wrap(self._stats, read)
        self._wrap(self._reset, reset)
        self._wrap("_accelerator_getDeviceStats", read, self._is_the_accelerator)
        self._wrap("_accelerator_resetPeakStats", reset, self._is_the_accelerator)
        # Every step calls them three times, with cold caches: what they would call takes their places.
        vars(self).update(reset_peak=self._raw(self._reset))
        if type(self).stats is TorchAllocator.stats:
            vars(self).update(stats=self._raw(self._stats))

    def uninstall(self) -> None:
        """Put the originals back; where somebody has since wrapped ours, it stays and only passes on."""
        extension = self._extension()
        for name in ("stats", "reset_peak"):
            vars(self).pop(name, None)
        wrapped, self._wrapped = self._wrapped, {}
        for name, entry in wrapped.items():
            if getattr(extension, name, None) is entry.wrapper:
                setattr(extension, name, entry.before)

    def _module(self) -> Any:
        return getattr(self._modules["torch"], self.device_type)

    def _extension(self) -> Any:
        return getattr(self._modules.get("torch"), "_C", None)

    def _raw(self, name: str) -> Any:
        if name in self._wrapped:
            return self._wrapped[name].raw
        entry = getattr(self._extension(), name)
        return getattr(entry, RAW, entry)

    def _is_the_accelerator(self) -> bool:
        # A registered PrivateUse1 backend comes before CUDA as "the accelerator" of torch.accelerator.
        return bool(self._extension()._accelerator_getAccelerator().type == self.device_type)

    def _wrap(
        self,
        name: str,
        through: Callable[[Callable[..., Any], int], Any],
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        extension = self._extension()
        before: Callable[..., Any] | None = getattr(extension, name, None)
        if before is None:
            return
        raw: Callable[..., Any] = getattr(before, RAW, before)

        def chosen(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
            ours = self._wrapped.get(name)
            if ours is None or ours.wrapper is not wrapper or kwargs or len(args) != 1:
                return before
            if type(args[0]) is not int or args[0] not in self.devices() or not applies():
                return raw
            return functools.partial(through, raw)

        @unseen
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return chosen(args, kwargs)(*args, **kwargs)
            finally:
                OVER  # noqa: B018

        wrapper.__name__ = wrapper.__qualname__ = name
        wrapper.__doc__ = before.__doc__
        setattr(wrapper, RAW, raw)
        self._wrapped[name] = _EntryPoint(before, raw, wrapper)
        setattr(extension, name, wrapper)
