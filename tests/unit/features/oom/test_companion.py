"""What goes along with a watch and says why it ran out of memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.features.oom.companion import OutOfMemory
from hfmem_widget.features.oom.observer import OomObserver
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Span
from hfmem_widget.sources.torch_cuda import CudaAllocator
from hfmem_widget.text import GIB
from tests.data.modules import loaded_by
from tests.fakes.torch_oom import FakeCuda
from tests.scenes.stage import Stage

TorchsOwn = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})

TEXT = (
    "CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total capacity of 80.00 GiB of "
    "which 1.00 GiB is free. Of the allocated memory 77.00 GiB is allocated by PyTorch, and 0 bytes is "
    "reserved by PyTorch but unallocated."
)


class Run:
    """One watched cell on a stage, with a companion that listens to a fake allocator."""

    def __init__(self, models: tuple[object, ...] = (), **cuda: Any) -> None:
        self.cuda = FakeCuda(**cuda)
        self.stage = Stage("train", gpus=1)
        self.recorder, self.session = self.stage.recorder, self.stage.session
        self.observer = OomObserver(CudaAllocator(self.cuda.modules))
        self.companion = OutOfMemory(observer=self.observer)
        self.monitor: Any = SimpleNamespace(
            attribution=SimpleNamespace(subjects=SimpleNamespace(all=lambda: (list(models), [])))
        )
        for name, size in (("allocated_bytes", 77), ("reserved_bytes", 77), ("active_bytes", 77)):
            self.cuda.stats[name]["all"]["current"] = size << 30

    def begin(self, span: Span) -> None:
        monitor: Monitor = self.monitor
        self.companion.begin(monitor, self.recorder, span)

    def end(self, span: Span, error: BaseException | None) -> None:
        self.companion.end(self.recorder, self.session.span(span.id), error)

    def report(self, span: Span) -> Mapping[str, str]:
        return self.companion.report(self.session, self.session.span(span.id))

    @property
    def findings(self) -> list[Finding]:
        return self.session.findings


def out_of_memory(asked: float = 2.0) -> BaseException:
    error: BaseException = TorchsOwn(TEXT.format(asked=asked))
    return error


def test_an_error_is_told_with_what_was_open_at_that_instant() -> None:
    """The card has the step in which it happened, though that has ended by then."""
    run = Run()
    stage = run.stage
    with stage.span("cell", "train", "raised OutOfMemoryError") as cell:
        run.begin(cell)
        with stage.span("train", "train"), stage.span("step", "step 7"):
            stage.hold({"cuda:0": 77 * GIB}, 1.0, {"weights": 10 * GIB, "gradients": 1 * GIB})
            with stage.span("forward", "forward") as forward:
                run.cuda.run_out()
            run.recorder.count(
                forward.parent or 0, {"tokens": 4096.0, "samples": 8.0, "longest": 512.0}
            )
        run.end(cell, out_of_memory())
    told = run.report(cell)
    assert (
        "in train \u203a step 7 \u203a forward \u00b7 batch 8 \u00d7 512 tokens"
        in told["text/plain"]
    )
    (finding,) = run.findings
    assert (finding.kind, finding.severity, finding.span_id) == ("oom", "critical", cell.id)
    assert finding.evidence["asked"] == 2 * GIB
    assert finding.evidence["cause"] == "full"


def test_a_backward_pass_has_the_whole_card(capsys: pytest.CaptureFixture[str]) -> None:
    """On autograd's thread, which may have no Python, all is noted, and it is told that it was there."""
    run = Run()
    with run.stage.span("cell", "x", "raised OutOfMemoryError") as cell:
        run.begin(cell)
        run.stage.hold({"cuda:0": 77 * GIB}, 1.0, {"weights": 10 * GIB, "gradients": 1 * GIB})
        run.cuda.run_out_in_backward()
        run.end(cell, out_of_memory())
    told = run.report(cell)["text/plain"]
    assert capsys.readouterr().err == ""
    assert "requested 2.00 GiB" in told
    assert "weights 10.0 GiB" in told
    assert "in backward pass" in told
    assert run.findings[0].evidence["observed"] is True


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB"),
        RuntimeError("CUDA out of memory."),
        TorchsOwn("whatever a test says"),
    ],
)
def test_an_error_of_a_gpu_is_not_explained_with_the_machine(error: BaseException) -> None:
    """Where no GPU is known the card says that the reason is not, and has none of the host's figures."""
    observer = OomObserver(CudaAllocator({}))
    stage = Stage("train", gpus=0)
    companion = OutOfMemory(observer=observer)
    with stage.span("cell", "x", "raised RuntimeError") as cell:
        companion.begin(Run().monitor, stage.recorder, cell)
        stage.hold({"cpu": 8 * GIB}, 1.0)
        companion.end(stage.recorder, stage.session.span(cell.id), error)
    told = companion.report(stage.session, stage.session.span(cell.id))["text/plain"]
    (finding,) = stage.session.findings
    assert finding.evidence["cause"] == "unknown"
    assert set(finding.evidence) <= {"device", "cause", "diagnosis", "origin", "observed", "asked"}
    for word in ("free", "machine", "heap", "processes", "nvidia-smi", "parts:", "\n1."):
        assert word not in told


def test_a_batch_size_may_be_searched_for_on_the_cpu() -> None:
    """That no size was found speaks of no GPU: without one the machine's own memory is meant."""
    stage = Stage("train", gpus=0)
    companion = OutOfMemory(observer=OomObserver(CudaAllocator({})))
    with stage.span("cell", "x", "raised RuntimeError") as cell:
        companion.begin(Run().monitor, stage.recorder, cell)
        error = RuntimeError("No executable batch size found, reached zero.")
        companion.end(stage.recorder, stage.session.span(cell.id), error)
    told = companion.report(stage.session, stage.session.span(cell.id))["text/plain"]
    assert "free on the machine" in told
    assert "nvidia-smi" not in told


def test_a_healthy_cell_has_nothing() -> None:
    """No card and no finding."""
    run = Run()
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        run.end(cell, None)
    assert not run.report(cell)
    assert not run.findings


def test_an_error_about_something_else_has_no_card() -> None:
    """Words about memory in a user's own error are no reason for one."""
    run = Run()
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        run.end(cell, RuntimeError("the planner is out of memory slots"))
    assert not run.report(cell)
    assert not run.findings


def test_errors_that_were_caught_are_a_note() -> None:
    """An attempt that was tried again with success has a finding, and no card."""
    run = Run()
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        for asked in (8, 4):
            run.cuda.run_out(asked << 30)
        run.end(cell, None)
    assert not run.report(cell)
    (finding,) = run.findings
    assert finding.severity == "info"
    assert finding.title.startswith(
        "2 out-of-memory errors were caught; the last one requested 4.00 GiB on cuda:0"
    )


def test_caught_errors_before_the_one_that_ended_it_are_counted() -> None:
    """Of several the one whose request the error names is told, and how many there were before."""
    run = Run()
    with run.stage.span("cell", "x", "raised OutOfMemoryError") as cell:
        run.begin(cell)
        for asked in (8, 4, 2):
            run.cuda.run_out(asked << 30)
        run.end(cell, out_of_memory(2.0))
    told = run.report(cell)
    assert "requested 2.00 GiB" in told["text/plain"]
    assert "2 earlier out-of-memory errors" in told["text/plain"]


def marks(run: Run) -> list[tuple[str, str, float, float]]:
    return [(one.kind, one.label, one.start, one.last) for one in run.session.guides]


def test_each_event_is_marked_on_the_chart_when_it_happens() -> None:
    """Caught or not, with what was allocated at that instant by the allocator's own count."""
    run = Run()
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        for asked in (8, 4):
            run.stage.hold({"cuda:0": 70 * GIB}, 1.0)
            run.cuda.run_out(asked << 30)
        told = [f"out of memory: {asked}.00 GiB requested" for asked in (8, 4)]
        times = [one.start for one in run.session.guides]
        assert marks(run) == [("oom", *one, 77 * GIB) for one in zip(told, times, strict=True)]
        assert times == pytest.approx([1.0, 2.0], abs=0.1)
        run.end(cell, out_of_memory(4.0))
    run.report(cell)
    assert len(run.session.guides) == 2


def test_of_very_many_events_the_newest_are_marked() -> None:
    """A search that runs out again and again leaves eight marks."""
    run = Run()
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        for asked in range(1, 21):
            run.cuda.run_out(asked << 30)
        run.end(cell, None)
    told = [
        one.label.removeprefix("out of memory: ").removesuffix(" requested")
        for one in run.session.guides
    ]
    assert told == [f"{gib}.0 GiB" for gib in range(13, 21)]


def test_two_watches_of_one_session_mark_an_event_once() -> None:
    """Running out within a watched block of a watched cell has one mark on the chart."""
    run = Run()
    inner = OutOfMemory(observer=run.observer)
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        with run.stage.span("block", "y") as block:
            inner.begin(run.monitor, run.recorder, block)
            run.cuda.run_out()
            inner.end(run.recorder, block, None)
        run.end(cell, None)
    assert len(run.session.guides) == 1


def test_an_error_that_nobody_observed_is_marked_where_it_left_the_code() -> None:
    """At the reading nearest to it."""
    run = Run(can_observe=False)
    with run.stage.span("cell", "x", "raised OutOfMemoryError") as cell:
        run.begin(cell)
        with run.stage.span("evaluate", "evaluate", "raised OutOfMemoryError"):
            run.stage.hold({"cuda:0": 77 * GIB}, 1.0)
        run.stage.hold({"cuda:0": 1 * GIB}, 1.0)
        run.end(cell, out_of_memory())
    run.report(cell)
    assert marks(run) == [("oom", "out of memory: 2.00 GiB requested", 1.0, 77 * GIB)]


def test_an_error_that_says_no_size_is_marked_without() -> None:
    """Where neither the allocator nor the error says what was asked for, the mark has no figure."""
    run = Run(can_observe=False)
    with run.stage.span("cell", "x", "raised RuntimeError") as cell:
        run.begin(cell)
        run.stage.hold({"cuda:0": 77 * GIB}, 1.0)
        run.end(cell, RuntimeError("CUDA error: out of memory"))
    run.report(cell)
    assert [one.label for one in run.session.guides] == ["out of memory"]


def test_a_healthy_cell_has_no_mark() -> None:
    """A cell that never ran out of memory leaves the chart without a mark."""
    run = Run()
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        run.end(cell, None)
    run.report(cell)
    assert not run.session.guides


def test_cuda_that_comes_up_within_the_cell_is_found_by_a_tick() -> None:
    """Nothing is attached before the user's code has initialised it; the next tick does it."""
    run = Run(initialized=False)
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        assert run.recorder.subscribers
        run.cuda.initialized = True
        for tick in run.recorder.subscribers:
            tick(run.session, ())
        assert len(run.cuda.observers) == 1
        assert not run.recorder.subscribers
        run.end(cell, None)


def test_an_error_that_nobody_observed_is_told_by_its_text() -> None:
    """Without the observer the text and the spans that the error went through are there."""
    run = Run(can_observe=False)
    with run.stage.span("cell", "x", "raised OutOfMemoryError") as cell:
        run.begin(cell)
        with run.stage.span("evaluate", "evaluate at step 40", "raised OutOfMemoryError"):
            run.stage.hold({"cuda:0": 77 * GIB}, 1.0)
        run.end(cell, out_of_memory())
    told = run.report(cell)
    assert "in evaluate at step 40" in told["text/plain"]
    assert "allocated 77.0 GiB" in told["text/plain"]


def test_a_doubtful_error_counts_where_memory_did_run_out() -> None:
    """What cuDNN says where a workspace does not fit it says for other reasons, too."""
    doubtful = RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if")
    for ran_out in (False, True):
        run = Run()
        with run.stage.span("cell", "x", "raised RuntimeError") as cell:
            run.begin(cell)
            if ran_out:
                run.cuda.run_out()
            run.end(cell, doubtful)
        assert bool(run.report(cell)) == ran_out


def test_an_event_of_another_watch_is_not_ours() -> None:
    """Only what happens within the watched code is noted."""
    run = Run()
    with run.stage.span("cell", "x") as cell:
        run.begin(cell)
        run.end(cell, None)
        run.cuda.run_out()
    assert not run.report(cell)
    assert not run.findings


def test_neither_the_error_nor_its_frames_are_kept() -> None:
    """The error, and a big object in a function that it went through, go when the user lets them go."""
    run = Run()

    class Big:
        pass

    def train() -> None:
        activations = Big()
        kept.append(weakref.ref(activations))
        run.cuda.run_out()
        raise out_of_memory()

    kept: list[weakref.ref[Any]] = []
    with run.stage.span("cell", "x", "raised OutOfMemoryError") as cell:
        run.begin(cell)
        try:
            train()
        except RuntimeError as error:
            kept.append(weakref.ref(error))
            run.end(cell, error)
    assert run.report(cell)
    # The interpreter's own references go with the block; a ring would not.
    gc.disable()
    try:
        assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()


def test_of_nested_watches_the_inner_one_shows_its_card() -> None:
    """One error is shown once, and found by both; an inner watch that is quiet leaves it to the outer."""
    for quiet in (False, True):
        run = Run()
        inner = OutOfMemory(WatchOptions(quiet=quiet), observer=run.observer)
        with run.stage.span("cell", "outer", "raised OutOfMemoryError") as cell:
            run.begin(cell)
            with run.stage.span("block", "inner", "raised OutOfMemoryError") as block:
                inner.begin(run.monitor, run.recorder, block)
                inner.end(run.recorder, block, out_of_memory())
            inner.report(run.session, run.session.span(block.id))
            run.end(cell, out_of_memory())
        assert bool(run.report(cell)) == quiet
        assert len(run.findings) == 2


UNDER_A_LIMIT = """
import resource, numpy, hfmem_widget
pages = int(open("/proc/self/statm").read().split()[0])
try:
    with hfmem_widget.watch("limited", chart=False) as session:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30),) * 2)
        numpy.zeros(2 << 30, dtype=numpy.uint8)
except MemoryError:
    (finding,) = session.findings
    print(finding.evidence["cause"], finding.evidence["diagnosis"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ulimit -v holds on Linux only")
def test_a_limit_of_the_shells_is_the_reason() -> None:
    """Under ``ulimit -v`` a real allocation fails, and the limit is what is told."""
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True, check=True
    )
    assert "limit Limit reached: ulimit -v" in done.stdout


def test_it_imports_nothing_heavy() -> None:
    """Beginning to listen costs neither torch nor what draws the card."""
    found = loaded_by("import hfmem_widget.features.oom.companion as it; it.OutOfMemory()")
    later = {"torch", "transformers", "plotly", "pynvml", "hfmem_widget.features.oom.html"}
    assert found & later == set()
