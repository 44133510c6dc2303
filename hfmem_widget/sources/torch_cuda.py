"""What PyTorch's CUDA caching allocator counts, read without ever initialising CUDA.

Each tick makes one call per device, `torch._C._cuda_memoryStats(i)`: host-side counters, no CUDA
runtime call, no synchronisation (10 µs on an H200, where `torch.cuda.memory_allocated` takes 57).
Nothing is called before the user's own code has initialised CUDA, because most of `torch.cuda` would
initialise it, or create a context, or forbid forking (pytorch#103584, accelerate#1751).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import plain

Stats = dict[str, Any]
ReadStats = Callable[[int], Stats]
ResetPeak = Callable[[int], None]

RAW: Final = "__hfmem_raw__"
"""The attribute by which a wrapped entry point gives the original."""

_STATS: Final = "_cuda_memoryStats"
_RESET: Final = "_cuda_resetPeakMemoryStats"
_ACCELERATOR_STATS: Final = "_accelerator_getDeviceStats"
_ACCELERATOR_RESET: Final = "_accelerator_resetPeakStats"

_BYTES: Final = (
    ("allocated", "allocated", "allocated_bytes", "current"),
    ("reserved", "reserved", "reserved_bytes", "current"),
    ("peak", "allocator peak", "allocated_bytes", "peak"),
    ("active", "active", "active_bytes", "current"),
    ("requested", "requested", "requested_bytes", "current"),
    ("inactive_split", "inactive, split", "inactive_split_bytes", "current"),
)
_COUNTS: Final = (
    ("alloc_retries", "allocation retries (count)", "num_alloc_retries"),
    ("ooms", "out-of-memory errors (count)", "num_ooms"),
)
_PRIVATE_POOLS: Final = ("private_pools", "reserved in private pools")

_WALK: Final = tuple((family, kind) for _, _, family, kind in _BYTES)
_COUNTERS: Final = tuple(name for _, _, name in _COUNTS)
_METRICS: Final = tuple((entry[0], entry[1]) for entry in (*_BYTES, *_COUNTS, _PRIVATE_POOLS))
_ALLOCATED, _RESERVED, _REQUESTED, _INACTIVE_SPLIT = (
    [metric for metric, _ in _METRICS].index(metric)
    for metric in ("allocated", "reserved", "requested", "inactive_split")
)
_NOTHING: Final = (NOT_AVAILABLE,) * len(_METRICS)


@dataclass(frozen=True, slots=True)
class _EntryPoint:
    """One wrapped attribute of `torch._C`: what was there, what it calls in the end, what is there now."""

    before: Callable[..., Any]
    raw: Callable[..., Any]
    wrapper: Callable[..., Any]


class CudaAllocator:
    """The only object that touches the allocator's entry points in `torch._C`.

    Python reads and resets the counters through these attributes, looked up at every call, so that
    wrapping them reaches `torch.cuda.max_memory_allocated` and its kin however they were imported.

    Parameters
    ----------
    modules : mapping of str to module
        Where torch is found once the user has imported it.
    """

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules
        self._wrapped: dict[str, _EntryPoint] = {}
        self._indices = range(0)
        self._up_in = -1

    @property
    def installed(self) -> bool:
        """Whether the entry points are wrapped."""
        return bool(self._wrapped)

    def supported(self) -> bool:
        """Return whether torch is loaded and has both of the CUDA entry points."""
        return hasattr(self._extension(), _STATS) and hasattr(self._extension(), _RESET)

    def devices(self) -> range:
        """Return the indices of the visible devices; empty until the user has initialised CUDA.

        Also empty in a forked child of a process that had: CUDA cannot be used there.
        """
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

    def other_accelerator(self) -> str | None:
        """Return what accelerator a torch without CUDA is built for ("mps", "xpu"), "" for none.

        None while torch is not there, or still being imported.
        """
        torch: Any = self._modules.get("torch")
        if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return None
        if self.supported():
            return ""
        try:
            return str(self._extension()._accelerator_getAccelerator().type)
        except (AttributeError, RuntimeError):  # a build for CPUs raises
            return ""

    def properties(self, index: int) -> Any:
        """Return an initialised device's properties: ``name``, ``uuid``, ``total_memory``."""
        return self._modules["torch"].cuda.get_device_properties(index)

    def stats(self, index: int) -> Stats:
        """Return the allocator's counters of one initialised device, past any wrapper.

        Returns
        -------
        dict
            As `torch.cuda.memory_stats_as_nested_dict`: bytes and counts.
        """
        stats: Stats = self._raw(_STATS)(index)
        return stats

    def reset_peak(self, index: int) -> None:
        """Set one initialised device's peaks to its current values, past any wrapper."""
        self._raw(_RESET)(index)

    def install(
        self,
        read: Callable[[ReadStats, int], Stats],
        reset: Callable[[ResetPeak, int], None],
    ) -> None:
        """Let the user's readings go through `read(raw, device)` and resets through `reset(raw, device)`.

        Calls made before CUDA is initialised, or with anything but a device's index, reach the
        original as they are. Nothing is initialised; installed again, the two functions are replaced.

        Raises
        ------
        SourceUnavailable
            Where this build of torch has no such entry points.
        """
        if not self.supported():
            message = "this build of torch has no CUDA memory counters, so peaks are sampled"
            raise SourceUnavailable(message)
        self.uninstall()
        self._wrap(_STATS, read)
        self._wrap(_RESET, reset)
        self._wrap(_ACCELERATOR_STATS, read, self._accelerator_is_cuda)
        self._wrap(_ACCELERATOR_RESET, reset, self._accelerator_is_cuda)

    def uninstall(self) -> None:
        """Put the originals back; where somebody has since wrapped ours, it stays and only passes on."""
        extension = self._extension()
        wrapped, self._wrapped = self._wrapped, {}
        for name, entry in wrapped.items():
            if getattr(extension, name, None) is entry.wrapper:
                setattr(extension, name, entry.before)

    def _extension(self) -> Any:
        return getattr(self._modules.get("torch"), "_C", None)

    def _raw(self, name: str) -> Callable[..., Any]:
        if name in self._wrapped:
            return self._wrapped[name].raw
        entry: Callable[..., Any] = getattr(self._extension(), name)
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


class TorchCudaSource:
    """The caching allocator's counters of every visible GPU, from the moment the user initialises CUDA.

    Parameters
    ----------
    allocator : CudaAllocator
        Where the counters are read.
    """

    name = "torch"
    blocks = False

    def __init__(self, allocator: CudaAllocator | None = None) -> None:
        self.allocator = allocator if allocator is not None else CudaAllocator()
        self.devices: tuple[Device, ...] = ()
        self.series: tuple[Series, ...] = ()
        self.notes: list[str] = []
        self._other_accelerator: str | None = None

    def uuids(self) -> tuple[str, ...] | None:
        """Return the devices' UUIDs in CUDA's own order, None until CUDA is up and has been read."""
        return tuple(device.uuid for device in self.devices) or None

    def reserved(self, uuid: str) -> float:
        """Return what the allocator has of a device right now, in bytes; 0 of one it does not know."""
        indices = self.allocator.devices()
        for index, device in enumerate(self.devices[: len(indices)]):
            if device.uuid == uuid:
                return readings(self.allocator.stats(index))[_RESERVED]
        return 0.0

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes and counts; `now` is not needed."""
        try:
            indices = self.allocator.devices()
            if len(indices) > len(self.devices):
                self._adopt(indices)
            elif not indices and self._other_accelerator is None:
                self._look_for_other_accelerator()
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._note(f"GPU memory cannot be read from torch ({plain(error)}); update torch.")
            indices = range(0)
        values: list[float] = []
        for index in indices:
            values += self._read_device(index)
        values += [NOT_AVAILABLE] * (len(self.series) - len(values))
        return values

    def close(self) -> None:
        """Nothing was opened."""

    def _read_device(self, index: int) -> Sequence[float]:
        try:
            return readings(self.allocator.stats(index))
        except Exception as error:  # noqa: BLE001  (pluggable allocators raise what they like)
            self._note(
                f"The allocator of cuda:{index} gives no figures ({plain(error)}); the other devices are "
                "read as before. PyTorch's own CUDA allocator would give them."
            )
            return _NOTHING

    def _adopt(self, indices: range) -> None:
        devices = tuple(self._device(index) for index in indices)
        # Assigned whole, series first: the poller and the user's thread may come here at the same time.
        self.series = tuple(
            Series(device.key, metric, label) for device in devices for metric, label in _METRICS
        )
        self.devices = devices

    def _device(self, index: int) -> Device:
        key = f"cuda:{index}"
        try:
            found = self.allocator.properties(index)
            name, uuid = plain(found.name), plain(getattr(found, "uuid", ""))
            # CUDA gives a MIG instance its own UUID and says in its name that it is one.
            prefix = "MIG-" if " MIG " in name else "GPU-"
            return Device(key, name, prefix + uuid if uuid else "", float(found.total_memory))
        except Exception as error:  # noqa: BLE001  (a device off the bus must not hide others)
            self._note(f"torch cannot describe {key} ({plain(error)}).")
            return Device(key, "")

    def _look_for_other_accelerator(self) -> None:
        self._other_accelerator = self.allocator.other_accelerator()
        if self._other_accelerator:
            self._note(
                f"This torch is built for {plain(self._other_accelerator)}, whose memory is not read yet; "
                "this process' own memory is. GPUs are read with a torch built for CUDA."
            )

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def readings_of_all(stats: Mapping[int, Stats]) -> dict[str, Sequence[float]]:
    """Return the values of all devices' series as `Sampler.edge` takes them; empty if none was ever used."""
    values = [value for index in sorted(stats) for value in readings(stats[index])]
    return {TorchCudaSource.name: values} if any(values) else {}


def readings(stats: Stats) -> Sequence[float]:
    """Return the values of one device's series from the allocator's counters; NaN where a key is missing."""
    try:
        # As `_WALK` has it, written out: this is read at every tick, with cold caches.
        allocated = stats["allocated_bytes"]["all"]
        values = [
            float(allocated["current"]),
            float(stats["reserved_bytes"]["all"]["current"]),
            float(allocated["peak"]),
            float(stats["active_bytes"]["all"]["current"]),
            float(stats["requested_bytes"]["all"]["current"]),
            float(stats["inactive_split_bytes"]["all"]["current"]),
            float(stats["num_alloc_retries"]),
            float(stats["num_ooms"]),
        ]
    except (KeyError, TypeError, ValueError):
        values = [_value(stats, family, "all", kind) for family, kind in _WALK]
        values += [_value(stats, name) for name in _COUNTERS]
    pools = stats.get("reserved_bytes_by_private_pools")
    if pools:
        values.append(sum((_value(pool, "all", "current") for pool in pools.values()), 0.0))
    else:
        values.append(NOT_AVAILABLE if pools is None else 0.0)
    if values[_REQUESTED] == 0.0 < values[_ALLOCATED]:
        # backend:cudaMallocAsync keeps neither of the two and says 0.
        values[_REQUESTED] = values[_INACTIVE_SPLIT] = NOT_AVAILABLE
    if min(values) >= 0.0 and max(values) < math.inf:
        return values
    return [value if 0.0 <= value < math.inf else NOT_AVAILABLE for value in values]


def _value(stats: Any, *path: str) -> float:
    try:
        for key in path:
            stats = stats[key]
        return float(stats)
    except (KeyError, TypeError, ValueError):
        return NOT_AVAILABLE
