"""An allocator's own history of allocations, recorded during a watch.

PyTorch keeps one recording for the process. The user's own is not changed, ended, or read (which adds an
event to it), except where only reading shows that it exists. Nothing here initialises a device.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Literal

from hfmem_widget.guard import warn

MOST_EVENTS = 200_000
"""Per device; older events make room. Their stacks take some 1 to 2 kB each while they are recorded."""

TRIED_STACKS = 64


@dataclass(frozen=True, slots=True)
class Recorded:
    """A snapshot of the allocator with its history, as `torch.cuda.memory._snapshot` returns it."""

    snapshot: dict[str, Any]
    began_at: float  # seconds since the epoch
    seconds: float  # the time that reading the snapshot took
    per_stack: float  # measured seconds to walk one Python stack; NaN if unknown
    most: int  # the most events per device that could be kept
    device_type: str


class TorchHistory:
    """Records from when the devices are up until `end`; keeps at most `most` events of each device."""

    device_type = ""
    entry_point = ""
    """The function in `torch._C` that begins a recording."""

    active: ClassVar[TorchHistory | None] = None
    """The history that records now, if a watch records one."""

    def __init__(
        self,
        modules: Mapping[str, ModuleType] = sys.modules,
        *,
        most: int = MOST_EVENTS,
        on_start: Callable[[], object] = lambda: None,
    ) -> None:
        self.state: Literal["waiting", "recording", "refused", "ended"] = "waiting"
        self.obstacle = ""
        self._modules = modules
        self._most = most
        self._on_start = on_start
        self._began_at = 0.0
        self._pid = os.getpid()
        self._queued: Any = None
        self._lock = threading.Lock()

    def look(self, *, imported: bool = False) -> None:
        """Begin if the devices are up, else once they are; on any thread, any number of times."""
        torch: Any = self._modules.get("torch")
        if self.state != "waiting" or torch is None:
            return
        if not imported and getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return
        extension, module = getattr(torch, "_C", None), getattr(torch, self.device_type, torch)
        if not hasattr(extension, self.entry_point):
            if not hasattr(extension, f"_{self.device_type}_memoryStats"):
                self._refuse("")  # built for other devices
            elif module.is_initialized():
                self._refuse("This torch records no stacks on XPU; use torch 2.13 or later.")
        elif module.is_initialized():
            self._begin()
        elif self._queued is None:
            # torch calls it when it initialises the devices.
            self._queued = self._devices_come_up
            module._lazy_call(self._queued)

    def end(self) -> Recorded | None:
        """End the recording and return it; None where nothing was recorded."""
        with self._lock:
            state, self.state = self.state, "ended"
        if state == "recording":
            try:
                return self._take()
            finally:
                TorchHistory.active = None
        if state == "waiting":
            self._leave_queue()
        return None

    def _begin(self) -> None:
        # A forked child inherits the queue, but not the watch.
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self.state != "waiting":
                return
            self.obstacle = self._why_not() or self._start()
            self.state = "refused" if self.obstacle else "recording"
        if self.state == "recording":
            TorchHistory.active = self
            self._on_start()

    def _is_on(self) -> bool:
        """Return whether torch records for anybody, as far as known; called once the devices are up."""
        raise NotImplementedError

    def _why_not(self) -> str:
        """Return why nothing may or can be recorded, as a sentence; empty if it can."""
        if not self._is_on():
            return ""
        if TorchHistory.active is not None:
            return "A watch around this one already records stacks."
        return (
            "Your code is recording allocation history itself. To see stacks here, end that first: "
            f"torch.{self.device_type}.memory._record_memory_history(enabled=None)."
        )

    def _start(self) -> str:
        memory = self._module().memory
        wanted = {"context": "alloc", "stacks": "python", "max_entries": self._most}
        # The private function has the real signature; without this parameter it clears by itself.
        behind = getattr(memory, "_record_memory_history_impl", memory._record_memory_history)
        if "clear_history" in inspect.signature(behind).parameters:
            wanted["clear_history"] = True
        try:
            memory._record_memory_history("all", **wanted)
        except RuntimeError as error:
            return f"The allocator records no allocation history ({error})."
        self._began_at = time.time()
        return ""

    def _take(self) -> Recorded | None:
        torch: Any = self._modules["torch"]
        if not self._is_on():
            self.obstacle = "Your code ended the recording, so there is nothing to show."
            return None
        try:
            per_stack = _seconds_of_a_stack(torch)
            began = time.perf_counter()
            snapshot = self._module().memory._snapshot()
            seconds = time.perf_counter() - began
        finally:
            # Only if we began it: this call alone leaves hooks behind (pytorch#153571).
            self._module().memory._record_memory_history(enabled=None)
        return Recorded(snapshot, self._began_at, seconds, per_stack, self._most, self.device_type)

    def _refuse(self, obstacle: str) -> None:
        with self._lock:
            if self.state == "waiting":
                self.state, self.obstacle = "refused", obstacle

    def _devices_come_up(self) -> None:
        # An exception here would be torch's "CUDA call failed lazily", in the user's code; so for XPU.
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001
            self._refuse(f"Stacks could not be recorded ({type(error).__name__}: {error}).")
            warn(self.obstacle)

    def _leave_queue(self) -> None:
        module = getattr(self._modules.get("torch"), self.device_type, None)
        lock = getattr(module, "_initialization_lock", None)
        calls = getattr(module, "_queued_calls", None)
        # Never while another thread goes through the queue. A call that stays in it does nothing.
        if self._queued is not None and lock and calls and lock.acquire(blocking=False):
            try:
                calls[:] = [call for call in calls if call[0] is not self._queued]
            finally:
                lock.release()

    def _module(self) -> Any:
        return getattr(self._modules["torch"], self.device_type)


class CudaHistory(TorchHistory):
    """The history of `CudaAllocator`."""

    device_type = "cuda"
    entry_point = "_cuda_record_memory_history"

    def _is_on(self) -> bool:
        torch: Any = self._modules["torch"]
        return bool(torch._C._cuda_isHistoryEnabled())

    def _why_not(self) -> str:
        if backend_of(self._modules["torch"]) == "cudaMallocAsync":
            return (
                "cudaMallocAsync records no allocation history. Remove "
                "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync to record stacks."
            )
        return super()._why_not()


class XpuHistory(TorchHistory):
    """The history of `XpuAllocator`, in the same format (torch/csrc/xpu/Module.cpp, torch 2.13)."""

    device_type = "xpu"
    entry_point = "_xpu_recordMemoryHistory"

    def _is_on(self) -> bool:
        # torch has no function that reports it. A snapshot leaves an event in a recording, and the next
        # snapshot shows it: in the user's own recording up to two such events remain. Our own recording is
        # not read for this: if the user has ended it, it is shown as empty.
        snapshot = self._module().memory._snapshot
        return bool(self.active) or any(any(snapshot()["device_traces"]) for _ in range(2))


def backend_of(torch: Any) -> str:
    """Return the allocator's name, such as "native"; empty if it has none."""
    try:
        return str(torch.cuda.get_allocator_backend())
    except Exception:  # noqa: BLE001  (an allocator of the user's own may not have a name)
        return ""


def _seconds_of_a_stack(torch: Any) -> float:
    """Return the seconds to walk one Python stack from here, as the allocator walks it."""
    try:
        gather = torch._C._profiler.gather_traceback
        began = time.perf_counter()
        for _ in range(TRIED_STACKS):
            gather(python=True, script=True, cpp=False)
        return (time.perf_counter() - began) / TRIED_STACKS
    except (AttributeError, TypeError, RuntimeError):
        return float("nan")
