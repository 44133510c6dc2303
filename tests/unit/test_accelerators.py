"""Every accelerator that is supported, watched from one end to the other on a stand-in of its torch."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget import sources
from hfmem_widget.features.oom.observer import OBSERVER
from hfmem_widget.session import Session
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.accelerators import BUILDS, GIB, with_amd_smi
from tests.fakes.torch_cuda import FakeAllocator, OutOfMemoryError

MIB = 1 << 20


@dataclass
class Machine:
    """A process whose torch is built for one kind of accelerator."""

    build: str
    kind: str
    memory: FakeAllocator
    torch: Any

    def come_up(self) -> None:
        """Have the user's code initialise the devices."""
        self.memory.initialized = True
        if self.kind == "mps":
            self.torch.come_up()

    def torch_lists_segments(self) -> None:
        """Have torch answer as where the user's code asks for the segments."""
        getattr(self.torch, self.kind).memory_snapshot = self.memory.snapshot

    def allow_empty_cache(self) -> None:
        """Let the cache be emptied, which nothing else may do."""
        getattr(self.torch, self.kind).empty_cache = self.memory.empty_cache

    def in_a_fork(self) -> None:
        """Have torch say that this is a child of the process that initialised the devices."""
        module = getattr(self.torch, self.kind)
        if self.kind == "mps":
            module._is_in_bad_fork = lambda: True
        else:
            module.is_initialized = lambda: False

    def key(self, metric: str) -> str:
        return f"{self.kind}:0/{metric}"


@pytest.fixture(params=BUILDS)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with an accelerator of each kind in turn; it is not initialised yet."""
    kind, build, _ = BUILDS[request.param]
    memory = FakeAllocator(device_type=kind, initialized=False)
    torch = build(memory)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(OBSERVER, "settled", False)
    monkeypatch.setattr(OBSERVER, "_allocators", sources.open_allocators())
    return Machine(request.param, kind, memory, torch)


def watched(machine: Machine) -> Session:
    """Return a cell that initialises the device, has 8 MiB for a moment and keeps 4."""
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        machine.come_up()
        machine.memory.free(machine.memory.alloc(8 * MIB))
        machine.memory.alloc(4 * MIB)
    return session


def test_its_device_comes_with_the_users_code(machine: Machine) -> None:
    """The device is not asked before the user's code has initialised it; then it has name and total."""
    session = watched(machine)

    assert [device.key for device in session.devices] == [f"{machine.kind}:0", "cpu"]
    assert session.devices[0].name
    assert session.devices[0].total == machine.memory.pools[0].total


def test_its_figures_are_its_own(machine: Machine) -> None:
    """Allocated and reserved are the allocator's figures to the byte."""
    session = watched(machine)

    reserved = machine.memory.pools[0].stats["reserved_bytes"]["all"]["current"]
    assert session.latest(machine.key("allocated")) == 4 * MIB
    assert session.latest(machine.key("reserved")) == reserved


@pytest.mark.parametrize(
    ("machine", "certainty"),
    [("cuda", "exact"), ("rocm", "exact"), ("xpu", "exact"), ("xpu", "at least")],
    indirect=["machine"],
)
def test_peaks_are_exact_where_they_can_be_counted(machine: Machine, certainty: str) -> None:
    """Such a peak is the allocator's own, also where a window within has reset the counter.

    An older torch has no count for XPU: another thread's allocation while it is reset could not be seen.
    """
    if certainty != "exact":
        del machine.torch._C._accelerator_getDeviceStats
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        machine.come_up()
        machine.memory.free(machine.memory.alloc(8 * MIB))
        with hfmem_widget.span("inner"):
            machine.memory.alloc(4 * MIB)
    peak = session.spans[0].peaks[machine.key("allocated")]

    assert (peak.value, peak.certainty) == (8 * MIB, certainty)


@pytest.mark.parametrize("machine", ["mps"], indirect=True)
def test_without_a_peak_counter_a_peak_is_sampled(machine: Machine) -> None:
    """The peak is the highest reading, which misses what came and went in between: it is called sampled."""
    peak = watched(machine).spans[0].peaks[machine.key("allocated")]

    assert (peak.value, peak.certainty) == (4 * MIB, "sampled")
    assert machine.memory.resets == 0


@pytest.mark.parametrize("machine", ["cuda", "rocm", "xpu"], indirect=True)
def test_the_users_own_peak_is_left(machine: Machine) -> None:
    """What torch tells of its peak is what it would tell without a watch, although it was reset."""
    name = f"_{machine.kind}_memoryStats"
    with hfmem_widget.watch("cell", quiet=True, interval=60.0):
        machine.come_up()
        machine.memory.free(machine.memory.alloc(8 * MIB))
        with hfmem_widget.span("inner"):
            machine.memory.alloc(4 * MIB)
        stats = getattr(machine.torch._C, name)(0)

        all_stats = machine.torch._C._accelerator_getDeviceStats(0)

    assert machine.memory.resets > 0
    assert stats["allocated_bytes"]["all"]["peak"] == 8 * MIB
    assert all_stats["allocated_bytes"]["all"]["peak"] == 8 * MIB


@pytest.mark.parametrize("machine", ["xpu"], indirect=True)
def test_what_torch_does_not_count_is_no_figure(machine: Machine) -> None:
    """XPU's allocator never counts its out-of-memory errors, and says 0."""
    session = watched(machine)

    assert math.isnan(session.latest(machine.key("ooms")))
    assert session.latest(machine.key("alloc_retries")) == 0


@pytest.mark.parametrize("machine", ["rocm", "xpu"], indirect=True)
def test_what_others_use_of_the_device_is_known(machine: Machine) -> None:
    """The driver tells torch what is in use, a GiB of another process included."""
    session = watched(machine)
    reserved = session.latest(machine.key("reserved"))

    assert session.latest(machine.key("device_used")) == reserved + GIB


@pytest.mark.parametrize("machine", ["rocm"], indirect=True)
def test_amd_smi_tells_whose_memory_it_is(machine: Machine) -> None:
    """It tells what this process has, in torch and beside it, what others have, and how busy the GPU is."""
    with_amd_smi(machine.torch, machine.memory)
    session = watched(machine)
    metrics = ("process", "context", "others", "utilization", "device_used", "reserved")
    values = {metric: session.latest(machine.key(metric)) for metric in metrics}

    assert values["process"] == 3 * GIB
    assert values["context"] == 3 * GIB - values["reserved"]
    assert values["others"] == max(0, values["device_used"] - 3 * GIB)
    assert values["utilization"] == 87


@pytest.mark.parametrize("machine", ["cuda", "rocm", "xpu"], indirect=True)
def test_its_segments_are_mapped(machine: Machine) -> None:
    """The map has the reserved bytes exactly."""
    machine.come_up()
    machine.torch_lists_segments()
    machine.memory.alloc(6 * MIB)

    memory_map = hfmem_widget.memory_map()

    assert memory_map.devices == (f"{machine.kind}:0",)
    assert memory_map.reserved(f"{machine.kind}:0") == 6 * MIB


@pytest.mark.parametrize("machine", ["mps"], indirect=True)
def test_without_segments_there_is_a_note(machine: Machine) -> None:
    """The map says that it has none, and what is allocated."""
    machine.come_up()
    machine.memory.alloc(6 * MIB)
    memory_map = hfmem_widget.memory_map()

    assert memory_map.segments == ()
    assert "6.00 MiB" in memory_map.notes[f"{machine.kind}:0"]


def test_its_cache_is_emptied_by_its_own_name(machine: Machine) -> None:
    """Torch's function for that kind of device is called, and only because the user asked."""
    machine.come_up()
    machine.allow_empty_cache()
    machine.memory.free(machine.memory.alloc(8 * MIB))
    released = hfmem_widget.free("cache")

    assert machine.memory.pools[0].stats["reserved_bytes"]["all"]["current"] == 0
    freed = {f"{one.device}/{one.metric}" for one in released.changes if one.freed >= 8 * MIB}
    assert machine.key("reserved") in freed


def test_a_forked_child_reads_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device cannot be used where a parent has initialised it, and is not asked."""
    machine.come_up()
    machine.in_a_fork()
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        pass

    assert [device.key for device in session.devices] == ["cpu"]


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    """Have a process whose torch is built for "npu": a second member of `Allocator` is a file and a line."""
    fake = FakeAllocator(device_type="npu")
    monkeypatch.setattr(sources, "ALLOCATORS", (lambda: CudaAllocator({}), lambda: fake))
    monkeypatch.setattr(OBSERVER, "settled", False)
    monkeypatch.setattr(OBSERVER, "_allocator", fake)
    monkeypatch.setattr(OBSERVER, "_allocators", sources.open_allocators())
    return fake


def test_an_error_about_its_memory_is_told(npu: FakeAllocator) -> None:
    """A request that was refused, and the error caught, is a finding of that device."""
    npu.pools[0].total = 10 * MIB
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        npu.alloc(6 * MIB)
        with pytest.raises(OutOfMemoryError):
            npu.alloc(8 * MIB)

    (finding,) = [one for one in session.findings if one.kind == "oom"]
    assert finding.evidence["device"] == "npu:0"
    marks = [(guide.device, guide.last) for guide in session.guides if guide.kind == "oom"]
    assert marks == [("npu:0", 6 * MIB)]


def test_it_keeps_no_history_and_that_is_no_fault(npu: FakeAllocator) -> None:
    """Stacks are asked for, and the watch goes on without those of the device."""
    with hfmem_widget.watch("cell", quiet=True, interval=60.0, stacks=True) as session:
        npu.alloc(MIB)

    assert session.latest("npu:0/allocated") == MIB
    assert not session.polling.stopped


def test_it_may_be_asked_for_by_name(npu: FakeAllocator) -> None:
    """The accelerator that was named is watched alone."""
    with hfmem_widget.watch("cell", quiet=True, interval=60.0, devices="npu:0") as session:
        npu.alloc(MIB)

    assert [device.key for device in session.devices] == ["npu:0"]
