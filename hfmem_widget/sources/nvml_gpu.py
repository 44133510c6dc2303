"""One GPU, or MIG instance, as NVML reports it, and NVML's errors as sentences."""

import math
import re
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.children import Descendants
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.procfs import Pool, ProcessIds
from hfmem_widget.sources.source import SLOWLY, Looks
from hfmem_widget.text import plain


class Fault(IntEnum):
    """The error codes of ``nvml.h`` with a sentence or a treatment of their own."""

    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18


LOST = frozenset({Fault.GPU_IS_LOST, Fault.RESET_REQUIRED})
"""The device does not answer until it is reset."""

_CLOSED: dict[int | None, str] = {
    Fault.LIBRARY_NOT_FOUND: (
        "No NVIDIA driver found. If this machine has an NVIDIA GPU, install its driver, or start the "
        "container with its GPUs."
    ),
    Fault.DRIVER_NOT_LOADED: (
        "The NVIDIA driver is installed but not running, so device memory is not shown; all other figures "
        "are. nvidia-smi, or a reboot, usually starts it."
    ),
    Fault.LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA driver was updated while running, so device memory is not shown; all other figures are. "
        "Reboot the machine to show it."
    ),
    Fault.NO_PERMISSION: (
        "No permission to query the NVIDIA driver, so device memory is not shown; all other figures are. "
        "Ask an administrator for access to /dev/nvidia*."
    ),
    None: (
        "The NVIDIA driver does not answer ({error}), so device memory is not shown; all other figures are. "
        "Run nvidia-smi for details."
    ),
}
_LOST = (
    "The driver lost {device} ({error}): its device memory ends here; "
    "other GPUs are not affected. Reset the GPU, or reboot."
)
_UNREAD: dict[int | None, str] = {
    **dict.fromkeys(LOST, _LOST),
    Fault.NOT_SUPPORTED: (
        "{device} reports no memory figures. Unless CUDA says that it shares the CPU's memory, device in use "
        "is not shown, only what torch allocates."
    ),
    Fault.NO_PERMISSION: (
        "No permission to read the memory of {device}: device in use is not shown, only what torch "
        "allocates. Ask an administrator for access."
    ),
    None: (
        "The driver does not report the memory of {device} ({error}): device in use is not shown meanwhile, "
        "only what torch allocates. Run nvidia-smi for details."
    ),
}


def code_of(error: Exception) -> int | None:
    """Return the error code that an NVML error carries; None for any other error."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else None


def why_closed(error: Exception) -> str:
    """Return why NVML cannot be used at all, in one or two plain sentences with the remedy."""
    return _CLOSED.get(code_of(error), _CLOSED[None]).format(error=plain(error))


def why_unread(device: str, error: Exception) -> str:
    """Return why one device's memory cannot be read, in one or two plain sentences with the remedy."""
    sentence = _UNREAD.get(code_of(error), _UNREAD[None])
    return sentence.format(device=device, error=plain(error))


METRICS: Final = (
    ("device_used",),
    ("driver_reserved", "driver's reserve"),
    ("process", "this process"),
    ("others",),
    ("utilization", "GPU busy (%)"),
    ("context",),
    ("children", "child processes"),
)
NOTHING: Final = (NOT_AVAILABLE,) * len(METRICS)

INTEGRATED: Final = re.compile(r"\b(GB10|Thor|Orin)\b")
"""Names of GPUs without memory of their own, for which NVML reported none (llmfit#93, #792)."""

# pynvml's structures decode text in Python at each access to a field; these fields are numbers.
_field: Final = object.__getattribute__

R = TypeVar("R")

_PEBIBYTE: Final = 2.0**50
_CONTEXT_BYTES: Final = 256 * 2.0**20


class Gpu:
    """A device's handle, description and last readings.

    The handle is None if NVML does not return it, and once the device is lost. `note` takes a sentence for
    the user, in which `label` names the device. `cuda` knows what this process' allocator has reserved on it,
    and whether it shares the machine's memory, which `pool` reads. `cpu` returns the CPU seconds of the
    calling thread: a clock would include its wait for the interpreter after a call of the driver.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        label: str,
        pids: ProcessIds,
        note: Callable[[str], None],
        *,
        cuda: AllocatorSource,
        pool: Callable[[], Pool] | None = None,
        cpu: Callable[[], float] = time.thread_time,
        descendants: Descendants | None = None,
    ) -> None:
        self.handle = handle
        self.label = label
        self.name = "NVIDIA GPU"
        self.uuid = ""
        self.total = NOT_AVAILABLE
        self.shared = 0.0
        """The bytes of the machine's memory, if the device has no other."""
        self.listed = False
        """Whether the driver lists this process on the device."""
        self.unexplained = False
        """Whether it does not, though more is in use than on an idle device: ids may differ in containers."""
        self.children: frozenset[int] | None = None
        """The processes on the device that descend from this one; None if the driver lists no processes."""
        self._nvml, self._pids, self._note = nvml, pids, note
        self._descendants = descendants or Descendants()
        self._cuda, self._cpu = cuda, cpu
        self._pool: Callable[[], Pool] | None = None
        self._process = self._others = self._busy = self._context = NOT_AVAILABLE
        self._of_children = NOT_AVAILABLE
        self._busy_due = self._idle_due = -math.inf
        self._idle: Sequence[float] = NOTHING
        self._looks = Looks()
        self._has_own = True
        if handle is not None:
            self._describe()
        is_shared = cuda.shares(self.uuid or label)
        if is_shared is None:
            is_shared = not self._has_own and INTEGRATED.search(self.name) is not None
        if is_shared and pool is not None:
            self._pool, self.uuid = pool, self.uuid or label
            self.total = self.shared = pool().total

    def read_rarely(self, now: float) -> Sequence[float]:
        """Return values at most `SLOWLY` seconds old: for a device that this process does not use."""
        if now >= self._idle_due:
            self._idle = self.read(now)
            self._idle_due = now + SLOWLY
        return self._idle

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `METRICS`; NVML's error only where NVML itself has been shut down."""
        if self.handle is None and self._pool is None:
            return NOTHING
        used = reserve = NOT_AVAILABLE
        try:
            used, reserve = self._used_and_reserve()
        except self._nvml.NVMLError as error:
            self._take(error)
        if self._looks.is_due(now, used):
            started = self._cpu()
            self._share_out(used)
            self._looks.took(now, used, self._cpu() - started)
        if now >= self._busy_due:
            busy = self._unless_missing(
                lambda: self._nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu
            )
            self._busy = _within(busy, 100)
            self._busy_due = now + SLOWLY  # the driver averages it over as long
        # Never the last values of a device that has just been lost (gpu-monitoring-tools#188).
        if self.handle is None and self._pool is None:
            return NOTHING
        of_driver = used, reserve, self._process, self._others, self._busy, self._context
        return *of_driver, self._of_children

    def _describe(self) -> None:
        nvml = self._nvml
        try:
            self.name = plain(nvml.nvmlDeviceGetName(self.handle))
            self.uuid = plain(nvml.nvmlDeviceGetUUID(self.handle))
            self.total = _within(self._memory().total, _PEBIBYTE)
        except nvml.NVMLError as error:
            # Any other fault shows in the first reading, under the label that people know.
            self._has_own = code_of(error) != Fault.NOT_SUPPORTED
            if code_of(error) in {*LOST, Fault.UNINITIALIZED}:
                self._take(error)

    def _used_and_reserve(self) -> tuple[float, float]:
        if self._pool is not None:
            return self._pool().in_use, NOT_AVAILABLE
        memory = self._memory()
        total, used = _within(_field(memory, "total"), _PEBIBYTE), _field(memory, "used")
        reserve = _field(memory, "reserved")
        unaccounted = total - _field(memory, "free") - used
        # Whether `used` includes the reserve depends on the driver (nvml-wrapper#57); the sum shows it.
        if abs(unaccounted) < abs(unaccounted - reserve):
            used -= reserve
        return _within(used, total), _within(reserve, total)

    def _memory(self) -> Any:
        nvml = self._nvml
        return nvml.nvmlDeviceGetMemoryInfo(self.handle, version=nvml.nvmlMemory_v2)

    def _share_out(self, used: float) -> None:
        reserved = self._cuda.reserved(self.uuid)
        listed = self._unless_missing(self._list)
        # Memory that was freed meanwhile would seem to be others'.
        if again := self._unless_missing(self._used_and_reserve):
            used = min(used, again[0])
        process = NOT_AVAILABLE
        if listed is not None:
            process = self._pids.bytes_in(listed)
            self.listed = not self._pids.own.isdisjoint(listed)
        # Both figures must be of one instant; else the context would vary with the allocator.
        if math.isnan(process) or reserved == self._cuda.reserved(self.uuid):
            self._context = max(process - reserved, 0.0) if process > 0 else process
        is_unlisted = math.isnan(process) and not self.listed
        self.unexplained = is_unlisted and used > _CONTEXT_BYTES and self._pool is None
        if self._pool is not None:
            process = self._pool().own + max(reserved, process)  # reserved, where it is not listed
        # Computed together with the process' share: with an older one, the others' share would jump.
        self._process, self._others = process, max(used - process, 0.0)
        self._of_children = self._bytes_of_children(listed, used)

    def _list(self) -> dict[int, float]:
        """Return the bytes of each process on the device, by id, up to the list that has this process."""
        listed: dict[int, float] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            read = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")
            try:
                processes = read(self.handle)
            except self._nvml.NVMLError:
                if kind == "Compute":
                    raise
                continue
            # A process in more than one list has the same total in each.
            listed |= {one.pid: _within(one.usedGpuMemory, self.total) for one in processes}
            if self._pids.own & listed.keys():
                break
        return listed

    def _bytes_of_children(self, listed: dict[int, float] | None, used: float) -> float:
        if listed is None:
            self.children = None
            return NOT_AVAILABLE
        others = listed.keys() - self._pids.own
        ids_are_ours = self.listed or self._pids.all_visible
        self.children = self._descendants.among(others, ids_are_ours=ids_are_ours)
        total = float(sum(listed[pid] for pid in self.children))
        if math.isnan(total) and self.children == others and self._pool is None:
            # MIG instances may list no sizes; but no other process uses the device.
            total = used - (self._process if self._process > 0 else 0.0)
        return total

    def _unless_missing(self, read: Callable[[], R]) -> R | None:
        if self.handle is None:
            return None
        try:
            return read()
        except self._nvml.NVMLError as error:
            # Without a note: MIG instances report no utilisation, and WDDM no processes.
            if code_of(error) not in {Fault.NOT_SUPPORTED, Fault.FUNCTION_NOT_FOUND}:
                self._take(error)
            return None

    def _take(self, error: Exception) -> None:
        code = code_of(error)
        if code == Fault.UNINITIALIZED:
            raise error
        if code in LOST:
            self.handle = self.children = None
        self._note(why_unread(self.label, error))


def _within(value: float | None, most: float) -> float:
    """Return a value as a float; NaN unless it is from 0 to `most` (NVML says 2**64 - 1 for unknown)."""
    return float(value) if value is not None and 0 <= value <= most else NOT_AVAILABLE
