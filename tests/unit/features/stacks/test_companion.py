"""`--stacks` from end to end, with a fake CUDA and a real CPU."""

import sys
import time
from dataclasses import replace

import pytest

from hfmem_widget.features.stacks.companion import StacksCompanion
from hfmem_widget.features.stacks.dispatch_tracker import OperatorTracker
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Certainty, Device, Peak, Recorder, Sample, Series
from tests.fakes import accelerators
from tests.fakes.torch_cuda import FakeAllocator
from tests.fakes.torch_history import FakeTorch
from tests.scenes.stage import NO_MONITOR


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Return a torch with CUDA initialised, in place of the real one."""
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


class Watched:
    """A cell that is watched with stacks from its beginning."""

    def __init__(self, *devices: str, key: str = "cuda:0") -> None:
        self.recorder = Recorder("x", started_at=time.time() - 1.0)
        self.session = self.recorder.session
        self.recorder.adopt([Device(key, "GPU")], [Series(key, "allocated")])
        self.span = self.recorder.open_span("cell", "x", Sample(0.0, ()))
        self.companion = StacksCompanion(WatchOptions(stacks=True, devices=devices))
        self.companion.begin(NO_MONITOR, self.recorder, self.span)

    def end(self, error: BaseException | None = None) -> None:
        self.companion.end(self.recorder, self.span, error)

    def report(self, certainty: Certainty = "exact", **peaks: float) -> str:
        of_cuda = {f"cuda:0/{name}": Peak(size, certainty) for name, size in peaks.items()}
        shown = self.companion.report(self.session, replace(self.span, peaks=of_cuda))
        return "" if shown is None else shown["text/plain"]


def test_live_memory_is_shown_below_the_card(cuda: FakeTorch) -> None:
    """It stays in the session, compared with the ledger's exact peak; no listener is left."""
    watched = Watched()
    assert len(watched.recorder.subscribers) == 1
    cuda.alloc(1, 1000)
    watched.end()
    assert not watched.recorder.subscribers
    assert "to the byte: 1,000 requested" in watched.report(allocated=1024, requested=1000)
    assert watched.session.stacks is not None
    assert watched.session.stacks.peaks[0].exact
    assert watched.session.stacks.pickled
    assert not cuda.recording


def test_a_bound_does_not_prove_the_peak(cuda: FakeTorch) -> None:
    """Only an exact peak can be compared, even if the bound is the same."""
    watched = Watched()
    cuda.alloc(1, 1000)
    watched.end()
    assert "cannot be checked" in watched.report("at least", allocated=1024, requested=1000)


@pytest.mark.parametrize(("devices", "follows"), [((), []), (("cpu",), [True])])
def test_operators_are_followed_where_cuda_is_not_up_or_not_watched(
    cuda: FakeTorch, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], follows: list[bool]
) -> None:
    """If only the CPU is watched, its operators are followed even though CUDA is initialised."""
    begun: list[bool] = []
    monkeypatch.setattr(OperatorTracker, "begin", lambda _: begun.append(True))
    watched = Watched(*devices)

    assert begun == follows
    assert cuda.recording == (not devices)
    watched.end()


def test_on_intels_gpus_it_is_the_same_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code reads the allocator's history; the CPU's operators are not followed meanwhile."""
    torch = FakeTorch("xpu", initialized=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    watched = Watched("xpu:0", key="xpu:0")
    torch.initialize()
    torch.alloc(1, 1000)
    watched.end()
    shown = watched.report()

    assert "live at the peak on xpu:0: 1,000 B in 1 block" in shown
    assert "Recording began when XPU was initialised" in shown
    assert not torch.recording


def test_without_a_history_of_the_gpu_the_cpu_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Apple's GPUs, whose allocator records nothing, a cell's CPU tensors are shown."""
    begun: list[bool] = []
    memory = FakeAllocator(device_type="mps", initialized=True)
    monkeypatch.setitem(sys.modules, "torch", accelerators.mps(memory))
    monkeypatch.setattr(OperatorTracker, "begin", lambda _: begun.append(True))
    watched = Watched()
    watched.end()

    assert begun == [True]


def test_after_an_error_the_stacks_are_reported_too(cuda: FakeTorch) -> None:
    """They show what memory ran out for."""
    watched = Watched()
    cuda.alloc(1, 1000)
    watched.end(MemoryError())
    assert watched.report()
    assert watched.session.stacks is not None
    assert watched.session.stacks.rows()[0].bytes == 1000


def test_the_users_own_recording_is_left_alone(cuda: FakeTorch) -> None:
    """The card says so in one sentence, and nothing is shown below it."""
    cuda.recording = True
    watched = Watched()
    watched.end()
    assert watched.report() == ""
    assert watched.session.stacks is None
    (note,) = watched.session.notes
    assert note.startswith("Your code is recording")
    assert cuda.recording
    assert cuda.calls == []


def test_torch_that_the_cell_imports_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode must be active before the first operator, and a note says so."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    watched = Watched()
    without_cuda = FakeTorch()
    del without_cuda._C._cuda_record_memory_history, without_cuda._C._cuda_memoryStats
    monkeypatch.setitem(sys.modules, "torch", without_cuda)
    watched.end()
    assert watched.report() == ""
    assert "the cell itself imported torch" in watched.session.notes[0]
