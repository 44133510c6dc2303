"""A torch whose allocator keeps a history: the part of it that `TorchHistory` uses.

For XPU after torch/xpu/{__init__,memory}.py of torch 2.13, torch/csrc/xpu/Module.cpp and
c10/xpu/XPUCachingAllocator.cpp.
"""

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

ENTRY_POINTS = {"cuda": "_cuda_record_memory_history", "xpu": "_xpu_recordMemoryHistory"}


class FakeTorch(ModuleType):
    """Torch with a device that may not be up yet."""

    def __init__(
        self,
        kind: str = "cuda",  # or "xpu", where no function tells whether a recording is on
        *,
        initialized: bool = True,
        backend: str = "native",
        knows_clearing: bool = True,  # of ``clear_history``
    ) -> None:
        super().__init__("torch")
        self.kind = kind
        self.calls: list[tuple[str, Any]] = []  # that touch the recording
        self.recording = False
        self.initialized = initialized
        self.snapshot: dict[str, Any] = {"segments": [], "device_traces": [[]]}
        entry_points: dict[str, Any] = {
            f"_{kind}_getDeviceCount": lambda: 1,
            f"_{kind}_memoryStats": None,
            ENTRY_POINTS[kind]: None,
        }
        if kind == "cuda":
            entry_points["_cuda_isHistoryEnabled"] = lambda: self.recording
        profiler = SimpleNamespace(gather_traceback=lambda **_: None)
        self._C = SimpleNamespace(**entry_points, _profiler=profiler)
        memory = SimpleNamespace(
            _record_memory_history=self._record,
            _record_memory_history_impl=_new if knows_clearing else _old,
            _snapshot=self._take_snapshot,
        )
        self.module = SimpleNamespace(
            is_initialized=lambda: self.initialized,
            get_allocator_backend=lambda: backend,
            memory=memory,
            _initialization_lock=threading.Lock(),
            _queued_calls=[],
            _lazy_call=self._lazy_call,
        )
        setattr(self, kind, self.module)

    def initialize(self) -> None:
        """Initialise the device as torch does: run the waiting calls, then report it as initialised."""
        for call, _ in self.module._queued_calls:
            call()
        self.initialized = True

    def alloc(self, address: int, size: int) -> None:
        """Allocate a block, and record it in the history if that is on."""
        frames = [{"filename": "a.py", "line": 1, "name": "f"}]
        if self.recording:
            event = {"action": "alloc", "addr": address, "size": size, "frames": frames}
            self.snapshot["device_traces"][0].append(event | {"time_us": 1})
        block: dict[str, Any] = {"address": address, "size": size, "requested_size": size}
        block["state"] = "active_allocated"
        self.snapshot["segments"].append({"device": 0, "address": address, "blocks": [block]})

    def _lazy_call(self, call: Callable[[], object]) -> None:
        self.module._queued_calls.append((call, []))

    def _record(self, enabled: str | None = "all", **options: Any) -> None:
        self.calls.append(("record", (enabled, options)))
        self.recording = enabled is not None
        if self.kind == "xpu" and not (self.recording and not options.get("clear_history")):
            self.snapshot["device_traces"][0].clear()

    def _take_snapshot(self) -> dict[str, Any]:
        self.calls.append(("snapshot", None))
        if self.kind == "cuda":
            return self.snapshot
        (trace,) = self.snapshot["device_traces"]
        copy = {**self.snapshot, "device_traces": [list(trace)]}
        if self.recording:  # after the events were copied
            trace.append({"action": "snapshot", "addr": 0, "size": 0, "time_us": 1})
        return copy


def _old(enabled: Any, *, context: Any, stacks: Any, max_entries: Any) -> None:
    """Have the older signature, as far as it matters."""


def _new(enabled: Any, *, context: Any, stacks: Any, max_entries: Any, clear_history: Any) -> None:
    """Have today's signature, as far as it matters."""
