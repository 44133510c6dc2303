"""PyTorch's CUDA caching allocator, and ROCm's, which has the same names."""

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
"""The largest share of HIP's memory that a carve-out of a mere frame buffer has: owners have 1 to 4 %."""


def only_device(torch: Any) -> str:
    """Return the key of the only device on which this process has a context; empty for none or several."""
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
        """Return the devices with a context of this process, without which it can have no memory there."""
        # Every edge calls this, with cold caches: mostly without a further function call.
        indices = self._indices if self._up_in == os.getpid() else self.devices()
        opened, unopened = self._opened_and_not
        if len(indices) != len(opened) + len(unopened):
            opened, unopened = (), indices
        # A context is never closed, so that only the other devices are checked.
        if unopened:
            try:
                has_context = self._extension()._cuda_hasPrimaryContext
                if any(map(has_context, unopened)):
                    opened = tuple(filter(has_context, indices))
                    unopened = tuple(at for at in indices if at not in opened)
            except Exception:  # noqa: BLE001  (an old torch cannot tell, or the driver does not answer)
                return indices
            # Assigned whole: the poller may be here, too.
            self._opened_and_not = opened, unopened
        return opened

    def device(self, index: int) -> Device:
        """Describe an initialised device, with NVML's UUID."""
        device = super().device(index)
        # CUDA gives a MIG instance a UUID of its own; only its name shows that it is an instance.
        prefix = "MIG-" if " MIG " in device.name else "GPU-"
        return replace(device, uuid=prefix + device.uuid) if device.uuid else device

    def _shared(self, properties: Any) -> float:
        # HIP also calls an APU integrated whose memory the firmware has carved out (ROCm#6004).
        shared = super()._shared(properties)
        if shared and self._is_rocm():
            ids = (getattr(properties, f"pci_{name}_id", 0) for name in ("domain", "bus", "device"))
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
        """Return each process' bytes on a device as AMD SMI reports them, if it is installed beside ROCm."""
        if (smi := self._amd_smi(index)) is None:
            return None
        library, handle = smi
        processes = library.amdsmi_get_gpu_process_list(handle)
        return {int(each["pid"]): float(each["memory_usage"]["vram_mem"]) for each in processes}

    def busy(self, index: int) -> float:
        """Return a device's utilisation as AMD SMI reports it, in percent."""
        if (smi := self._amd_smi(index)) is None:
            return NOT_AVAILABLE
        library, handle = smi
        busy = library.amdsmi_get_gpu_activity(handle)["gfx_activity"]
        return float(busy) if isinstance(busy, int) else NOT_AVAILABLE  # "N/A"

    def _amd_smi(self, index: int) -> tuple[Any, Any] | None:
        """Return AMD SMI, and its handle of a device; None if torch has not found AMD SMI."""
        if index not in self._handles and self._is_open_on_rocm(index):
            # torch imports it with care for a second copy (ROCm/amdsmi#72), and knows HIP's device in it.
            cuda, self._handles[index] = self._module(), None
            if hasattr(cuda, "amdsmi") and hasattr(cuda, "_get_amdsmi_handler"):
                self._handles[index] = cuda.amdsmi, cuda._get_amdsmi_handler(index)
        return self._handles.get(index)

    def _is_rocm(self) -> bool:
        return bool(getattr(getattr(self._modules["torch"], "version", None), "hip", None))

    def _is_open_on_rocm(self, index: int) -> bool:
        return self._is_rocm() and bool(self._extension()._cuda_hasPrimaryContext(index))

    def pinned(self) -> float:
        """Return the bytes of pinned memory on the host that PyTorch has taken; 0 if none, or unknown."""
        # By the function behind `torch.cuda.host_memory_stats`, which sorts all statistics.
        read = getattr(self._extension(), "_cuda_hostMemoryStats", None) if self.devices() else None
        return float(read()["allocated_bytes"]["current"]) if read is not None else 0.0

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the segments, copied under the allocator's lock: no call of CUDA's runtime."""
        if (backend := backend_of(self._modules["torch"])) not in {"native", ""}:
            # Depending on the version, CUDA's own pool is listed as empty, or the call raises.
            raise SourceUnavailable(backend)
        segments: Sequence[Mapping[str, Any]]
        try:
            segments = self._module().memory_snapshot(include_traces=False)
        except TypeError:
            # Before torch 2.13 a snapshot includes the traces, which takes seconds if there are any.
            is_recording = getattr(self._extension(), "_cuda_isHistoryEnabled", lambda: False)
            if quick and is_recording():
                why = "this torch cannot list its segments without their history"
                raise SourceUnavailable(why) from None
            segments = self._module().memory_snapshot()
        except RuntimeError as error:
            raise SourceUnavailable(plain(error)) from error
        return segments
