"""Device memory through NVML: which devices, and what their figures mean."""

from __future__ import annotations

import inspect
import math
import os
import time
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest

from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.nvml_gpu import Gpu
from hfmem_widget.sources.procfs import process_ids
from tests.fakes.nvml import GIB, MIB, FakeGpu, FakeNvml
from tests.fakes.nvml_source import Watched, make_proc, two_cards
from tests.fakes.torch_cuda import FakeAllocator


def test_nothing_is_opened_before_the_first_reading(proc: Path) -> None:
    """Making the source loads and initialises nothing."""
    watched = Watched([FakeGpu()], proc)

    assert not watched.nvml.calls
    assert watched.source.series == ()


@pytest.mark.parametrize("includes_reserve", [True, False])
def test_the_reserve_is_apart(proc: Path, includes_reserve: bool) -> None:
    """Whether the driver counts its reserve as used or not, it is told apart from what is in use."""
    watched = Watched([FakeGpu(includes_reserve=includes_reserve)], proc)
    values = watched(0.0)

    assert values["cuda:0/device_used"] == 1 * GIB
    assert values["cuda:0/driver_reserved"] == 600 * MIB
    assert watched.source.devices[0].total == 80 * GIB


def test_an_idle_card_is_idle(proc: Path) -> None:
    """A card nobody uses has 0 bytes in use, not the driver's reserve."""
    assert Watched([FakeGpu(used=0)], proc)(0.0)["cuda:0/device_used"] == 0


def test_an_old_driver_is_read_and_said_to_be_old(proc: Path) -> None:
    """Before R510 the reserve cannot be told apart: in use then includes it, and a note says so."""
    watched = Watched([FakeGpu(knows_v2=False)], proc)
    values = watched(0.0)
    watched(0.1)

    assert values["cuda:0/device_used"] == 1 * GIB + 600 * MIB
    assert math.isnan(values["cuda:0/driver_reserved"])
    assert len(watched.source.notes) == 1


def test_the_environment_chooses_until_cuda_is_up(proc: Path) -> None:
    """Before CUDA is up, `CUDA_VISIBLE_DEVICES` says which GPU is cuda:0."""
    watched = Watched(two_cards(), proc, environ={"CUDA_VISIBLE_DEVICES": "1"})

    assert watched(0.0)["cuda:0/device_used"] == 2 * GIB
    assert [device.uuid for device in watched.source.devices] == ["GPU-bbb"]


def test_no_visible_device_is_no_series_and_no_note(proc: Path) -> None:
    """Who hid all GPUs meant it."""
    watched = Watched(two_cards(), proc, environ={"CUDA_VISIBLE_DEVICES": ""})

    assert watched(0.0) == {}
    assert watched.source.notes == []


def test_a_choice_made_later_counts(proc: Path) -> None:
    """`CUDA_VISIBLE_DEVICES` set in a cell, before CUDA is up, changes which devices there are."""
    watched = Watched(two_cards(), proc)
    watched(0.0)
    watched.environ["CUDA_VISIBLE_DEVICES"] = "1"
    values = watched(0.1)

    assert values["cuda:0/device_used"] == 2 * GIB
    assert math.isnan(values["cuda:1/device_used"])
    assert [device.key for device in watched.source.devices] == ["cuda:0"]


def test_unlike_cards_are_provisional_until_cuda_names_them(proc: Path) -> None:
    """CUDA counts the fastest first; once it is up its UUIDs settle it, and a note says what moved."""
    watched = Watched(two_cards(), proc)
    watched(0.0)
    assert all(device.provisional for device in watched.source.devices)
    watched.uuids = ["GPU-bbb", "GPU-aaa"]
    values = watched(0.1)
    watched(0.2)

    assert values["cuda:0/device_used"] == 2 * GIB
    assert not any(device.provisional for device in watched.source.devices)
    assert len(watched.source.notes) == 1
    assert watched.nvml.calls["HandleByUUID"] == 2


def test_like_cards_are_certain(proc: Path) -> None:
    """Cards of one make have one order, and nothing is said when CUDA confirms it."""
    watched = Watched([FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")], proc)
    watched(0.0)
    assert not any(device.provisional for device in watched.source.devices)
    watched.uuids = ["GPU-a", "GPU-b"]
    watched(0.1)

    assert watched.source.notes == []


def test_after_cuda_is_up_the_environment_is_ignored(proc: Path) -> None:
    """CUDA reads the variable once; so do we."""
    watched = Watched(two_cards(), proc)
    watched.uuids = ["GPU-bbb"]
    watched(0.0)
    watched.environ["CUDA_VISIBLE_DEVICES"] = "0"

    assert watched(0.1)["cuda:0/device_used"] == 2 * GIB
    assert watched.nvml.calls["HandleByUUID"] == 1


def test_a_device_the_driver_does_not_know(proc: Path) -> None:
    """If NVML cannot find CUDA's device, it is not available, and the others are."""
    watched = Watched(two_cards(), proc)
    watched.uuids = ["GPU-other", "GPU-aaa"]
    values = watched(0.0)

    assert math.isnan(values["cuda:0/device_used"])
    assert values["cuda:1/device_used"] == 1 * GIB
    assert "GPU-other" in watched.source.notes[0]


def split_card() -> FakeGpu:
    """Return a card in MIG mode with two instances."""
    parts = [FakeGpu(name=f"NVIDIA Fake MIG {n}", uuid=f"MIG-{n}", total=n * GIB) for n in (10, 20)]
    return FakeGpu(instances=parts)


@pytest.mark.parametrize("uuid", ["MIG-20", "GPU-20"])
def test_an_instance_has_its_own_memory(proc: Path, uuid: str) -> None:
    """A MIG instance is found by CUDA's UUID under either prefix, and its own total is shown."""
    watched = Watched([split_card()], proc)
    watched.uuids = [uuid]
    watched(0.0)

    assert watched.source.devices[0].total == 20 * GIB
    assert watched.source.devices[0].uuid == "MIG-20"


def test_an_instance_can_be_chosen(proc: Path) -> None:
    """`CUDA_VISIBLE_DEVICES=MIG-…` shows that instance."""
    watched = Watched([split_card()], proc, environ={"CUDA_VISIBLE_DEVICES": "MIG-20"})
    watched(0.0)

    assert [device.uuid for device in watched.source.devices] == ["MIG-20"]


def test_a_split_card_shows_an_instance(proc: Path) -> None:
    """By ordinal, CUDA shows an instance of a split card, never the card; until it is up that is a guess."""
    watched = Watched([split_card()], proc)
    watched(0.0)

    assert [device.uuid for device in watched.source.devices] == ["MIG-10"]
    assert watched.source.devices[0].provisional


def test_this_process_and_the_others(proc: Path) -> None:
    """What the driver lists for this process is its share, and the rest is the others'."""
    gpu = FakeGpu(processes={"Compute": [(1, 100 * MIB), (os.getpid(), 300 * MIB)]})
    values = Watched([gpu], proc)(0.0)

    assert values["cuda:0/process"] == 300 * MIB
    assert values["cuda:0/others"] == 1 * GIB - 300 * MIB


def test_the_context_is_what_this_process_has_beyond_its_allocator(proc: Path) -> None:
    """CUDA context and libraries: the driver's figure of this process less what torch has reserved."""
    gpu = FakeGpu(processes={"Compute": [(os.getpid(), 700 * MIB)]})
    watched = Watched([gpu], proc, reserved=lambda _uuid: 80.0 * MIB)

    assert watched(0.0)["cuda:0/context"] == 620 * MIB


def test_an_allocator_without_counters_leaves_the_drivers_figures(proc: Path) -> None:
    """Such as a pluggable one, which raises: only the context, which takes both, is not known."""
    allocator = FakeAllocator()
    allocator.alloc(MIB)
    source = AllocatorSource(allocator)
    source.read(0.0)
    fault = RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
    allocator.stats = Mock(side_effect=fault)  # type: ignore[method-assign]
    (uuid,) = source.uuids() or ()
    gpu = FakeGpu(uuid=uuid, used=3 * GIB, processes={"Compute": [(os.getpid(), 700 * MIB)]})
    watched = Watched([gpu], proc, reserved=source.reserved)
    values = watched(0.0)

    assert values["cuda:0/device_used"] == 3 * GIB
    assert values["cuda:0/process"] == 700 * MIB
    assert math.isnan(values["cuda:0/context"])
    assert not watched.source.notes


def test_a_context_is_not_told_from_figures_of_two_instants(proc: Path) -> None:
    """While the allocator takes a segment between two readings, the context stays as it was."""
    gpu = FakeGpu(processes={"Compute": [(os.getpid(), 700 * MIB)]})
    readings = iter([80.0 * MIB, 80.0 * MIB, 80.0 * MIB, 500.0 * MIB])
    watched = Watched([gpu], proc, reserved=lambda _uuid: next(readings))
    first = watched(0.0)["cuda:0/context"]
    gpu.processes["Compute"] = [(os.getpid(), 1100 * MIB)]

    assert watched(2.0)["cuda:0/context"] == first == 620 * MIB


def test_without_the_process_there_is_no_context(proc: Path) -> None:
    """Where the driver does not tell this process' share, its context is not available."""
    gpu = FakeGpu(processes={"Compute": [(os.getpid(), None)]})

    assert math.isnan(Watched([gpu], proc)(0.0)["cuda:0/context"])


def test_a_process_in_two_lists_counts_once(proc: Path) -> None:
    """A process that computes and draws is listed twice with one total."""
    listed = [(os.getpid(), 300 * MIB)]
    gpu = FakeGpu(processes={"Compute": list(listed), "Graphics": list(listed)})

    assert Watched([gpu], proc)(0.0)["cuda:0/process"] == 300 * MIB


@pytest.mark.parametrize("kind", ["Graphics", "MPSCompute"])
def test_every_list_is_looked_at(proc: Path, kind: str) -> None:
    """A process that only draws, or computes through MPS, is found too."""
    gpu = FakeGpu(processes={kind: [(os.getpid(), 300 * MIB)]})

    assert Watched([gpu], proc)(0.0)["cuda:0/process"] == 300 * MIB


def test_an_unknown_share_is_not_zero(proc: Path) -> None:
    """Where the driver lists a process without its memory (WDDM), the share is not available."""
    gpu = FakeGpu(processes={"Compute": [(os.getpid(), None)]})
    values = Watched([gpu], proc)(0.0)

    assert math.isnan(values["cuda:0/process"])
    assert math.isnan(values["cuda:0/others"])


def test_unlisted_where_all_ids_are_ours_is_zero(proc: Path) -> None:
    """In the machine's first namespace, a process that is not listed holds nothing."""
    gpu = FakeGpu(processes={"Compute": [(1, 100 * MIB)]})

    assert Watched([gpu], proc)(0.0)["cuda:0/process"] == 0


def test_unlisted_in_a_container_is_not_guessed(tmp_path: Path) -> None:
    """In another namespace, one foreign process in the list is not taken for this one."""
    gpu = FakeGpu(processes={"Compute": [(1, 900 * MIB)]})
    watched = Watched([gpu], make_proc(tmp_path, "pid:[4026532000]"))

    assert math.isnan(watched(0.0)["cuda:0/process"])
    assert watched.source.notes == []
    watched.uuids = [gpu.uuid]
    watched(0.1)
    watched(2.0)
    assert len(watched.source.notes) == 1


def test_an_id_of_an_outer_namespace_is_ours(tmp_path: Path) -> None:
    """Where the kernel tells the ids that this process has elsewhere, they are recognised."""
    gpu = FakeGpu(processes={"Compute": [(12345678, 300 * MIB)]})
    proc = make_proc(tmp_path, "pid:[4026532000]", nspid="12345678\t7")

    assert Watched([gpu], proc)(0.0)["cuda:0/process"] == 300 * MIB


def test_what_costs_more_is_read_less_often(proc: Path) -> None:
    """Memory is read every tick, utilisation once a second, the processes every 5 s while nothing changes."""
    watched = Watched([FakeGpu()], proc)
    for tick in range(101):
        watched(tick / 10)

    assert watched.nvml.calls["MemoryInfo"] == 101 + 1
    assert watched.nvml.calls["UtilizationRates"] == 11
    assert watched.nvml.calls["ComputeRunningProcesses_v3"] == 3


def test_the_process_list_is_read_again_when_the_use_has_changed(proc: Path) -> None:
    """What this process has taken outside its allocator is known at the tick that shows it in use."""
    gpu = FakeGpu(used=1000 * MIB, processes={"Compute": [(os.getpid(), 1000 * MIB)]})
    watched = Watched([gpu], proc)
    watched(0.0)
    gpu.used, gpu.processes = 1300 * MIB, {"Compute": [(os.getpid(), 1300 * MIB)]}

    assert watched(0.5)["cuda:0/context"] == 1300 * MIB


def test_a_look_is_timed_by_the_cpu_it_takes() -> None:
    """Waiting for the interpreter beside busy Python code, up to 5 ms a call, is not what a look costs."""
    assert inspect.signature(Gpu).parameters["cpu"].default is time.thread_time


def test_a_slow_process_list_takes_a_hundredth_of_the_time(proc: Path) -> None:
    """Where a look takes 5 ms, there is half a second before the next, however often the use changes."""
    gpu, times = FakeGpu(), count(0.0, 0.005)
    fake = FakeNvml([gpu])
    fake.nvmlInit()
    one = Gpu(fake, gpu, "cuda:0", process_ids(proc), print, cpu=lambda: next(times))
    for tick in range(11):
        gpu.used = (tick + 1) * MIB
        one.read(tick / 10)

    assert fake.calls["ComputeRunningProcesses_v3"] == 3


def test_a_gpu_that_only_others_use_is_read_once_a_second(proc: Path) -> None:
    """Beside one that this process uses; as long as it uses none, all are read each time."""
    gpus = two_cards()
    watched = Watched(gpus, proc, opened=[1])
    of_others, own = [], []
    for tick in range(25):
        if tick == 2:
            watched.uuids = [gpu.uuid for gpu in gpus]
        for gpu in gpus:
            gpu.used = tick * MIB
        values = watched(tick / 10)
        of_others.append(round(values["cuda:0/device_used"] / MIB))
        own.append(round(values["cuda:1/device_used"] / MIB))

    assert own == list(range(25))
    assert of_others == [0, 1, *[2] * 10, *[12] * 10, *[22] * 3]
