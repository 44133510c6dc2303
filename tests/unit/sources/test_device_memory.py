"""What is in use on a device where NVML does not tell, and whose it is, as AMD SMI tells on a stand-in."""

import math
import os
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget.sources.device_memory import DeviceMemorySource
from hfmem_widget.sources.procfs import ProcessIds
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.accelerators import GIB, AmdSmi, rocm, with_amd_smi
from tests.fakes.torch_cuda import FakeAllocator
from tests.unit.sources.conftest import by_metric

HERE = ProcessIds(frozenset({os.getpid()}), all_visible=True)


class Machine:
    """A process on one AMD GPU that has used it, and the source that reads the driver there."""

    def __init__(self, pids: ProcessIds = HERE) -> None:
        self.memory = FakeAllocator(initialized=True)
        self.torch: Any = rocm(self.memory)
        self.smi: AmdSmi = with_amd_smi(self.torch, self.memory)
        modules: dict[str, ModuleType] = {"torch": self.torch}
        self.source = DeviceMemorySource([CudaAllocator(modules)], pids=lambda: pids)

    def read(self, now: float) -> dict[str, float]:
        """Return what the source reads at some second, by the metric."""
        return by_metric(self.source, now)


def test_processes_are_asked_again_once_the_use_has_changed() -> None:
    """The processes of a device are listed when its use has changed, else every five seconds."""
    machine = Machine()
    machine.read(0.0)
    listings = machine.smi.asked
    machine.read(1.0)
    unchanged = machine.smi.asked
    machine.memory.alloc(GIB)
    machine.read(100.0)
    changed = machine.smi.asked
    machine.read(105.0)

    assert (unchanged, changed, machine.smi.asked) == (listings, listings + 1, listings + 2)


@pytest.mark.parametrize("all_visible", [True, False])
def test_a_process_that_is_not_listed_has_nothing(*, all_visible: bool) -> None:
    """An unlisted process has 0 bytes; in a container, whose list may have other ids, it has NaN."""
    machine = Machine(ProcessIds(frozenset({os.getpid()}), all_visible))
    machine.smi.listed = {1: GIB}
    values = machine.read(0.0)

    if all_visible:
        assert (values["process"], values["others"]) == (0, values["device_used"])
    else:
        assert math.isnan(values["process"])
        assert values["device_used"] > 0


@pytest.mark.parametrize("activity", ["N/A", RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")])
def test_without_utilization_memory_is_still_read(activity: str | Exception) -> None:
    """Where AMD SMI does not tell how busy a GPU is, memory is still read, without a note."""
    machine = Machine()
    machine.smi.activity = activity
    values = machine.read(0.0)

    assert values["process"] == 3 * GIB
    assert math.isnan(values["utilization"])
    assert not machine.source.notes


def test_an_allocator_without_counters_leaves_all_but_the_context() -> None:
    """A pluggable allocator raises; the driver's figures are read, and the context alone is not known."""
    machine = Machine()

    fault = RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
    machine.memory.stats = Mock(side_effect=fault)  # type: ignore[method-assign]
    values = machine.read(0.0)

    assert values["process"] == 3 * GIB
    assert math.isnan(values["context"])
    assert not machine.source.notes


@pytest.mark.parametrize("times", [[], [0.0]], ids=["from the start", "in the middle"])
def test_a_fault_leaves_the_sum(times: list[float]) -> None:
    """After a fault of AMD SMI only the sum is read, and one note says so."""
    machine = Machine()
    for time in times:
        machine.read(time)
    machine.smi.fault = RuntimeError("the GPU was reset")
    values = machine.read(100.0)
    listings = machine.smi.asked
    machine.read(200.0)

    assert values["device_used"] > 0
    assert math.isnan(values.get("process", math.nan))
    assert machine.smi.asked == listings
    (note,) = machine.source.notes
    assert "the GPU was reset" in note


def test_without_amd_smi_the_sum_is_all() -> None:
    """Without AMD SMI the sum of all processes is read alone."""
    machine = Machine()
    del machine.torch.cuda.amdsmi

    assert set(machine.read(0.0)) == {"device_used"}
