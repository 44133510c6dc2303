"""A GPU for machines that have none: the real torch and pynvml in front, invented counters behind them."""

import marshal
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common import measure
from tests.fakes.nvml_stub import NoCompilerError, build_stub
from tests.fakes.torch_cuda import FakeDevice

STUB = "HFMEM_BENCH_NVML_STUB"


def restart_with_nvml_stub(devices: int = 1) -> None:
    """Start this script again where `libnvidia-ml` is the stub; the loader reads its path once."""
    if STUB in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="nvml-stub-")
    try:
        build_stub(Path(folder))
    except NoCompilerError as reason:
        measure.not_here(f"there is no GPU, and {reason}.")
    stub = {"LD_LIBRARY_PATH": folder, STUB: folder, "NVML_STUB_DEVICES": str(devices)}
    environ = os.environ | stub
    os.execve(sys.executable, [sys.executable, *sys.argv], environ)


def give_torch_a_gpu(torch: Any, devices: int = 1, used: int = 1) -> None:
    """Let a torch built for CPUs read GPUs' counters through its own Python functions.

    The C entry point makes a new nested dictionary of plain numbers at each call, as the real one does. The
    process has allocated on the first `used` of the `devices`, and has a context on no other.
    """
    invented = [
        FakeDevice(uuid=f"{index:08x}-0000-0000-0000-000000000000") for index in range(devices)
    ]
    for device in invented[:used]:
        for block in range(100):
            device.alloc(block, 10 << 20)
    counters = [marshal.dumps(device.stats) for device in invented]
    properties = [
        SimpleNamespace(name=device.name, uuid=device.uuid, total_memory=device.total)
        for device in invented
    ]
    torch._C._cuda_memoryStats = lambda device: marshal.loads(counters[device])  # noqa: SLF001
    torch._C._cuda_resetPeakMemoryStats = lambda _device: None  # noqa: SLF001
    torch._C._cuda_getDeviceCount = lambda: devices  # noqa: SLF001
    torch._C._cuda_hasPrimaryContext = lambda device: device < used  # noqa: SLF001
    torch.cuda.is_initialized = torch.cuda.memory.is_initialized = lambda: True
    torch.cuda.get_device_properties = lambda device=0: properties[device]


def let_a_trainer_train(torch: Any) -> None:
    """Do nothing where a Trainer that trains on the CPU turns to the GPU that torch seems to have."""
    for name in ("empty_cache", "manual_seed", "manual_seed_all", "synchronize"):
        setattr(torch.cuda, name, lambda *_: None)
    torch.cuda.is_bf16_supported = lambda *_, **__: False
