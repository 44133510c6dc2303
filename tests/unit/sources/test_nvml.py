"""Device memory through NVML: which devices, what their figures mean, and everything that can be wrong."""

import math
import os
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.nvml import RETRY_INTERVAL, is_provisional, visible
from hfmem_widget.sources.nvml_gpu import Gpu
from hfmem_widget.sources.procfs import process_ids
from tests.fakes.nvml import GIB, MIB, FakeGpu, FakeNvml
from tests.fakes.nvml_source import HOST_NAMESPACE, FakeCuda, Watched, make_proc, two_cards
from tests.fakes.torch_cuda import FakeAllocator


def test_nothing_is_opened_before_the_first_reading_nor_after_the_end(proc: Path) -> None:
    """Making the source loads and initialises nothing; NVML is shut once if it was opened."""
    watched = Watched([FakeGpu()], proc)

    assert not watched.nvml.calls
    assert watched.source.series == ()
    watched(0.0)
    watched.source.close()
    assert math.isnan(watched(100.0)["cuda:0/device_used"])
    assert (watched.nvml.calls["Init"], watched.nvml.calls["Shutdown"]) == (1, 1)


@pytest.mark.parametrize("includes_reserve", [True, False])
def test_the_reserve_is_apart(proc: Path, includes_reserve: bool) -> None:
    """The driver's reserve is apart from what is in use, whether or not the driver adds it."""
    watched = Watched([FakeGpu(includes_reserve=includes_reserve)], proc)
    values = watched(0.0)

    assert values["cuda:0/device_used"] == 1 * GIB
    assert values["cuda:0/driver_reserved"] == 600 * MIB
    assert watched.source.devices[0].total == 80 * GIB


def split_card() -> FakeGpu:
    """Return a card in MIG mode with two instances."""
    parts = [FakeGpu(name=f"NVIDIA Fake MIG {n}", uuid=f"MIG-{n}", total=n * GIB) for n in (10, 20)]
    return FakeGpu(instances=parts)


@pytest.mark.parametrize(
    ("cards", "chosen", "uuids"),
    [
        (two_cards(), "1", ["GPU-bbb"]),
        (two_cards(), "", []),
        ([split_card()], "MIG-20", ["MIG-20"]),
        ([split_card()], "0", ["MIG-10"]),
    ],
)
def test_the_environment_chooses_until_cuda_is_up(
    proc: Path, cards: list[FakeGpu], chosen: str, uuids: list[str]
) -> None:
    """`CUDA_VISIBLE_DEVICES` says which GPU or instance is cuda:0: by ordinal that is a guess."""
    watched = Watched(cards, proc, environ={"CUDA_VISIBLE_DEVICES": chosen})
    watched(0.0)

    assert [device.uuid for device in watched.source.devices] == uuids
    assert all(device.provisional is chosen.isdigit() for device in watched.source.devices)
    assert watched.source.notes == []


def test_unlike_cards_are_provisional_until_cuda_names_them(proc: Path) -> None:
    """CUDA counts the fastest first; its UUIDs then settle it, with a note, whatever the environment says."""
    watched = Watched(two_cards(), proc)
    watched(0.0)
    assert all(device.provisional for device in watched.source.devices)
    watched.cuda.known = ["GPU-bbb", "GPU-aaa"]
    watched(0.1)
    watched.environ["CUDA_VISIBLE_DEVICES"] = "0"

    assert watched(0.2)["cuda:0/device_used"] == 2 * GIB
    assert not any(device.provisional for device in watched.source.devices)
    assert len(watched.source.notes) == 1
    assert watched.nvml.calls["HandleByUUID"] == 2


def test_a_device_the_driver_does_not_know(proc: Path) -> None:
    """If NVML cannot find CUDA's device, it is not available, and the others are."""
    watched = Watched(two_cards(), proc)
    watched.cuda.known = ["GPU-other", "GPU-aaa"]
    values = watched(0.0)

    assert math.isnan(values["cuda:0/device_used"])
    assert values["cuda:1/device_used"] == 1 * GIB
    assert "GPU-other" in watched.source.notes[0]


@pytest.mark.parametrize("uuid", ["MIG-20", "GPU-20"])
def test_an_instance_has_its_own_memory(proc: Path, uuid: str) -> None:
    """A MIG instance is found by CUDA's UUID under either prefix, and its own total is shown."""
    watched = Watched([split_card()], proc)
    watched.cuda.known = [uuid]
    watched(0.0)

    assert watched.source.devices[0].total == 20 * GIB
    assert watched.source.devices[0].uuid == "MIG-20"


ME = os.getpid()
LISTED: list[tuple[int, float | None]] = [(ME, 300.0 * MIB)]
SHARES: dict[str, tuple[dict[str, list[tuple[int, float | None]]], str, str, float]] = {
    "beside others": ({"Compute": [(1, 100 * MIB), *LISTED]}, "", "", 300 * MIB),
    "in two lists, once": ({"Compute": LISTED, "Graphics": LISTED}, "", "", 300 * MIB),
    "where it only draws": ({"Graphics": LISTED}, "", "", 300 * MIB),
    "where it computes through MPS": ({"MPSCompute": LISTED}, "", "", 300 * MIB),
    "unlisted, where all ids are ours": ({"Compute": [(1, 100 * MIB)]}, "", "", 0.0),
    "under its id in an outer namespace": (
        {"Compute": [(12345678, 300 * MIB)]}, "pid:[4026532000]", "12345678\t7", 300 * MIB,
    ),
    "listed without its memory, as WDDM does": ({"Compute": [(ME, None)]}, "", "", math.nan),
}  # fmt: skip
"""What the driver lists, this process' namespace and ids, and its share."""


@pytest.mark.parametrize("name", SHARES)
def test_this_process_has_what_the_driver_lists_for_it(tmp_path: Path, name: str) -> None:
    """Others have the rest, and the context is what torch has not reserved; what is unknown is NaN."""
    processes, namespace, ids, share = SHARES[name]
    options = {"nspid": ids} if ids else {}
    proc = make_proc(tmp_path, namespace or HOST_NAMESPACE, **options)
    gpu = FakeGpu(processes=processes)
    values = Watched([gpu], proc, reserved=lambda _uuid: 80.0 * MIB)(0.0)

    figures = [values[f"cuda:0/{metric}"] for metric in ("process", "others", "context")]
    context = max(share - 80 * MIB, 0.0)
    assert figures == pytest.approx([share, 1 * GIB - share, context], nan_ok=True)


def test_an_allocator_without_counters_leaves_the_drivers_figures(proc: Path) -> None:
    """A pluggable allocator raises: the context alone, which needs both figures, is not known."""
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


def test_a_context_needs_figures_of_one_instant(proc: Path) -> None:
    """While the allocator takes a segment between two readings, the context stays as it was."""
    gpu = FakeGpu(processes={"Compute": [(os.getpid(), 700 * MIB)]})
    readings = iter([80.0 * MIB, 80.0 * MIB, 80.0 * MIB, 500.0 * MIB])
    watched = Watched([gpu], proc, reserved=lambda _uuid: next(readings))
    first = watched(0.0)["cuda:0/context"]
    gpu.processes["Compute"] = [(os.getpid(), 1100 * MIB)]

    assert watched(2.0)["cuda:0/context"] == first == 620 * MIB


def test_memory_that_is_freed_meanwhile_is_not_that_of_others(proc: Path) -> None:
    """An allocator may return gigabytes between the readings of the device and of its processes."""
    gpu = FakeGpu(used=50 * GIB)

    def freed(_uuid: str) -> float:
        gpu.used, gpu.processes["Compute"] = 1 * GIB, [(ME, 700 * MIB)]
        return 80.0 * MIB

    values = Watched([gpu], proc, reserved=freed)(0.0)

    assert values["cuda:0/device_used"] == 50 * GIB
    assert values["cuda:0/others"] == 1 * GIB - 700 * MIB


def test_unlisted_in_a_container_is_not_guessed(tmp_path: Path) -> None:
    """In another namespace, one foreign process in the list is not taken for this one."""
    gpu = FakeGpu(processes={"Compute": [(1, 900 * MIB)]})
    watched = Watched([gpu], make_proc(tmp_path, "pid:[4026532000]"))

    assert math.isnan(watched(0.0)["cuda:0/process"])
    assert watched.source.notes == []
    watched.cuda.known = [gpu.uuid]
    watched(0.1)
    watched(2.0)
    assert len(watched.source.notes) == 1


def test_what_costs_more_is_read_less_often(proc: Path) -> None:
    """Memory is read every tick, utilisation once a second, the processes every 5 s while nothing changes."""
    watched = Watched([FakeGpu()], proc)
    for tick in range(101):
        watched(tick / 10)

    assert watched.nvml.calls["UtilizationRates"] == 11
    assert watched.nvml.calls["ComputeRunningProcesses"] == 3
    assert watched.nvml.calls["MemoryInfo"] == 101 + 3 + 1


def test_the_process_list_is_read_again_when_the_use_has_changed(proc: Path) -> None:
    """What this process has taken outside its allocator is known at the tick that shows it in use."""
    gpu = FakeGpu(used=1000 * MIB, processes={"Compute": [(os.getpid(), 1000 * MIB)]})
    watched = Watched([gpu], proc)
    watched(0.0)
    gpu.used, gpu.processes = 1300 * MIB, {"Compute": [(os.getpid(), 1300 * MIB)]}

    assert watched(0.5)["cuda:0/context"] == 1300 * MIB


def test_a_slow_process_list_takes_a_hundredth_of_the_time(proc: Path) -> None:
    """Where a look takes 5 ms, there is half a second before the next, however often the use changes."""
    gpu, times = FakeGpu(), count(0.0, 0.005)
    fake = FakeNvml([gpu])
    fake.nvmlInit()
    one = Gpu(
        fake, gpu, "cuda:0", process_ids(proc), print, cuda=FakeCuda(), cpu=lambda: next(times)
    )
    for tick in range(11):
        gpu.used = (tick + 1) * MIB
        one.read(tick / 10)

    assert fake.calls["ComputeRunningProcesses"] == 3


def test_a_gpu_that_only_others_use_is_read_once_a_second(proc: Path) -> None:
    """A GPU that only others use is read once a second, once this process uses another."""
    gpus = two_cards()
    watched = Watched(gpus, proc, opened=[1])
    others_used, devices_used = [], []
    for tick in range(25):
        if tick == 2:
            watched.cuda.known = [gpu.uuid for gpu in gpus]
        for gpu in gpus:
            gpu.used = tick * MIB
        values = watched(tick / 10)
        others_used.append(round(values["cuda:0/device_used"] / MIB))
        devices_used.append(round(values["cuda:1/device_used"] / MIB))

    assert devices_used == list(range(25))
    assert others_used == [0, 1, *[2] * 10, *[12] * 10, *[22] * 3]


def test_a_lost_gpu_ends_and_the_others_go_on(proc: Path) -> None:
    """The last values of a lost GPU are never repeated, and one note says that it is lost."""
    cards = two_cards()
    watched = Watched(cards, proc)
    watched(0.0)
    cards[0].faults["all"] = pynvml.NVML_ERROR_GPU_IS_LOST
    values = watched(0.1)
    cards[0].faults.clear()

    assert all(
        math.isnan(values[f"cuda:0/{one}"]) for one in ("device_used", "process", "utilization")
    )
    assert values["cuda:1/device_used"] == 2 * GIB
    assert math.isnan(watched(0.2)["cuda:0/device_used"])
    assert len(watched.source.notes) == 1
    assert "lost" in watched.source.notes[0]


def test_a_gpu_lost_between_two_calls_ends_at_once(proc: Path) -> None:
    """If the process list is what says that a GPU is lost, its memory of just before is not shown."""
    gpu = FakeGpu(faults={"ComputeRunningProcesses": pynvml.NVML_ERROR_GPU_IS_LOST})
    watched = Watched([gpu], proc)

    assert all(math.isnan(one) for one in watched(0.0).values())
    assert "lost" in watched.source.notes[0]


@pytest.mark.parametrize(
    ("fault", "uuids"),
    [(pynvml.NVML_ERROR_GPU_IS_LOST, ["", "GPU-b"]), (pynvml.NVML_ERROR_NO_PERMISSION, ["GPU-b"])],
)
def test_a_card_lost_at_first_keeps_its_number(proc: Path, fault: int, uuids: list[str]) -> None:
    """A lost card keeps its number; one that this process may not open has none, as with CUDA."""
    cards = [FakeGpu(faults={"HandleByIndex": fault}), FakeGpu(uuid="GPU-b")]
    watched = Watched(cards, proc)
    watched(0.0)

    assert [device.uuid for device in watched.source.devices] == uuids


@pytest.mark.parametrize(
    "fault",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN],
)
def test_memory_that_cannot_be_read_is_not_available(proc: Path, fault: int) -> None:
    """Without memory figures the rest is still read, and one note says why."""
    watched = Watched([FakeGpu(faults={"MemoryInfo": fault})], proc)
    watched(0.0)
    values = watched(0.1)

    assert math.isnan(values["cuda:0/device_used"])
    assert values["cuda:0/utilization"] == 50
    assert len(watched.source.notes) <= 2
    assert len(set(watched.source.notes)) == len(watched.source.notes)


@pytest.mark.parametrize("is_shut", [False, True], ids=["a reading timed out", "NVML was shut"])
def test_after_a_passing_fault_the_next_reading_counts(proc: Path, *, is_shut: bool) -> None:
    """NVML that somebody shut down under us is opened again, without a word."""
    gpu = FakeGpu()
    watched = Watched([gpu], proc)
    watched(0.0)
    watched.nvml.initialized = not is_shut
    gpu.faults["MemoryInfo"] = pynvml.NVML_ERROR_TIMEOUT
    assert math.isnan(watched(0.1)["cuda:0/device_used"])
    gpu.faults.clear()

    assert watched(0.2)["cuda:0/device_used"] == 1 * GIB
    assert not is_shut or watched.source.notes == []


@pytest.mark.parametrize("call", ["UtilizationRates", "ComputeRunningProcesses"])
def test_missing_extras_are_quiet(proc: Path, call: str) -> None:
    """What MIG and vGPU do not tell is not available, without a note."""
    watched = Watched([FakeGpu(faults={call: pynvml.NVML_ERROR_NOT_SUPPORTED})], proc)

    assert watched(0.0)["cuda:0/device_used"] == 1 * GIB
    assert watched.source.notes == []


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "No NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not running"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "No permission"),
        (pynvml.NVML_ERROR_UNKNOWN, "nvidia-smi"),
    ],
)
def test_without_nvml_one_sentence_says_why(proc: Path, fault: int, part: str) -> None:
    """Each reason has one note with its remedy; trying again every half minute adds none."""
    watched = Watched([FakeGpu()], proc, init_fault=fault)
    for now in range(0, 100, 5):
        assert watched(float(now)) == {}

    assert len(watched.source.notes) == 1
    assert part in watched.source.notes[0]
    assert watched.nvml.calls["Init"] == 4


def test_nvml_that_comes_later_is_used(proc: Path) -> None:
    """Once the driver runs, its devices appear."""
    watched = Watched([FakeGpu()], proc, init_fault=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    watched(0.0)
    watched.nvml.init_fault = None

    assert watched(RETRY_INTERVAL - 1) == {}
    assert watched(RETRY_INTERVAL)["cuda:0/device_used"] == 1 * GIB


def test_nvml_shut_again_and_again_is_not_fought_for(proc: Path) -> None:
    """From the second time on, NVML is opened at most twice a minute."""
    watched = Watched([FakeGpu()], proc)
    for tick in range(100):
        watched(tick / 10)
        watched.nvml.initialized = False

    assert watched.nvml.calls["Init"] == 2


def test_a_forked_child_opens_its_own(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork, the parent's handles are dropped, and NVML is opened again."""
    watched = Watched([FakeGpu()], proc)
    watched(0.0)
    monkeypatch.setattr(os, "getpid", lambda: -2)

    assert watched(0.1)["cuda:0/device_used"] == 1 * GIB
    assert watched.nvml.calls["Init"] == 2
    assert watched.nvml.calls["Shutdown"] == 0


ABSURD = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.just(float(2**64 - 1)), st.just(-1.0)
)


@given(total=ABSURD, used=ABSURD, reserved=ABSURD, share=st.one_of(st.none(), ABSURD), busy=ABSURD)
def test_absurd_figures_are_not_available(
    total: float, used: float, reserved: float, share: float | None, busy: float
) -> None:
    """Whatever the driver says, a value lies between 0 and the device's total, or is NaN."""
    gpu = FakeGpu(
        total=total,
        used=used,
        reserved=reserved,
        utilization=busy,
        processes={"Compute": [(os.getpid(), share)]},
    )
    values = Watched([gpu], Path("/nowhere"))(0.0)

    for metric in ("device_used", "driver_reserved", "process", "others"):
        one = values[f"cuda:0/{metric}"]
        assert math.isnan(one) or 0 <= one <= total
    assert math.isnan(values["cuda:0/utilization"]) or 0 <= values["cuda:0/utilization"] <= 100


GPUS = ("GPU-aaa0", "GPU-aaa1", "GPU-bbb2", "GPU-ccc3")
INSTANCES = ("MIG-one", "MIG-two", "MIG-GPU-aaa0/1/0")


SHOWN: dict[tuple[int, ...], tuple[str | None, ...]] = {
    (0, 1, 2, 3): (None,),
    (): (
        *("", "NoDevFiles", "-1", "2,2", "0,7,7", "99999999999999999999999"),
        *("GPU-aaa", "GPU-b,GPU-b", "GPU-b,GPU-bbb", "gpu-bbb2", "MIG-none"),
    ),
    (0,): ("0", "0,-1,1", "0,7,1", "0,,1", "0,GPU-bbb2"),
    (1, 0): ("1,0",),
    (2, 3): (" 2 , 3 ",),
    (1, 2): ("1gpu2,2x",),
    (2,): (
        *("+2", "GPU-bbb2", "GPU-b", "GPU-b,GPU-aaa,GPU-c", "GPU-b,GPU-none,GPU-c", "GPU-b,0"),
        *("GPU-b, GPU-c", "MIG-GPU-aaa0/1/0"),
    ),
    (3, 2): ("GPU-c,GPU-b",),
    (1,): ("MIG-two", "MIG-two,MIG-one"),
}
"""The devices that CUDA shows, and the values of `CUDA_VISIBLE_DEVICES` by which it shows these."""


@pytest.mark.parametrize(
    ("value", "expected"), [(value, shown) for shown, values in SHOWN.items() for value in values]
)
def test_visible_devices_are_read_as_by_cuda(value: str | None, expected: tuple[int, ...]) -> None:
    """By ordinal as of strtoul or by unique prefix, up to an invalid one; of MIG instances the first."""
    uuids = INSTANCES if (value or "").startswith("MIG-") else GPUS
    assert visible(value, uuids) == expected


@pytest.mark.parametrize("ordinal", [None, "0,1"])
def test_ordinals_are_certain_only_in_one_order(ordinal: str | None) -> None:
    """Among unlike GPUs, CUDA counts the fastest first unless told otherwise; a UUID means one GPU."""
    assert is_provisional(ordinal, None, ("A100", "T4"))
    assert is_provisional(ordinal, "FASTEST_FIRST", ("A100", "T4"))
    assert not is_provisional(ordinal, "PCI_BUS_ID", ("A100", "T4"))
    assert not is_provisional(ordinal, None, ("A100", "A100"))
    assert not is_provisional("GPU-b", None, ("A100", "T4"))


@given(st.text(alphabet="0123456789+-,GPUMIabc \t٣", max_size=40))
def test_any_text_shows_a_set_of_devices(value: str) -> None:
    """Whatever stands in the variable, the answer is distinct devices that are there."""
    shown = visible(value, GPUS)

    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(range(len(GPUS)))
