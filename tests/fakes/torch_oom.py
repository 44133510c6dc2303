"""The part of torch that runs out of CUDA memory: counters, blocks, observers called before the error."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

Observer = Callable[[int, int, int, int], None]

AUTOGRADS = b"pt_autograd_0"
"""How torch names the thread on which autograd works for the first device."""

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NAME, _PR_GET_NAME = 15, 16


def run_on_a_thread_of_c(run: Callable[[], object], name: bytes = AUTOGRADS) -> None:
    """Call a function on a thread that C has made, without a Python frame below it, and wait for it.

    What is called begins with no caller if it is itself of C, such as a `functools.partial`.
    """
    routine = ctypes.CFUNCTYPE(ctypes.c_void_p)(run)
    thread, before = ctypes.c_ulong(), ctypes.create_string_buffer(16)
    # A thread is called as the one that made it.
    _libc.prctl(_PR_GET_NAME, before)
    _libc.prctl(_PR_SET_NAME, name)
    try:
        assert _libc.pthread_create(ctypes.byref(thread), None, routine, None) == 0
    finally:
        _libc.prctl(_PR_SET_NAME, before)
    assert _libc.pthread_join(thread, None) == 0


_OF_AUTOGRAD: dict[str, Any] = {"__name__": "torch.autograd.graph"}
exec("def _engine_run_backward(run):\n    run()", _OF_AUTOGRAD)
wait_as_torch_does: Callable[[Callable[[], object]], None] = _OF_AUTOGRAD["_engine_run_backward"]
"""Runs what it is given, in a frame of the name under which torch waits for its backward pass."""

FAMILIES = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
    "active",
    "inactive_split",
)


class FakeCuda:
    """A torch with CUDA, one device of 80 GiB, and the blocks of a test."""

    def __init__(
        self,
        segments: Sequence[dict[str, Any]] = (),
        *,
        initialized: bool = True,
        can_observe: bool = True,
        old: bool = False,
    ) -> None:
        self.observers: list[Observer] = []
        self.snapshots = 0  # how often the blocks were looked at
        self.initialized = initialized
        self.recording = False
        self.stats: dict[str, Any] = {name: {"all": {"current": 0}} for name in FAMILIES}
        self._segments = list(segments)
        self._old = old
        extension = SimpleNamespace(
            _cuda_getDeviceCount=lambda: 2,
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
                name="NVIDIA Fake", total_memory=80 << 30, major=9, minor=0
            ),
        )
        module.is_autocast_enabled = lambda *_device: False
        self.modules: dict[str, ModuleType] = {"torch": module}

    def run_out(
        self, asked: int = 2 << 30, free: int = 1 << 30, ceiling: int = 80 << 30, device: int = 0
    ) -> None:
        """Call the observers, as the allocator does before it raises."""
        for observer in self.observers:
            observer(device, asked, ceiling, free)

    def run_out_in_backward(self, asked: int = 2 << 30, name: bytes = AUTOGRADS) -> None:
        """Call the observers on a thread without Python, while the calling one waits for a backward pass."""
        for observer in self.observers:
            called = partial(observer, 0, asked, 80 << 30, 1 << 30)
            wait_as_torch_does(partial(run_on_a_thread_of_c, called, name))

    def _snapshot(self, *, include_traces: bool) -> list[dict[str, Any]]:
        assert not include_traces
        self.snapshots += 1
        return self._segments

    def _old_snapshot(self) -> list[dict[str, Any]]:
        self.snapshots += 1
        return self._segments
