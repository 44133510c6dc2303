"""PyTorch's CUDA caching allocator, and ROCm's, which has the same names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.session import Device
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.torch_history import CudaHistory, backend_of
from hfmem_widget.text import plain

PCI: Final = Path("/sys/bus/pci/devices")
FRAME_BUFFER: Final = 0.1
"""Share of what HIP can have, up to which a carve-out is a frame buffer beside it: owners have 1 to 4 %."""


def only_device(torch: Any) -> str:
    """Return the key of the one device on which this process has a context; empty if there is not one."""
    if not torch.cuda.is_initialized():
        return ""
    has_context = torch._C._cuda_hasPrimaryContext
    used = [at for at in range(len(torch.cuda.default_generators)) if has_context(at)]
    return f"cuda:{used[0]}" if len(used) == 1 else ""


class CudaAllocator(Allocator):
    """The only object that touches the CUDA allocator's entry points."""

    device_type = "cuda"
    recording = CudaHistory

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        super().__init__(modules)
        self._handles: dict[int, tuple[Any, Any] | None] = {}
        self._opened_and_not: tuple[Sequence[int], Sequence[int]] = (), ()

    def opened(self) -> Sequence[int]:
        """Return the devices with a context of this process, which no memory can be had without."""
        # Every edge comes here, with cold caches: mostly without a further function.
        indices = self._indices if self._up_in == os.getpid() else self.devices()
        opened, unopened = self._opened_and_not
        if len(indices) != len(opened) + len(unopened):
            opened, unopened = (), indices
        # A context that is there stays, so that only the others are asked for.
        if unopened:
            try:
                has_context = self._extension()._cuda_hasPrimaryContext
                if any(map(has_context, unopened)):
                    opened = tuple(filter(has_context, indices))
                    unopened = tuple(at for at in indices if at not in opened)
            except Exception:  # noqa: BLE001  (an old torch cannot tell, or the driver does not answer)
                return indices
            # At once: the poller may be here, too.
            self._opened_and_not = opened, unopened
        return opened

    def device(self, index: int) -> Device:
        """Return what an initialised device is, with NVML's UUID."""
        device = super().device(index)
        # CUDA gives a MIG instance its own UUID and says in its name that it is one.
        prefix = "MIG-" if " MIG " in device.name else "GPU-"
        return replace(device, uuid=prefix + device.uuid) if device.uuid else device

    def _shared(self, properties: Any) -> float:
        """Return what a device may have of the machine's memory, in bytes; 0 where it has its own.

        HIP also calls an APU integrated whose memory the firmware has carved out (ROCm#6004).
        """
        shared = super()._shared(properties)
        if shared and getattr(getattr(self._modules["torch"], "version", None), "hip", None):
            ids = (getattr(properties, f"pci_{each}_id", 0) for each in ("domain", "bus", "device"))
            folder = PCI / "{:04x}:{:02x}:{:02x}.0".format(*ids)
            try:
                carved_out = float((folder / "mem_info_vram_total").read_text())
            except (OSError, ValueError):
                return 0.0
            return shared if carved_out <= FRAME_BUFFER * shared else 0.0
        return shared

    def capability(self, index: int) -> tuple[int, ...]:
        """Return an initialised device's compute capability."""
        properties = self._module().get_device_properties(index)
        return int(properties.major), int(properties.minor)

    def free_and_total(self, index: int) -> tuple[float, float] | None:
        """Return the device's free and total bytes on ROCm; None beside NVML, and without a context."""
        return super().free_and_total(index) if self._is_open_on_rocm(index) else None

    def processes(self, index: int) -> Mapping[int, float] | None:
        """Return what AMD SMI says that each process has of a device, where it is installed beside ROCm."""
        if (smi := self._amd_smi(index)) is None:
            return None
        library, handle = smi
        listed = library.amdsmi_get_gpu_process_list(handle)
        return {int(one["pid"]): float(one["memory_usage"]["vram_mem"]) for one in listed}

    def busy(self, index: int) -> float:
        """Return how busy AMD SMI says that a device is."""
        if (smi := self._amd_smi(index)) is None:
            return NOT_AVAILABLE
        library, handle = smi
        busy = library.amdsmi_get_gpu_activity(handle)["gfx_activity"]
        return float(busy) if isinstance(busy, int) else NOT_AVAILABLE  # "N/A"

    def _amd_smi(self, index: int) -> tuple[Any, Any] | None:
        """Return AMD SMI, and by what it knows a device; None where torch has not found it."""
        if index not in self._handles and self._is_open_on_rocm(index):
            # torch has imported it with care for two copies of its library (ROCm/amdsmi#72), and knows which
            # of its devices is which of HIP's.
            cuda, self._handles[index] = self._module(), None
            if hasattr(cuda, "amdsmi") and hasattr(cuda, "_get_amdsmi_handler"):
                self._handles[index] = cuda.amdsmi, cuda._get_amdsmi_handler(index)
        return self._handles.get(index)

    def _is_open_on_rocm(self, index: int) -> bool:
        torch: Any = self._modules["torch"]
        is_rocm = getattr(getattr(torch, "version", None), "hip", None) is not None
        return is_rocm and bool(torch._C._cuda_hasPrimaryContext(index))

    def pinned(self) -> float:
        """Return the bytes of pinned memory on the host that PyTorch has taken; 0 if none, or not known."""
        # By the function behind `torch.cuda.host_memory_stats`, which sorts all of them.
        read = getattr(self._extension(), "_cuda_hostMemoryStats", None) if self.devices() else None
        return float(read()["allocated_bytes"]["current"]) if read is not None else 0.0

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the segments, copied under the allocator's lock: no call of CUDA's runtime."""
        if (backend := backend_of(self._modules["torch"])) not in {"native", ""}:
            # CUDA's own pool would be listed as empty, or raise, by version.
            raise SourceUnavailable(backend)
        segments: Sequence[Mapping[str, Any]]
        try:
            segments = self._module().memory_snapshot(include_traces=False)
        except TypeError:
            # Before torch 2.13 a snapshot brings the traces along, which takes seconds where there are any.
            is_recording = getattr(self._extension(), "_cuda_isHistoryEnabled", lambda: False)
            if quick and is_recording():
                message = "this torch cannot list its segments without their history"
                raise SourceUnavailable(message) from None
            segments = self._module().memory_snapshot()
        except RuntimeError as error:
            raise SourceUnavailable(plain(error)) from error
        return segments
