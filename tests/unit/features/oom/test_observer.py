"""The observer of the CUDA allocator: it notes figures and names, and disturbs nothing."""

import threading
import weakref
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget.features.oom.observer import (
    BACKWARD,
    MOST_BLOCKS,
    LiveBlocks,
    OomEvent,
    OomObserver,
    summed_up,
)
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.torch_oom import FakeCuda, run_on_a_thread_of_c, wait_as_torch_does

GIB = 1 << 30

FRAME = {"filename": "/somewhere/train.py", "line": 12, "name": "step"}
LIBRARY = {
    "filename": "/usr/lib/python3.12/site-packages/torch/nn/functional.py",
    "line": 2,
    "name": "linear",
}
CELL = {"filename": "/tmp/ipykernel_77/1234.py", "line": 4, "name": "attend"}
IN_C = {"filename": "??", "line": 0, "name": "malloc"}

SEGMENTS = [
    {
        "device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "blocks": [
            {"size": 3 * GIB, "state": "active_allocated", "frames": [IN_C, LIBRARY, FRAME]},
            {"size": 1 * GIB, "state": "inactive", "frames": []},
            {"size": 3 * GIB, "state": "active_allocated", "frames": [LIBRARY, FRAME]},
            {"size": 2 * GIB, "state": "inactive", "frames": []},
            {"size": 4 * GIB, "state": "active_pending_free", "frames": []},
        ],
    },
    {
        "device": 0, "stream": 7, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True,
        "blocks": [{"size": 512, "state": "inactive"}, {"size": 1024, "state": "active_allocated"}],
    },
    {
        "device": 0, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
        "blocks": [{"size": 2 << 20, "state": "inactive"}],
    },
    {
        "device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (3, 1),
        "blocks": [{"size": 9 * GIB, "state": "inactive"}],
    },
    {"device": 1, "stream": 0, "segment_type": "large", "blocks": [{"size": 40 * GIB, "state": "inactive"}]},
]  # fmt: skip


def listening(**more: Any) -> tuple[FakeCuda, list[OomEvent]]:
    """Return a torch with blocks, and the list of its events to come."""
    cuda = FakeCuda(SEGMENTS)
    events: list[OomEvent] = []
    OomObserver(CudaAllocator(cuda.modules), **more).listen(events.append)
    return cuda, events


def observed(cuda: FakeCuda, **more: int) -> list[OomEvent]:
    events: list[OomEvent] = []
    OomObserver(CudaAllocator(cuda.modules)).listen(events.append)
    cuda.run_out(**more)
    return events


def test_an_event_has_the_allocators_figures() -> None:
    """It has the request, free memory, ceiling, counters, the card and the running functions."""
    cuda = FakeCuda(SEGMENTS)
    cuda.stats["allocated_bytes"]["all"]["current"] = 6 * GIB
    (event,) = observed(cuda, asked=4 * GIB, free=GIB, ceiling=16 * GIB)
    assert (event.device, event.asked, event.free) == ("cuda:0", 4 * GIB, GIB)
    assert (event.ceiling, event.readings["allocated"]) == (16 * GIB, 6 * GIB)
    assert (event.total, event.capability, event.autocast) == (80 * GIB, (9, 0), False)
    assert event.calls[0] == "tests.fakes.torch_oom.run_out"
    assert f"{__name__}.observed" in event.calls


def test_a_backward_pass_is_named_by_its_waiting_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """Autograd's thread has no Python: all figures are there, with the caller of the backward pass."""
    cuda, events = listening()

    def training_step() -> None:
        cuda.run_out_in_backward(4 * GIB)

    training_step()

    assert capsys.readouterr().err == ""
    (event,) = events
    assert (event.asked, event.total, event.blocks is not None) == (4 * GIB, 80 * GIB, True)
    assert BACKWARD in event.calls
    assert f"{__name__}.training_step" in event.calls
    assert event.autocast is None


def test_python_within_a_backward_pass_comes_first() -> None:
    """Functions on autograd's thread, such as a user's Function, come before those of the waiting thread."""
    cuda, events = listening()

    def backward() -> None:
        cuda.run_out()

    wait_as_torch_does(partial(run_on_a_thread_of_c, backward))

    calls = events[0].calls
    assert calls.index(f"{__name__}.backward") < calls.index(BACKWARD)
    assert events[0].autocast is None


def test_another_thread_of_c_has_no_caller() -> None:
    """A thread that is not autograd's is not attributed to one that waits for autograd."""
    cuda, events = listening()
    cuda.run_out_in_backward(name=b"loader")
    assert [event.calls for event in events] == [()]


def test_of_two_backward_passes_none_is_named() -> None:
    """If two threads wait, either may be the caller, so neither is named."""
    cuda, events = listening()
    waits, ends = threading.Event(), threading.Event()

    def other() -> None:
        waits.set()
        ends.wait()

    thread = threading.Thread(target=wait_as_torch_does, args=(other,))
    thread.start()
    waits.wait()
    cuda.run_out_in_backward()
    ends.set()
    thread.join()
    assert [event.calls for event in events] == [()]


@pytest.mark.usefixtures("uncollected")
def test_no_frame_of_the_waiting_thread_is_kept() -> None:
    """A kept frame would keep the variables of its function until a collection."""
    cuda, events = listening()

    class Activations:
        pass

    def training_step() -> weakref.ref[Activations]:
        activations = Activations()
        cuda.run_out_in_backward()
        return weakref.ref(activations)

    assert training_step()() is None
    assert len(events) == 1


@pytest.mark.parametrize(
    ("size", "largest", "free"), [(4 * GIB, 2 * GIB, 3 * GIB + 512), (2 << 20, 2 << 20, 2 << 20)]
)
def test_blocks_are_summed_up(size: int, largest: int, free: int) -> None:
    """Large and small requests have separate pools; private pools and other devices are left out."""
    totals = summed_up(SEGMENTS, 0, size)
    assert (totals.largest_free, totals.free, totals.private_free) == (largest, free, 9 * GIB)
    assert (totals.count, totals.expandable) == (9, True)


def test_the_biggest_blocks_have_the_users_line() -> None:
    """Blocks of one line are one entry, and the line is the user's, not a library's."""
    biggest = summed_up(SEGMENTS, 0, 4 * GIB).biggest
    assert biggest == (
        LiveBlocks(3.0 * GIB, 2, "train.py, line 12, in step"),
        LiveBlocks(1024.0, 1, ""),
    )


@pytest.mark.parametrize(
    ("frames", "where"),
    [
        ([LIBRARY, CELL], "a cell, line 4, in attend"),
        ([LIBRARY], "functional.py, line 2, in linear"),
        ([IN_C], ""),
    ],
)
def test_where_a_block_was_made(frames: list[dict[str, object]], where: str) -> None:
    """A cell has no file name, which means nothing to people; without a user's line, a library's is given."""
    block = {"size": 8, "state": "active_allocated", "frames": frames}
    (biggest,) = summed_up([{"device": 0, "blocks": [block]}], 0, GIB).biggest
    assert biggest.where == where


@pytest.mark.parametrize(
    ("modules", "settled"), [({}, False), (FakeCuda(can_observe=False).modules, True)]
)
def test_where_there_are_no_observers_none_is_attached(modules: Any, *, settled: bool) -> None:
    """Torch may be imported later; a build for CPUs alone is asked once."""
    observer = OomObserver(CudaAllocator(modules))
    observer.listen(lambda _event: None)
    assert observer.settled is settled


def test_an_allocator_that_refuses_observers_is_asked_once() -> None:
    """Attaching raises under cudaMallocAsync, and only the error's text remains."""
    attached: list[object] = []

    def refuse(observer: object) -> None:
        attached.append(observer)
        raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")

    cuda = FakeCuda()
    cuda.extension._cuda_attach_out_of_memory_observer = refuse
    observer = OomObserver(CudaAllocator(cuda.modules))
    observer.listen(lambda _event: None)
    observer.attach()
    assert observer.settled
    assert len(attached) == 1


def test_a_fault_of_ours_does_not_reach_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    """A listener's exception becomes one line, since it would replace the user's own error."""
    cuda = FakeCuda()
    observer = OomObserver(CudaAllocator(cuda.modules))
    observer.listen(Mock(side_effect=ValueError("broken")))
    cuda.run_out()
    assert "ValueError: broken" in capsys.readouterr().err


def test_a_fault_of_torchs_does_not_reach_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    """An exception of the allocator's functions becomes a line or missing figures."""
    cuda = FakeCuda()
    cuda.stats = {}
    assert observed(cuda)[0].readings == {}
    cuda.extension._cuda_memoryStats = None
    assert observed(cuda) == []
    assert "not looked at" in capsys.readouterr().err


def test_without_listeners_nothing_is_read() -> None:
    """The observer stays attached, but costs nothing without a watch."""
    cuda = FakeCuda(SEGMENTS)
    events: list[OomEvent] = []
    observer = OomObserver(CudaAllocator(cuda.modules))
    observer.listen(events.append)
    observer.leave(events.append)
    cuda.run_out()
    assert not events
    assert cuda.snapshots == 0


def test_too_many_blocks_are_not_read() -> None:
    """Their number is known from the counters."""
    cuda = FakeCuda(SEGMENTS)
    cuda.stats["active"]["all"]["current"] = MOST_BLOCKS + 1
    (event,) = observed(cuda)
    assert event.blocks is None
    assert cuda.snapshots == 0


def test_blocks_of_frequent_events_are_read_now_and_then() -> None:
    """Reading takes a limited share of the time if code tries again and again."""
    times = iter((0.0, 0.1, 0.2, 0.2, 2.3, 2.4))
    cuda, events = listening(clock=lambda: next(times))
    for _ in range(3):
        cuda.run_out()
    assert [event.blocks is None for event in events] == [False, True, False]


def test_blocks_of_each_device_that_runs_out_are_read() -> None:
    """In a backward pass under DataParallel, all devices may run out at the same instant."""
    times = iter((0.0, 0.1, 0.1, 0.2))
    cuda, events = listening(clock=lambda: next(times))
    for device in range(2):
        cuda.run_out(device=device)
    assert [event.device for event in events if event.blocks is not None] == ["cuda:0", "cuda:1"]


def test_an_older_torch_lists_blocks_only_without_a_history() -> None:
    """Its list of blocks includes the recorded history, which takes seconds to copy."""
    cuda = FakeCuda(SEGMENTS, old=True)
    assert observed(cuda)[0].blocks is not None
    cuda.recording = True
    assert observed(cuda)[-1].blocks is None
