"""Everything that can be wrong with NVML."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.sources.nvml import RETRY_INTERVAL, NvmlSource
from tests.fakes.nvml import GIB, FakeGpu
from tests.fakes.nvml_source import Watched, two_cards


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
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, ["", "GPU-b"]),
        (pynvml.NVML_ERROR_NO_PERMISSION, ["GPU-b"]),
    ],
)
def test_a_card_lost_from_the_start_keeps_its_number(
    proc: Path, fault: int, uuids: list[str]
) -> None:
    """One that this process may not open, as another job's, is none to CUDA either: the numbers close up."""
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
    gpu = FakeGpu(faults={"MemoryInfo": fault})
    watched = Watched([gpu], proc)
    watched(0.0)
    values = watched(0.1)

    assert math.isnan(values["cuda:0/device_used"])
    assert values["cuda:0/utilization"] == 50
    assert len(watched.source.notes) <= 2
    assert len(set(watched.source.notes)) == len(watched.source.notes)


def test_a_passing_fault_passes(proc: Path) -> None:
    """After a reading that timed out, the next one counts."""
    gpu = FakeGpu()
    watched = Watched([gpu], proc)
    watched(0.0)
    gpu.faults["MemoryInfo"] = pynvml.NVML_ERROR_TIMEOUT
    assert math.isnan(watched(0.1)["cuda:0/device_used"])
    gpu.faults.clear()

    assert watched(0.2)["cuda:0/device_used"] == 1 * GIB


@pytest.mark.parametrize("call", ["UtilizationRates", "ComputeRunningProcesses"])
def test_missing_extras_are_quiet(proc: Path, call: str) -> None:
    """What MIG and vGPU do not tell is not available, without a note."""
    watched = Watched([FakeGpu(faults={call: pynvml.NVML_ERROR_NOT_SUPPORTED})], proc)

    assert watched(0.0)["cuda:0/device_used"] == 1 * GIB
    assert watched.source.notes == []


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "No NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not running"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "No permission"),
        (pynvml.NVML_ERROR_UNKNOWN, "nvidia-smi"),
    ],
)
def test_without_nvml_one_sentence_says_why(proc: Path, fault: int, word: str) -> None:
    """Each reason has one note with its remedy; trying again every half minute adds none."""
    watched = Watched([FakeGpu()], proc, init_fault=fault)
    for now in range(0, 100, 5):
        assert watched(float(now)) == {}

    assert len(watched.source.notes) == 1
    assert word in watched.source.notes[0]
    assert watched.nvml.calls["Init"] == 4


def test_nvml_that_comes_later_is_used(proc: Path) -> None:
    """Once the driver runs, its devices appear."""
    watched = Watched([FakeGpu()], proc, init_fault=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    watched(0.0)
    watched.nvml.init_fault = None

    assert watched(RETRY_INTERVAL - 1) == {}
    assert watched(RETRY_INTERVAL)["cuda:0/device_used"] == 1 * GIB


def test_without_the_package_one_sentence_says_so() -> None:
    """A missing nvidia-ml-py is said with the way to get it."""

    def missing() -> Any:
        raise ImportError("No module named 'pynvml'")

    source = NvmlSource(lambda: None, {}, load=missing)

    assert source.read(0.0) == []
    assert "nvidia-ml-py" in source.notes[0]


def test_nvml_shut_by_another_is_opened_once_more(proc: Path) -> None:
    """If somebody shut NVML down under us, the next reading opens it again, without a word."""
    watched = Watched([FakeGpu()], proc)
    watched(0.0)
    watched.nvml.initialized = False

    assert math.isnan(watched(0.1)["cuda:0/device_used"])
    assert watched(0.2)["cuda:0/device_used"] == 1 * GIB
    assert watched.source.notes == []


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


def test_closing_shuts_nvml_down_once(proc: Path) -> None:
    """NVML is shut if it was opened, and stays shut."""
    watched = Watched([FakeGpu()], proc)
    watched(0.0)
    watched.source.close()

    assert watched.nvml.calls["Shutdown"] == 1
    assert math.isnan(watched(100.0)["cuda:0/device_used"])
    assert watched.nvml.calls["Init"] == 1


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
