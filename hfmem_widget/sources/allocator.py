"""The interface to PyTorch's caching allocators, which never initialises a device.

Reading takes 10 µs on an H200: host-side counters, no call of the device's runtime, no synchronisation.
Nothing is called before the user's own code has initialised the device: most of `torch.cuda` would initialise
it, or create a context, or forbid forking (pytorch#103584, accelerate#1751).
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Final, NamedTuple

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.session import Device
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.torch_history import TorchHistory
from hfmem_widget.text import plain
from hfmem_widget.unseen import OVER, unseen

Stats = dict[str, Any]
"""An allocator's counters, as `torch.cuda.memory_stats_as_nested_dict` returns them: bytes and counts."""

ReadStats = Callable[[int], Stats]
ResetPeak = Callable[[int], None]
RanOut = Callable[[int, int, int, int], None]
"""Takes a device's index, and bytes: asked for, usable by this process, free on the device."""


class Reading(NamedTuple):
    """One device's counters at one instant, in bytes and counts; NaN for a counter that is not kept.

    Dozens of dictionaries in `Stats`, if kept, would make Python collect garbage twice as often.
    """

    allocated: float
    reserved: float
    peak: float  # of allocated
    active: float
    requested: float
    inactive_split: float
    alloc_retries: float
    ooms: float
    private_pools: float  # reserved in private pools
    peak_reserved: float
    peak_active: float
    peak_requested: float
    allocations: float  # ever made
    in_use: bool  # whether this process has anything there, or had since its peaks were reset


def reading_of(stats: Stats) -> Reading:
    """Return the reading of some counters; NaN for a counter that this torch lacks."""
    pools = stats.get("reserved_bytes_by_private_pools")
    private = NOT_AVAILABLE if pools is None else 0.0
    if pools:
        private = sum((_value(pool, "all", "current") for pool in pools.values()), 0.0)
    try:
        # Written out, without a call for each field: this runs at every edge, with cold caches.
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        active, requested = stats["active_bytes"]["all"], stats["requested_bytes"]["all"]
        return Reading(
            allocated["current"],
            reserved["current"],
            allocated["peak"],
            active["current"],
            requested["current"],
            stats["inactive_split_bytes"]["all"]["current"],
            stats["num_alloc_retries"],
            stats["num_ooms"],
            private,
            reserved["peak"],
            active["peak"],
            requested["peak"],
            stats["allocation"]["all"]["allocated"],
            reserved["peak"] > 0,
        )
    except (KeyError, TypeError):
        counts = {name: _value(stats, name) for name in ("num_alloc_retries", "num_ooms")}
        completed: Stats = {**stats, **counts}
        figures = ("current", "peak", "allocated")
        pools = ("allocated", "reserved", "active", "requested", "inactive_split")
        for name in ("allocation", *map("{}_bytes".format, pools)):
            completed[name] = {"all": {each: _value(stats, name, "all", each) for each in figures}}
        return reading_of(completed)


def _value(stats: Any, *path: str) -> float:
    try:
        for key in path:
            stats = stats[key]
        return float(stats)
    except (KeyError, TypeError, ValueError):
        return NOT_AVAILABLE


RAW: Final = "__hfmem_raw__"
"""The attribute by which a wrapped entry point gives the original."""


class Allocator:
    """The caching allocator of one type of device: the only object that calls its entry points in torch.

    The methods here fit any `device_type` whose functions in torch are named as CUDA's (ROCm is "cuda").
    An allocator of another type must have:

    - `devices`, `device`, and `stats` with at least ``allocated_bytes`` and ``reserved_bytes`` (``all``:
      ``current``, ``peak``). A counter that is missing is shown as not available.
    - For exact peaks: `reset_peak`, which sets every ``peak`` to its ``current``; the count
      ``allocation.all.allocated``, without which peaks are lower bounds; and `install`. An allocator that
      cannot reset its peaks leaves the ``peak`` keys out.

    Every method may be called before torch is imported or the device is initialised, except those that take
    an index. None initialises a device, creates a context, synchronises, or allocates on it. `stats`,
    `reset_peak`, `devices` and `opened` run at every tick and every edge: at most some 10 µs each.

    The user's code reads and resets counters through attributes of `torch._C`, looked up at every call.
    Once these are wrapped, calls before the device is initialised, or with anything but a device's index,
    reach the original unchanged. torch is found in `modules`. At most one allocator has devices.
    """

    device_type = ""
    """As `torch.device.type`: the part of a device's key before the colon."""
    integrated = "is_integrated"
    """The property of a device that is true if the device is a part of the processor, without own memory."""
    recording: ClassVar[type[TorchHistory] | None] = None
    """The class that records its history; None if torch cannot record it."""

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules
        self._stats = f"_{self.device_type}_memoryStats"
        self._reset = f"_{self.device_type}_resetPeakMemoryStats"
        self.installed = False
        """Whether this object has wrapped the entry points for peaks, as far as torch has them."""
        # By entry point: the function that was there before, and the wrapper.
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._indices = range(0)
        self._up_in = -1

    def supported(self) -> bool:
        """Return whether torch is loaded and built for this type of device."""
        return hasattr(self._extension(), self._stats) and hasattr(self._extension(), self._reset)

    def other_accelerator(self) -> str | None:
        """Return the type torch is built for if not this one; "" for none, None until it is imported."""
        torch: Any = self._modules.get("torch")
        if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return None
        if self.supported():
            return ""
        try:
            return str(self._extension()._accelerator_getAccelerator().type)  # noqa: SLF001  (it has no public name)
        except (AttributeError, RuntimeError):  # a build for CPUs raises
            return ""

    def key(self, index: int) -> str:
        """Return a device's key, such as "cuda:0"."""
        return f"{self.device_type}:{index}"

    def devices(self) -> range:
        """Return the indices of the devices; empty until the user's code initialises them, and in a fork."""
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

    def opened(self) -> Sequence[int]:
        """Return the `devices` on which this process can have memory, in order; all if that is unknown."""
        return self.devices()

    def device(self, index: int) -> Device:
        """Describe an initialised device, named as by the driver's library; raises what torch raises."""
        properties = self._module().get_device_properties(index)
        name, uuid = plain(properties.name), plain(getattr(properties, "uuid", ""))
        total = float(properties.total_memory)
        shared = self._shared(properties)
        return Device(self.key(index), name, uuid, total, shared=shared)

    def _shared(self, properties: Any) -> float:
        """Return the bytes of the machine's memory that a device can have; 0 if it has its own memory."""
        is_integrated = getattr(properties, self.integrated, False)
        return float(properties.total_memory) if is_integrated else 0.0

    def capability(self, index: int) -> tuple[int, ...]:
        """Return an initialised device's compute capability; empty for a type of device without one."""
        return ()

    def free_and_total(self, index: int) -> tuple[float, float] | None:
        """Return a device's free and total bytes, which may block; None if not open, or read elsewhere."""
        free, total = self._module().mem_get_info(index)
        return float(free), float(total)

    def processes(self, index: int) -> Mapping[int, float] | None:
        """Return the bytes of each process on a device, or None; may take some ms, and raise anything."""
        return None

    def busy(self, index: int) -> float:
        """Return a device's utilisation in percent; NaN if unknown."""
        return NOT_AVAILABLE

    def stats(self, index: int) -> Stats:
        """Return a new dictionary of an initialised device's counters, past any wrapper."""
        stats: Stats = self._raw(self._stats)(index)
        return stats

    def reset_peak(self, index: int) -> None:
        """Set the peaks of an initialised device to their current values, past any wrapper."""
        self._raw(self._reset)(index)

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the segments of all initialised devices, as `torch.cuda.memory_snapshot` does.

        Raises `SourceUnavailable` where the allocator keeps no list of segments, or does not return it; with
        `quick` also where torch would copy the recorded history too, which takes seconds.
        """
        try:
            segments: Sequence[Mapping[str, Any]] = self._module().memory_snapshot()
        except (AttributeError, RuntimeError) as error:
            raise SourceUnavailable(plain(error)) from error
        return segments

    def observe(self, ran_out: RanOut) -> None:
        """Have torch call `ran_out` before each out-of-memory error; torch cannot undo this.

        `ran_out` is called on the thread that asked for memory, and must not raise. Without effect before the
        devices are initialised, and where the allocator cannot be observed.
        """
        name = f"_{self.device_type}_attach_out_of_memory_observer"
        attach = getattr(self._extension(), name, None)
        if attach is not None and self.devices():
            with contextlib.suppress(Exception):  # backend:cudaMallocAsync has no observers
                attach(ran_out)

    def history(self, on_start: Callable[[], object]) -> TorchHistory | None:
        """Return a recording that a `look` begins, which calls `on_start`; None if torch cannot record."""
        return None if self.recording is None else self.recording(self._modules, on_start=on_start)

    def autocast(self) -> bool | None:
        """Return whether autocast is on for these devices on the calling thread; None where unknown."""
        torch: Any = self._modules["torch"]
        return bool(torch.is_autocast_enabled(self.device_type))

    def empty_cache(self) -> None:
        """Return cached memory to the driver. This slows the user's code: for `features.free.api` alone."""
        self._module().empty_cache()

    def install(
        self, read: Callable[[ReadStats, int], Stats], reset: Callable[[ResetPeak, int], None]
    ) -> None:
        """Pass the user's readings through `read(raw, index)`, and resets through `reset(raw, index)`."""
        self.uninstall()
        if hasattr(self._extension(), self._stats):  # else there is no peak to read or reset
            self._wrap(self._stats, read)
            self._wrap(self._reset, reset)
            self._wrap("_accelerator_getDeviceStats", read, self._is_the_accelerator)
            self._wrap("_accelerator_resetPeakStats", reset, self._is_the_accelerator)
            # Every step calls both three times, with cold caches: torch's functions replace our methods.
            vars(self).update(reset_peak=self._raw(self._reset))
            if type(self).stats is Allocator.stats:
                vars(self).update(stats=self._raw(self._stats))
        self.installed = True

    def uninstall(self) -> None:
        """Restore the original entry points; a wrapper that others have wrapped only passes calls on."""
        extension, self.installed = self._extension(), False
        for name in ("stats", "reset_peak"):
            vars(self).pop(name, None)
        wrapped, self._wrapped = self._wrapped, {}
        for name, (before, wrapper) in wrapped.items():
            if getattr(extension, name, None) is wrapper:
                setattr(extension, name, before)

    def _module(self) -> Any:
        return getattr(self._modules["torch"], self.device_type)

    def _extension(self) -> Any:
        return getattr(self._modules.get("torch"), "_C", None)

    def _raw(self, name: str) -> Any:
        entry = (
            self._wrapped[name][1] if name in self._wrapped else getattr(self._extension(), name)
        )
        return getattr(entry, RAW, entry)

    def _is_the_accelerator(self) -> bool:
        # A registered PrivateUse1 backend comes before CUDA as "the accelerator" of torch.accelerator.
        return bool(self._extension()._accelerator_getAccelerator().type == self.device_type)  # noqa: SLF001  (as above)

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
            if self._wrapped.get(name) != (before, wrapper) or kwargs or len(args) != 1:
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
        self._wrapped[name] = before, wrapper
        setattr(extension, name, wrapper)


@dataclass(frozen=True, slots=True)
class Instant:
    """Readings taken at one instant, so that a sample of that instant need not read again."""

    allocator: Allocator | None
    readings: Mapping[int, Reading]  # of the opened devices, in the order of their indices
    held: Sequence[float] | None = None  # the values of `TensorSource`
