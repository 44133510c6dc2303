"""The CUDA allocator's own history of allocations, recorded for the time of a watch.

PyTorch keeps one recording for the process. The user's own is left alone: not read (reading leaves an event
in it), not changed, not ended. Nothing here initialises CUDA: where the user's code has not done so yet, the
recording begins the moment it does, before the first allocation.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ClassVar, Literal

from hfmem_widget.guard import warn
from hfmem_widget.sources.allocator import Recorded

MOST_EVENTS = 200_000
"""Per device; older ones make room. Their stacks take some 1 to 2 kB each while they are recorded."""

TRIED_STACKS = 64


class CudaHistory:
    """The `History` of `CudaAllocator`: records from the moment CUDA is up until it is ended.

    torch is found in `modules` once the user has imported it. At `most` so many events per device are kept.
    """

    _active: ClassVar[CudaHistory | None] = None

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
        """Begin if CUDA is up, else have it begin with CUDA; on any thread, any number of times."""
        torch: Any = self._modules.get("torch")
        if self.state != "waiting" or torch is None:
            return
        if not imported and getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return
        if not hasattr(getattr(torch, "_C", None), "_cuda_record_memory_history"):
            self._refuse("")  # built without CUDA
        elif torch.cuda.is_initialized():
            self._begin()
        elif self._queued is None and hasattr(torch.cuda, "_lazy_call"):
            # torch calls it when it initialises CUDA; where it cannot, the next look will see that.
            self._queued = self._cuda_comes_up
            torch.cuda._lazy_call(self._queued)

    def end(self) -> Recorded | None:
        """End the recording and return it; None where nothing was recorded."""
        with self._lock:
            state, self.state = self.state, "ended"
        if state == "recording":
            CudaHistory._active = None
            return self._take()
        if state == "waiting":
            self._leave_queue()
        return None

    def _begin(self) -> None:
        # A forked child inherits the queue for CUDA, but not the watch.
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self.state != "waiting":
                return
            self.obstacle = self._why_not() or self._start()
            self.state = "refused" if self.obstacle else "recording"
        if self.state == "recording":
            CudaHistory._active = self
            self._on_start()

    def _why_not(self) -> str:
        """Return why nothing may or can be recorded, as a sentence; empty if it can."""
        torch: Any = self._modules["torch"]
        if backend_of(torch) == "cudaMallocAsync":
            return (
                "cudaMallocAsync records no allocation history. Remove "
                "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync to record stacks."
            )
        if not torch._C._cuda_isHistoryEnabled():
            return ""
        if CudaHistory._active is not None:
            return "A watch around this one already records stacks."
        return (
            "Your code is recording allocation history itself. To see stacks here, end that first: "
            "torch.cuda.memory._record_memory_history(enabled=None)."
        )

    def _start(self) -> str:
        memory = self._modules["torch"].cuda.memory
        wanted = {"context": "alloc", "stacks": "python", "max_entries": self._most}
        # The function behind the public name has the real signature: what this version of torch knows.
        behind = getattr(memory, "_record_memory_history_impl", memory._record_memory_history)
        known = inspect.signature(behind).parameters
        if not set(wanted) <= set(known):
            return "This torch records stacks in an older format; use torch 2.4 or later."
        if "clear_history" in known:
            wanted["clear_history"] = True
        try:
            memory._record_memory_history("all", **wanted)
        except RuntimeError as error:
            return f"The allocator records no allocation history ({error})."
        self._began_at = time.time()
        return ""

    def _take(self) -> Recorded | None:
        torch: Any = self._modules["torch"]
        if not torch._C._cuda_isHistoryEnabled():
            self.obstacle = "Your code ended the recording, so there is nothing to show."
            return None
        try:
            per_stack = _seconds_of_a_stack(torch)
            began = time.perf_counter()
            snapshot = torch.cuda.memory._snapshot()
            seconds = time.perf_counter() - began
        finally:
            # Only if we began it: this call alone leaves hooks behind (pytorch#153571).
            torch.cuda.memory._record_memory_history(enabled=None)
        return Recorded(snapshot, self._began_at, seconds, per_stack, self._most, "cuda")

    def _refuse(self, obstacle: str) -> None:
        with self._lock:
            if self.state == "waiting":
                self.state, self.obstacle = "refused", obstacle

    def _cuda_comes_up(self) -> None:
        # An exception here would be torch's "CUDA call failed lazily", in the user's code.
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001
            self._refuse(f"Stacks could not be recorded ({type(error).__name__}: {error}).")
            warn(self.obstacle)

    def _leave_queue(self) -> None:
        cuda = getattr(self._modules.get("torch"), "cuda", None)
        lock = getattr(cuda, "_initialization_lock", None)
        calls = getattr(cuda, "_queued_calls", None)
        # Never while another thread goes through the queue. What stays in it does nothing any more.
        if self._queued is not None and lock and calls and lock.acquire(blocking=False):
            try:
                calls[:] = [call for call in calls if call[0] is not self._queued]
            finally:
                lock.release()


def backend_of(torch: Any) -> str:
    """Return the allocator's name, such as "native"; empty where it has none."""
    try:
        return str(torch.cuda.get_allocator_backend())
    except Exception:  # noqa: BLE001  (an allocator of the user's own may not have a name)
        return ""


def _seconds_of_a_stack(torch: Any) -> float:
    """Return how long one Python stack takes to walk from here, as the allocator walks them."""
    gather = getattr(getattr(torch._C, "_profiler", None), "gather_traceback", None)
    if gather is None:
        return float("nan")
    try:
        began = time.perf_counter()
        for _ in range(TRIED_STACKS):
            gather(python=True, script=True, cpp=False)
        return (time.perf_counter() - began) / TRIED_STACKS
    except (TypeError, RuntimeError):
        return float("nan")
