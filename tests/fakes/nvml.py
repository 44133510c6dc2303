# ruff: noqa: N802  (the names of NVML)
"""A scriptable `pynvml`: any number of GPUs, faults per device and call, calls that hang."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1 << 30
MIB = 1 << 20


@dataclass(eq=False)
class FakeGpu:
    """One card or MIG instance; its own handle."""

    name: str = "NVIDIA Fake"
    uuid: str = "GPU-00000000-fake"
    total: float = 80 * GIB
    used: float = 1 * GIB  # without the driver's reserve
    reserved: float = 600 * MIB
    includes_reserve: bool = False  # `used` counts the reserve in, as with some drivers
    utilization: float = 50
    # By list: "Compute", "Graphics", "MPSCompute"; process and bytes.
    processes: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)  # by the call
    hang: threading.Event | None = None  # reading memory waits for it
    instances: list[FakeGpu] = field(default_factory=list)  # of MIG, whose mode is on with any

    def fail(self, call: str) -> None:
        """Raise the fault scripted for a call, or for "all"."""
        code = self.faults.get(call, self.faults.get("all"))
        if code is not None:
            raise pynvml.NVMLError(code)


class FakeNvml:
    """The part of the module `pynvml` that `NvmlSource` uses."""

    NVMLError = pynvml.NVMLError
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815

    def __init__(self, gpus: Sequence[FakeGpu] = (), *, init_fault: int | None = None) -> None:
        self.gpus = list(gpus)
        self.init_fault = init_fault  # the code with which NVML refuses to start
        self.initialized = False
        self.calls: Counter[str] = Counter()

    def load(self) -> FakeNvml:
        """Replace `import pynvml`."""
        return self

    def nvmlInit(self) -> None:
        self.calls["Init"] += 1
        if self.init_fault is not None:
            raise pynvml.NVMLError(self.init_fault)
        self.initialized = True

    def nvmlShutdown(self) -> None:
        self._called("Shutdown")
        self.initialized = False

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95"

    def nvmlDeviceGetCount(self) -> int:
        self._called("Count")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._called("HandleByIndex", self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        self._called("HandleByUUID")
        for gpu in self.gpus:
            for one in (gpu, *gpu.instances):
                if one.uuid == uuid:
                    return one
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return self._called("Name", gpu).name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return self._called("UUID", gpu).uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int) -> Any:
        del version
        self._called("MemoryInfo", gpu)
        if gpu.hang is not None:
            gpu.hang.wait()
        free = gpu.total - gpu.used - gpu.reserved
        used = gpu.used + (gpu.reserved if gpu.includes_reserve else 0)
        return SimpleNamespace(total=gpu.total, free=free, used=used, reserved=gpu.reserved)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(gpu=self._called("UtilizationRates", gpu).utilization, memory=0)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        mode = int(bool(self._called("MigMode", gpu).instances))
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        self._called("MaxMigDeviceCount", gpu)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        self._called("MigDeviceHandleByIndex", gpu)
        if index >= len(gpu.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu.instances[index]

    def __getattr__(self, name: str) -> Callable[[FakeGpu], list[Any]]:
        for kind in ("Compute", "Graphics", "MPSCompute"):
            if name == f"nvmlDeviceGet{kind}RunningProcesses_v3":
                return lambda gpu: self._processes(kind, gpu)
        raise AttributeError(name)

    def _processes(self, kind: str, gpu: FakeGpu) -> list[Any]:
        self._called(f"{kind}RunningProcesses", gpu)
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used)
            for pid, used in gpu.processes.get(kind, [])
        ]

    def _called(self, call: str, gpu: FakeGpu = FakeGpu()) -> FakeGpu:  # noqa: B008  a GPU without faults
        self.calls[call] += 1
        if not self.initialized:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        gpu.fail(call)
        return gpu
