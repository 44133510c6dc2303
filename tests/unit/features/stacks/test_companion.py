"""`--stacks` from end to end, with a fake CUDA and a real CPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hfmem_widget.features import companions_for
from hfmem_widget.features.stacks.companion import StacksCompanion
from hfmem_widget.features.stacks.dispatch_tracker import OperatorTracker
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Device, Peak, Recorder, Sample, Series, Session, Span
from hfmem_widget.sources.torch_history import TorchHistory
from tests.fakes import accelerators
from tests.fakes.torch_cuda import FakeAllocator
from tests.fakes.torch_history import FakeTorch

NO_MONITOR: Any = None
"""The companion asks nothing of it."""


@pytest.fixture(autouse=True)
def _nobody_records() -> Iterator[None]:
    yield
    TorchHistory.active = None


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Return a torch with CUDA up, in the place of the real one."""
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def a_session() -> tuple[Recorder, Session, Span]:
    recorder = Recorder("x", started_at=time.time())
    session = recorder.session
    recorder.adopt([Device("cuda:0", "GPU")], [Series("cuda:0", "allocated")])
    return recorder, session, recorder.open_span("cell", "x", Sample(0.0, ()))


def with_peaks(span: Span, allocated: float, requested: float) -> Span:
    peaks = {
        "cuda:0/allocated": Peak(allocated, "exact"),
        "cuda:0/requested": Peak(requested, "exact"),
    }
    return Span(span.id, span.kind, span.label, 0.0, span.before, 1.0, span.before, peaks)


def test_only_who_asks_for_stacks_gets_them() -> None:
    """Stacks are recorded in a watch with `--stacks`, and in no other."""
    assert not any(isinstance(one, StacksCompanion) for one in companions_for(WatchOptions()))
    assert any(
        isinstance(one, StacksCompanion) for one in companions_for(WatchOptions(stacks=True))
    )


def test_what_was_live_stands_below_the_card(cuda: FakeTorch) -> None:
    """And stays in the session, compared with the ledger's exact peak."""
    recorder, session, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    cuda.alloc(1, 1000)
    companion.end(recorder, span, None)
    told = companion.report(session, with_peaks(span, 1024, 1000))
    assert "to the byte: 1,000 requested" in told["text/plain"]
    assert session.stacks is not None
    assert session.stacks.peaks[0].exact
    assert session.stacks.can_be_saved
    assert not cuda.recording


@pytest.mark.parametrize(("devices", "follows"), [((), []), (("cpu",), [True])])
def test_operators_are_followed_where_cuda_is_not_up_or_not_watched(
    cuda: FakeTorch, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], follows: list[bool]
) -> None:
    """Where the CPU alone is watched, its operators are followed beside a CUDA that is up."""
    begun: list[bool] = []
    monkeypatch.setattr(OperatorTracker, "begin", lambda _: begun.append(True))
    recorder, _, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True, devices=devices))
    companion.begin(NO_MONITOR, recorder, span)

    assert begun == follows
    assert cuda.recording == (not devices)
    companion.end(recorder, span, None)


def test_on_intels_gpus_it_is_the_same_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator's history, read by the same code; the CPU's operators are not followed meanwhile."""
    torch = FakeTorch("xpu", initialized=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    recorder = Recorder("x", started_at=time.time() - 1.0)
    recorder.adopt([Device("xpu:0", "GPU")], [Series("xpu:0", "allocated")])
    span = recorder.open_span("cell", "x", Sample(0.0, ()))
    companion = StacksCompanion(WatchOptions(stacks=True, devices=("xpu:0",)))
    companion.begin(NO_MONITOR, recorder, span)
    torch.initialize()
    torch.alloc(1, 1000)
    companion.end(recorder, span, None)
    told = companion.report(recorder.session, span)

    assert "live at the peak of xpu:0: 1,000 B in 1 block" in told["text/plain"]
    assert "Recording began when XPU was initialised" in told["text/plain"]
    assert not torch.recording


def test_beside_an_allocator_without_a_history_the_cpu_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Apple's GPUs, whose allocator records nothing, a cell's CPU tensors are shown."""
    begun: list[bool] = []
    memory = FakeAllocator(device_type="mps", initialized=True)
    monkeypatch.setitem(sys.modules, "torch", accelerators.mps(memory))
    monkeypatch.setattr(OperatorTracker, "begin", lambda _: begun.append(True))
    recorder, _, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    companion.end(recorder, span, None)

    assert begun == [True]


def test_a_peak_that_is_a_lower_bound_is_not_compared(cuda: FakeTorch) -> None:
    """Equality with a bound would prove nothing."""
    recorder, session, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    cuda.alloc(1, 1000)
    companion.end(recorder, span, None)
    bounded = with_peaks(span, 1024, 1000)
    bounded = Span(
        span.id, span.kind, "", 0.0, span.before, 1.0, span.before,
        {key: Peak(peak.value, "at least") for key, peak in bounded.peaks.items()},
    )  # fmt: skip
    assert "cannot be checked" in companion.report(session, bounded)["text/plain"]


def test_after_an_error_the_stacks_are_there_for_who_explains_it(cuda: FakeTorch) -> None:
    """Before anything is reported."""
    recorder, session, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    cuda.alloc(1, 1000)
    companion.end(recorder, span, MemoryError())
    assert session.stacks is not None
    assert session.stacks.rows()[0].bytes == 1000


def test_the_users_own_recording_is_left_alone_and_said_so(cuda: FakeTorch) -> None:
    """One sentence on the card, nothing below it."""
    cuda.recording = True
    recorder, session, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    companion.end(recorder, span, None)
    assert companion.report(session, span) == {}
    assert session.stacks is None
    (note,) = session.notes
    assert note.startswith("Your code is recording")
    assert cuda.recording
    assert cuda.calls == []


def test_the_poller_looks_for_cuda_only_while_the_code_runs(cuda: FakeTorch) -> None:
    """Its listener is gone afterwards."""
    recorder, _, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    assert len(recorder.subscribers) == 1
    companion.end(recorder, span, None)
    assert not recorder.subscribers


def test_what_is_not_watched_is_not_recorded(cuda: FakeTorch) -> None:
    """`--devices cpu` leaves the GPU's allocator alone."""
    recorder, session, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True, devices=("cpu",)))
    companion.begin(NO_MONITOR, recorder, span)
    companion.end(recorder, span, None)
    companion.report(session, span)
    assert cuda.calls == []


def test_on_the_cpu_it_is_the_same_view() -> None:
    """Line, module and operator of what a cell's tensors were at their peak."""
    torch = pytest.importorskip("torch")
    recorder, session, span = a_session()
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    kept = torch.zeros(1024)
    companion.end(recorder, span, None)
    told = companion.report(session, span)
    assert session.stacks is not None
    assert session.stacks.recording.way == "operators"
    assert session.stacks.rows("operator")[0].name == "aten::zeros"
    assert session.stacks.rows("line")[0].source == "kept = torch.zeros(1024)"
    assert "live at the peak of cpu" in told["text/plain"]
    del kept


def test_torch_that_came_within_is_said_to_have_come_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mode must be there before the first operator."""
    recorder, session, span = a_session()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    companion = StacksCompanion(WatchOptions(stacks=True))
    companion.begin(NO_MONITOR, recorder, span)
    without_cuda = FakeTorch()
    del without_cuda._C._cuda_record_memory_history, without_cuda._C._cuda_memoryStats
    monkeypatch.setitem(sys.modules, "torch", without_cuda)
    companion.end(recorder, span, None)
    assert companion.report(session, span) == {}
    assert "the cell itself imported torch" in session.notes[0]
