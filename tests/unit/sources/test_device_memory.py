"""What is in use on a device where NVML does not tell, and whose it is, as AMD SMI tells on a stand-in."""

from __future__ import annotations

import math
import os
from types import ModuleType
from typing import Any
from unittest.mock import Mock

from hfmem_widget.sources.device_memory import DeviceMemorySource
from hfmem_widget.sources.procfs import ProcessIds
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.accelerators import GIB, AmdSmi, rocm, with_amd_smi
from tests.fakes.torch_cuda import FakeAllocator

HERE = ProcessIds(frozenset({os.getpid()}), all_visible=True)


class Machine:
    """A process on one AMD GPU that has used it, and the source that reads the driver there."""

    def __init__(self, pids: ProcessIds = HERE) -> None:
        self.memory = FakeAllocator(initialized=True)
        torch: Any = rocm(self.memory)
        self.smi: AmdSmi = with_amd_smi(torch, self.memory)
        modules: dict[str, ModuleType] = {"torch": torch}
        self.source = DeviceMemorySource([CudaAllocator(modules)], pids=lambda: pids)

    def read(self, now: float) -> dict[str, float]:
        """Return what the source reads at some second, by the metric."""
        values = self.source.read(now)
        metrics = [series.metric for series in self.source.series]
        return dict(zip(metrics, values, strict=True))


def test_processes_are_asked_again_once_the_use_has_changed() -> None:
    """While it stays the same, five seconds lie between two looks."""
    machine = Machine()
    machine.read(0.0)
    asked = machine.smi.asked
    machine.read(1.0)
    unchanged = machine.smi.asked
    machine.memory.alloc(GIB)
    machine.read(100.0)
    changed = machine.smi.asked
    machine.read(105.0)

    assert (unchanged, changed, machine.smi.asked) == (asked, asked + 1, asked + 2)


def test_a_process_that_is_not_listed_has_nothing() -> None:
    """Where the list has the ids of all processes, one that is not in it has no memory on the device."""
    machine = Machine()
    machine.smi.listed = {1: GIB}
    told = machine.read(0.0)

    assert (told["process"], told["others"]) == (0, told["device_used"])


def test_in_a_container_no_guess_is_made() -> None:
    """There the list may have other ids, so that nobody knows which is this process."""
    machine = Machine(ProcessIds(frozenset({os.getpid()}), all_visible=False))
    machine.smi.listed = {1: GIB}
    told = machine.read(0.0)

    assert math.isnan(told["process"])
    assert told["device_used"] > 0


def test_what_is_not_known_of_the_engine_is_not_available() -> None:
    """AMD SMI says "N/A" of it on some cards."""
    machine = Machine()
    machine.smi.activity = "N/A"

    assert math.isnan(machine.read(0.0)["utilization"])


def test_where_it_cannot_be_told_how_busy_a_gpu_is_the_rest_is() -> None:
    """As in a virtual machine; nothing is said, since it is an extra."""
    machine = Machine()
    machine.smi.activity = RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")
    told = machine.read(0.0)

    assert told["process"] == 3 * GIB
    assert math.isnan(told["utilization"])
    assert not machine.source.notes


def test_an_allocator_without_counters_leaves_all_but_the_context() -> None:
    """A pluggable one raises; the driver still says whose memory is in use."""
    machine = Machine()

    fault = RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
    machine.memory.stats = Mock(side_effect=fault)  # type: ignore[method-assign]
    told = machine.read(0.0)

    assert told["process"] == 3 * GIB
    assert math.isnan(told["context"])
    assert not machine.source.notes


def test_a_fault_in_the_middle_leaves_the_sum() -> None:
    """Nothing more is asked of AMD SMI then, and a sentence says so once."""
    machine = Machine()
    machine.read(0.0)
    machine.smi.fault = RuntimeError("the GPU was reset")
    told = machine.read(100.0)
    asked = machine.smi.asked
    machine.read(200.0)

    assert told["device_used"] > 0
    assert math.isnan(told["process"])
    assert machine.smi.asked == asked
    assert len(machine.source.notes) == 1


def test_without_amd_smi_the_sum_is_all() -> None:
    """It is no requirement."""
    machine = Machine()
    del machine.source._allocators[0]._modules["torch"].cuda.amdsmi  # type: ignore[attr-defined]  # a stand-in

    assert set(machine.read(0.0)) == {"device_used"}


def test_lists_of_handles_are_of_an_older_library() -> None:
    """Before ROCm 6.1 the list had handles, and is left alone."""
    machine = Machine()
    machine.smi.as_handles = True

    assert set(machine.read(0.0)) == {"device_used"}
