"""Recording the allocator's history: when it begins, what it leaves alone, how it ends."""

import os
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.sources.torch_history import CudaHistory, TorchHistory, XpuHistory
from hfmem_widget.sources.torch_xpu import XpuAllocator
from tests.fakes.torch_history import FakeTorch

HISTORIES = {"cuda": CudaHistory, "xpu": XpuHistory}


def begin(torch: ModuleType, device: str = "cuda", **options: Any) -> TorchHistory:
    history = HISTORIES[device]({"torch": torch}, **options)
    history.look()
    return history


@pytest.mark.parametrize("clears", [{"clear_history": True}, {}], ids=["today's", "an older torch"])
def test_it_records_where_cuda_is_up(clears: dict[str, bool]) -> None:
    """A recording is bounded, begins empty, and has Python's stacks alone: C++ ones take minutes to read."""
    torch = FakeTorch(knows_clearing=bool(clears))
    assert begin(torch, most=7).state == "recording"
    options = {"context": "alloc", "stacks": "python", "max_entries": 7} | clears
    assert torch.calls == [("record", ("all", options))]


def test_it_ends_with_a_snapshot_and_the_state_as_it_was() -> None:
    """A recording ends with a snapshot, and only then is torch's history off again."""
    torch = FakeTorch()
    recording = begin(torch).end()
    assert recording is not None
    assert recording.snapshot is torch.snapshot
    assert [name for name, _ in torch.calls] == ["record", "snapshot", "record"]
    assert not torch.recording


def test_a_snapshot_that_fails_still_ends_the_recording() -> None:
    """A snapshot that fails still ends the recording, which would slow down all that follows."""
    torch = FakeTorch()
    history = begin(torch)
    torch.cuda.memory._snapshot = Mock(side_effect=RuntimeError)
    with pytest.raises(RuntimeError):
        history.end()
    assert not torch.recording


def test_what_the_user_has_ended_is_not_ended_again() -> None:
    """A recording that the user has ended is not ended again, since that leaves hooks (pytorch#153571)."""
    torch = FakeTorch()
    history = begin(torch)
    torch.recording = False
    assert history.end() is None
    assert [name for name, _ in torch.calls] == ["record"]
    assert "ended the recording" in history.obstacle


@pytest.mark.parametrize(("device", "events"), [("cuda", 0), ("xpu", 0), ("xpu", 1)])
def test_the_users_own_recording_is_left_alone(device: str, events: int) -> None:
    """A recording of the user's goes on, is read only on XPU, which shows it no other way, and is noted."""
    torch = FakeTorch(device)
    torch.recording = True
    for address in range(events):
        torch.alloc(address, 10)
    history = begin(torch, device)
    assert history.end() is None
    assert {name for name, _ in torch.calls} == ({"snapshot"} if device == "xpu" else set())
    assert torch.recording
    assert history.obstacle.startswith("Your code is recording")
    assert f"torch.{device}.memory._record_memory_history(enabled=None)" in history.obstacle


@pytest.mark.parametrize("device", HISTORIES)
def test_a_watch_within_a_watch_leaves_the_outer_one_recording(device: str) -> None:
    """An inner watch does not read the outer one's recording, nor call it the user's."""
    torch = FakeTorch(device)
    outer = begin(torch, device)
    torch.calls.clear()
    inner = begin(torch, device)
    assert "around this one" in inner.obstacle
    assert inner.end() is None
    assert torch.calls == []
    assert outer.end() is not None


@pytest.mark.parametrize("device", HISTORIES)
def test_it_begins_with_the_device_before_the_first_allocation(device: str) -> None:
    """Nothing is recorded until the user's code brings it up, and then at once, in one format for all."""
    torch = FakeTorch(device, initialized=False)
    started: list[bool] = []
    history = begin(torch, device, most=7, on_start=lambda: started.append(True))
    assert torch.calls == []
    torch.initialize()
    torch.alloc(1, 10)
    assert (history.state, started) == ("recording", [True])
    recording = history.end()
    assert recording is not None
    assert (recording.device_type, recording.most) == (device, 7)
    assert [event["action"] for event in recording.snapshot["device_traces"][0]] == ["alloc"]
    assert not torch.recording


def test_nothing_waits_for_cuda_once_it_has_ended() -> None:
    """Torch's queue is as before, and while another thread brings CUDA up it is not touched."""
    torch = FakeTorch(initialized=False)
    torch.cuda._lazy_call(print)
    history = begin(torch)
    assert history.end() is None
    assert [call for call, _ in torch.cuda._queued_calls] == [print]
    assert history.obstacle == ""
    late = begin(torch)
    with torch.cuda._initialization_lock:
        late.end()
    torch.initialize()
    assert torch.calls == []


def test_our_fault_does_not_reach_cudas_initialisation(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault is one line on stderr: torch would raise "CUDA call failed lazily" in the user's code."""
    torch = FakeTorch(initialized=False)
    begin(torch)
    torch.cuda.memory._record_memory_history = Mock(side_effect=ValueError("odd"))
    torch.initialize()
    assert "ValueError: odd" in capsys.readouterr().err


def test_a_forked_child_does_not_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child inherits torch's queue, and records nothing."""
    torch = FakeTorch(initialized=False)
    begin(torch)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    torch.initialize()
    assert torch.calls == []


@pytest.mark.parametrize("message", ["cudaMallocAsync", "not supported"])
def test_an_allocator_without_a_history_costs_a_sentence(message: str) -> None:
    """CUDA's own allocator is not asked; a pluggable one may refuse."""
    torch = FakeTorch(backend=message)
    torch.cuda.memory._record_memory_history = Mock(side_effect=RuntimeError(message))
    assert message in begin(torch).obstacle
    assert torch.cuda.memory._record_memory_history.called is (message == "not supported")


def test_a_torch_that_is_being_imported_is_left_to_it() -> None:
    """A torch that is being imported is not called before it is complete."""
    torch = FakeTorch()
    torch.__spec__ = type("Spec", (), {"_initializing": True})()
    history = begin(torch)
    assert torch.calls == []
    history.look(imported=True)
    assert [name for name, _ in torch.calls] == ["record"]


def test_on_xpu_what_the_user_has_ended_is_empty() -> None:
    """On XPU a recording that the user has ended is read once, is empty, and stays off."""
    torch = FakeTorch("xpu")
    history = begin(torch, "xpu")
    torch.alloc(1, 10)
    torch.xpu.memory._record_memory_history(enabled=None)
    torch.calls.clear()
    recording = history.end()

    assert recording is not None
    assert recording.snapshot["device_traces"] == [[]]
    assert [name for name, _ in torch.calls] == ["snapshot", "record"]
    assert not torch.recording


def test_on_xpu_an_older_torch_is_said_to_be_too_old() -> None:
    """An older build for XPU is named as too old; a build for another device is no obstacle."""
    torch = FakeTorch("xpu")
    del torch._C._xpu_recordMemoryHistory

    assert "use torch 2.13 or later" in begin(torch, "xpu").obstacle
    for built_for, device in (("cuda", "xpu"), ("xpu", "cuda")):
        history = begin(FakeTorch(built_for), device)
        assert (history.state, history.obstacle) == ("refused", "")


def test_on_xpu_a_quick_look_at_the_segments_brings_no_history_along() -> None:
    """While a history is recorded, segments are not listed quickly, as torch would copy it too."""
    torch = FakeTorch("xpu")
    torch.xpu.memory_snapshot = lambda: torch.snapshot["segments"]
    allocator = XpuAllocator({"torch": torch})
    history = begin(torch, "xpu")

    with pytest.raises(SourceUnavailable, match="together with their history"):
        allocator.snapshot(quick=True)
    assert allocator.snapshot() == []
    history.end()
    assert allocator.snapshot(quick=True) == []
