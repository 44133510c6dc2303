"""Machines whose GPUs share the CPU's memory, and some others, by figures that their owners posted.

Figures only, of threads as they stood in November 2026; none of these machines was at hand.
"""

from dataclasses import dataclass
from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def gib(size: float) -> int:
    """Return GiB in bytes as the kernel counts them, in whole kB."""
    return round(size * GIB / KIB) * KIB


@dataclass(frozen=True)
class Posted:
    """The figures that an owner posted of one machine at one moment; bytes."""

    source: str  # the thread
    name: str  # of the GPU, as NVML or HIP names it
    total: int  # ``MemTotal`` of ``/proc/meminfo``
    available: int  # ``MemAvailable``
    free: int  # ``MemFree``
    torch_total: int  # ``get_device_properties(0).total_memory``
    nvml_total: int | None = None  # None where `nvmlDeviceGetMemoryInfo` is not supported
    integrated: bool = True  # ``get_device_properties(0).is_integrated``
    carved_out: int | None = None  # an APU's ``mem_info_vram_total``


SPARK = Posted(
    "XuehaiPan/nvitop#208: MemTotal, MemAvailable and NVML's answer, driver 580.173.02; "
    "unslothai/unsloth#10283: 121.69 GiB in torch; vllm-project/vllm#48140: is_integrated",
    "NVIDIA GB10",
    total=127_600_748 * KIB,
    available=118_566_368 * KIB,
    free=110_000_000 * KIB,  # not posted
    torch_total=127_600_748 * KIB,
)
CACHED = Posted(
    "unslothai/unsloth#10704: after 60 GiB of a file were written, cudaMemGetInfo says 41.52 GiB",
    "NVIDIA GB10",
    total=127_600_748 * KIB,
    available=gib(115.65),
    free=gib(41.52),
    torch_total=127_600_748 * KIB,
)
N1X = Posted(
    "unslothai/unsloth#11208, #10283: nvidia-smi has the carve-out alone",
    "NVIDIA RTX Spark N1X",
    total=gib(54.2),
    available=30 * GIB,  # not posted
    free=30 * GIB,
    torch_total=46_477 * MIB,
    nvml_total=8_128 * MIB,
)
STRIX_HALO = Posted(
    "ROCm/legacy-rocm-build#6004: 512 MiB carved out; HIP says 62.47 GiB, of which 120.00 are free",
    "Radeon 8060S",
    total=gib(124.92),
    available=120 * GIB,
    free=120 * GIB,
    torch_total=gib(62.47),
    carved_out=512 * MIB,
)
STRIX_HALO_CARVED = Posted(
    "unslothai/unsloth#10418: 64 GiB carved out of 128",
    "Radeon 8060S",
    total=gib(63.65),
    available=50 * GIB,  # not posted
    free=50 * GIB,
    torch_total=64 * GIB,
    carved_out=64 * GIB,
)

GB10_TOTAL = 124_546 * MIB
GB10_FROZE_WITH = tuple((124_546 - used) * MIB for used in (124_258, 116_652, 118_280))
"""What was left in the last sample before a GB10 froze: AEON-7/vllm-ultimate-dgx-spark#9."""

OF_ONE_PROCESS = 741_326_848, 1_278_197_760
"""NVML's `usedGpuMemory` of a process on a GB10, before and after 512 MiB more: vllm-project/vllm#55828."""


def make_machine(proc: Path, posted: Posted, *, stalled: float = 0.0, swap: int = 0) -> Path:
    """Write the files of ``/proc`` that describe such a machine and this process."""
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "pressure").mkdir(exist_ok=True)
    sizes = {"MemTotal": posted.total, "MemFree": posted.free, "MemAvailable": posted.available}
    sizes |= {"Shmem": 0, "SwapTotal": 16 * GIB, "SwapFree": 16 * GIB - swap}
    text = "".join(f"{name}: {size // KIB} kB\n" for name, size in sizes.items())
    (proc / "meminfo").write_text(text)
    (proc / "self" / "status").write_text(f"VmHWM: 1 kB\nVmRSS: {2 * GIB // KIB} kB\n")
    psi = f"avg10={stalled:.2f} avg60=0.00 avg300=0.00 total=0\n"
    (proc / "pressure" / "memory").write_text(f"some {psi}full {psi}")
    return proc
