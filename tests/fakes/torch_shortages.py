"""As much of torch as runs out of CUDA memory: counters, blocks, observers called before the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

Observer = Callable[[int, int, int, int], None]

FAMILIES = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
    "active",
    "inactive_split",
)


class FakeCuda:
    """A torch with CUDA, one device of 80 GiB, and blocks as a test wants them.

    Attributes
    ----------
    observers : list of callable
        What was attached.
    snapshots : int
        How often the blocks were looked at.
    """

    def __init__(
        self,
        segments: Sequence[dict[str, Any]] = (),
        *,
        initialized: bool = True,
        can_observe: bool = True,
        old: bool = False,
    ) -> None:
        self.observers: list[Observer] = []
        self.snapshots = 0
        self.initialized = initialized
        self.recording = False
        self.stats: dict[str, Any] = {name: {"all": {"current": 0}} for name in FAMILIES}
        self._segments = list(segments)
        self._old = old
        extension = SimpleNamespace(
            _cuda_memoryStats=lambda _device: self.stats,
            _cuda_isHistoryEnabled=lambda: self.recording,
        )
        if can_observe:
            extension._cuda_attach_out_of_memory_observer = self.observers.append
        self.extension = extension
        module: Any = ModuleType("torch")
        module._C = extension
        module.cuda = SimpleNamespace(
            is_initialized=lambda: self.initialized,
            memory_snapshot=self._old_snapshot if old else self._snapshot,
            get_device_properties=lambda _device: SimpleNamespace(
                total_memory=80 << 30, major=9, minor=0
            ),
        )
        module.is_autocast_enabled = lambda *_device: False
        self.modules: dict[str, ModuleType] = {"torch": module}

    def run_out(self, asked: int = 2 << 30, free: int = 1 << 30, ceiling: int = 80 << 30) -> None:
        """Call the observers, as the allocator does before it raises."""
        for observer in self.observers:
            observer(0, asked, ceiling, free)

    def _snapshot(self, *, include_traces: bool) -> list[dict[str, Any]]:
        assert not include_traces
        self.snapshots += 1
        return self._segments

    def _old_snapshot(self) -> list[dict[str, Any]]:
        self.snapshots += 1
        return self._segments
