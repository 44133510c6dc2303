"""The companion of a watch that explains why memory ran out."""

import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.features.oom.companion import OutOfMemory
from hfmem_widget.features.oom.observer import OomObserver
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Move, Span
from hfmem_widget.sources.torch_cuda import CudaAllocator
from hfmem_widget.text import GIB
from tests.data.modules import run_alone
from tests.fakes.torch_oom import FakeCuda
from tests.scenes.stage import Stage

TorchsOwn = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})

TEXT = (
    "CUDA out of memory. Tried to allocate {gib:.2f} GiB. GPU 0 has a total capacity of 80.00 GiB of "
    "which 1.00 GiB is free. Of the allocated memory 77.00 GiB is allocated by PyTorch, and 0 bytes is "
    "reserved by PyTorch but unallocated."
)


class Run:
    """One watched cell on a stage, with a companion that listens to a fake allocator."""

    def __init__(self, models: tuple[object, ...] = (), gpus: int = 1, **cuda: Any) -> None:
        self.cuda = FakeCuda(**cuda)
        self.stage = Stage("train", gpus=gpus)
        self.recorder, self.session = self.stage.recorder, self.stage.session
        self.observer = OomObserver(CudaAllocator(self.cuda.modules if gpus else {}))
        self.companion = OutOfMemory(observer=self.observer)
        self.monitor: Any = SimpleNamespace(
            attribution=SimpleNamespace(subjects=SimpleNamespace(all=lambda: (list(models), [])))
        )
        self.shown: Mapping[str, str] = {}
        self.moves: tuple[Move, ...] = ()
        for name, size in (("allocated_bytes", 77), ("reserved_bytes", 77), ("active_bytes", 77)):
            self.cuda.stats[name]["all"]["current"] = size << 30

    @contextmanager
    def cell(self, error: BaseException | None = None) -> Iterator[Span]:
        """Run a block as the cell, which ends with an error, and report on it."""
        outcome = f"raised {type(error).__name__}" if error else "finished"
        with self.stage.span("cell", "train", outcome) as cell:
            self.companion.begin(self.monitor, self.recorder, cell)
            yield cell
            self.companion.end(self.recorder, self.session.span(cell.id), error)
        cell = self.session.span(cell.id)
        self.companion.report(self.session, cell)
        self.session.moves = list(self.moves)
        self.shown = self.companion.conclude(self.session, cell) or {}

    def run_out(self, *gib: int) -> None:
        """Request some GiB one after the other, for each of which there is no room."""
        for size in gib:
            self.cuda.run_out(size << 30)

    def hold(self, gib: float = 77) -> None:
        """Let the GPU hold some GiB for a second."""
        self.stage.hold({"cuda:0": gib * GIB}, 1.0)

    @property
    def text(self) -> str:
        return self.shown["text/plain"]

    @property
    def findings(self) -> list[Finding]:
        return self.session.findings

    @property
    def marks(self) -> list[tuple[str, float, float]]:
        """Return the marks on the chart: label, time, and allocated bytes."""
        assert {guide.kind for guide in self.session.guides} <= {"oom"}
        return [(guide.label, guide.start, guide.last) for guide in self.session.guides]


def out_of_memory(gib: float = 2.0) -> BaseException:
    error: BaseException = TorchsOwn(TEXT.format(gib=gib))
    return error


def test_an_error_has_the_spans_that_were_open_at_that_instant() -> None:
    """The card has the step of the error, though it has ended by then."""
    run = Run()
    stage = run.stage
    with (
        run.cell(out_of_memory()) as cell,
        stage.span("train", "train"),
        stage.span("step", "step 7"),
    ):
        run.hold()
        with stage.span("forward", "forward") as forward:
            run.cuda.run_out()
        counts = {"tokens": 4096.0, "samples": 8.0, "longest": 512.0}
        run.recorder.count(forward.parent or 0, counts)
    assert "in train \u203a step 7 \u203a forward \u00b7 batch 8 \u00d7 512 tokens" in run.text
    (finding,) = run.findings
    assert (finding.kind, finding.severity, finding.span_id) == ("oom", "critical", cell.id)
    assert finding.evidence["asked"] == 2 * GIB
    assert finding.evidence["cause"] == "full"
    assert finding.title == (
        "Out of memory on cuda:0: 2.00 GiB requested, 1.00 GiB free (memory full)."
    )


def test_a_backward_pass_has_the_whole_card(capsys: pytest.CaptureFixture[str]) -> None:
    """On autograd's thread, which may have no Python, all figures are noted, and the pass is named."""
    run = Run()
    with run.cell(out_of_memory()):
        run.stage.hold({"cuda:0": 77 * GIB}, 1.0, {"weights": 10 * GIB, "gradients": 1 * GIB})
        run.cuda.run_out_in_backward()
    assert capsys.readouterr().err == ""
    assert "requested 2.00 GiB" in run.text
    assert "weights 10.0 GiB" in run.text
    assert "in backward pass" in run.text
    assert run.findings[0].evidence["observed"] is True


def test_results_of_dry_runs_replace_general_advice() -> None:
    """The card has one list: changes with their figures, then advice that no dry run can try."""
    run = Run()
    move = Move("Adafactor", (), 4, 512, 1, "", int(20 * GIB), 19.0 * GIB, 21.0 * GIB, 80.0 * GIB)
    parts = {"weights": 15.0 * GIB, "gradients": 15.0 * GIB, "optimizer": 30.0 * GIB}
    texts = []
    for run.moves in ((), (move,)):
        with run.cell(out_of_memory()), run.stage.span("train", "train"):
            run.stage.hold({"cuda:0": 77.0 * GIB}, 1.0, parts)
            run.cuda.run_out()
        texts.append(run.text)
    general, tried = texts
    assert 'optim="adamw_8bit"' in general
    assert 'optim="adamw_8bit"' not in tried
    assert "1. Adafactor" in tried
    assert "20.0 GiB" in tried
    first, second = run.findings
    best, *left = second.advice
    assert best.startswith(
        "Adafactor. By a dry run of this model, the peak is then 20.0 GiB, which fits."
    )
    assert set(left) < set(first.advice)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB"),
        RuntimeError("CUDA out of memory."),
        TorchsOwn("whatever a test says"),
    ],
)
def test_an_error_of_a_gpu_is_not_explained_with_the_machine(error: BaseException) -> None:
    """If no GPU is known, the card calls the cause unknown, and has none of the host's figures."""
    run = Run(gpus=0)
    with run.cell(error):
        run.stage.hold({"cpu": 8 * GIB}, 1.0)
    (finding,) = run.findings
    assert finding.evidence["cause"] == "unknown"
    assert set(finding.evidence) <= {"device", "cause", "diagnosis", "origin", "observed", "asked"}
    for word in ("free", "machine", "heap", "processes", "nvidia-smi", "parts:", "\n1."):
        assert word not in run.text


def test_a_batch_size_may_be_searched_for_on_the_cpu() -> None:
    """An error that no size was found names no GPU: without one, the machine's memory is meant."""
    run = Run(gpus=0)
    with run.cell(RuntimeError("No executable batch size found, reached zero.")):
        pass
    assert "free on the machine" in run.text
    assert "nvidia-smi" not in run.text


@pytest.mark.parametrize("error", [None, RuntimeError("the planner is out of memory slots")])
def test_without_an_error_about_memory_there_is_nothing(error: BaseException | None) -> None:
    """There is no card, no finding and no mark, even if a user's own error mentions memory."""
    run = Run()
    with run.cell(error):
        pass
    run.cuda.run_out()  # which is another watch's
    assert not run.shown
    assert not run.findings
    assert not run.marks


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (
            (4,),
            "An out-of-memory error was caught; it requested 4.00 GiB on cuda:0, with 1.00 GiB free.",
        ),
        ((8, 4), "2 out-of-memory errors were caught; the last one requested 4.00 GiB on cuda:0"),
    ],
)
def test_errors_that_were_caught_are_a_note(sizes: tuple[int, ...], words: str) -> None:
    """An attempt that was repeated with success has a finding, and no card."""
    run = Run()
    with run.cell() as cell:
        run.run_out(*sizes)
    assert not run.shown
    (finding,) = run.findings
    assert (finding.kind, finding.severity, finding.span_id) == ("oom", "info", cell.id)
    assert finding.title.startswith(words)
    figures = {"device": "cuda:0", "caught": len(sizes), "asked": 4 * GIB, "free": GIB}
    assert finding.evidence == figures


@pytest.mark.parametrize(
    ("caught", "words"),
    [
        ((8, 4), "2 earlier out-of-memory errors"),
        ((4,), "1 earlier out-of-memory error "),
        ((), ""),
    ],
)
def test_caught_errors_before_the_last_are_counted(caught: tuple[int, ...], words: str) -> None:
    """The card is about the event that the error names, and ends with the number of earlier ones."""
    run = Run()
    with run.cell(out_of_memory(2.0)):
        run.run_out(*caught, 2)
    assert "requested 2.00 GiB" in run.text
    for text in run.shown.values():
        assert words in text
        assert ("earlier" in text) is bool(words)


def test_each_event_is_marked_on_the_chart_when_it_happens() -> None:
    """A mark has the allocated bytes of that instant by the allocator's own counter."""
    run = Run()
    with run.cell(out_of_memory(4.0)):
        for size in (8, 4):
            run.hold(70)
            run.run_out(size)
        marks = run.marks
    assert [(label, size) for label, _, size in marks] == [
        ("out of memory: 8.00 GiB requested", 77 * GIB),
        ("out of memory: 4.00 GiB requested", 77 * GIB),
    ]
    assert [time for _, time, _ in marks] == pytest.approx([1.0, 2.0], abs=0.1)
    assert run.marks == marks


def test_of_very_many_events_the_newest_are_marked() -> None:
    """A search that runs out again and again leaves eight marks."""
    run = Run()
    with run.cell():
        run.run_out(*range(1, 21))
    assert [label for label, _, _ in run.marks] == [
        f"out of memory: {gib}.0 GiB requested" for gib in range(13, 21)
    ]


def test_two_watches_of_one_session_mark_an_event_once() -> None:
    """An error within a watched block of a watched cell has one mark on the chart."""
    run = Run()
    inner = OutOfMemory(observer=run.observer)
    with run.cell(), run.stage.span("block", "y") as block:
        inner.begin(run.monitor, run.recorder, block)
        run.cuda.run_out()
        inner.end(run.recorder, block, None)
    assert len(run.marks) == 1


def test_an_unobserved_error_is_explained_by_its_text_and_its_spans() -> None:
    """It has the spans that it ended, and a mark at the nearest reading."""
    run = Run(can_observe=False)
    with run.cell(out_of_memory()):
        with run.stage.span("evaluate", "evaluate at step 40", "raised OutOfMemoryError"):
            run.hold(77)
        run.hold(1)
    assert "in evaluate at step 40" in run.text
    assert "allocated 77.0 GiB" in run.text
    assert run.marks == [("out of memory: 2.00 GiB requested", 1.0, 77 * GIB)]


def test_an_error_without_a_size_is_marked_without_one() -> None:
    """Neither the allocator nor the text has the size of the request."""
    run = Run(can_observe=False)
    with run.cell(RuntimeError("CUDA error: out of memory")):
        run.hold()
    assert [label for label, _, _ in run.marks] == ["out of memory"]


def test_cuda_that_comes_up_within_the_cell_is_found_by_a_tick() -> None:
    """Attaching would initialise CUDA, so a tick attaches once the user's code has done that."""
    run = Run(initialized=False)
    with run.cell():
        assert run.recorder.subscribers
        assert not run.cuda.observers
        run.cuda.initialized = True
        for _ in range(3):
            run.recorder.publish()
        assert len(run.cuda.observers) == 1
        assert not run.recorder.subscribers


@pytest.mark.parametrize("ran_out", [False, True])
def test_a_doubtful_error_counts_where_memory_did_run_out(*, ran_out: bool) -> None:
    """An error of cuDNN for a workspace that does not fit also has other causes."""
    run = Run()
    with run.cell(
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if")
    ):
        if ran_out:
            run.cuda.run_out()
    assert bool(run.shown) == ran_out


@pytest.mark.usefixtures("uncollected")
def test_neither_the_error_nor_its_frames_are_kept() -> None:
    """The error, and a large object in one of its functions, are freed when the user drops them."""
    run = Run()

    class Big:
        pass

    def train() -> None:
        activations = Big()
        references.append(weakref.ref(activations))
        run.cuda.run_out()
        raise out_of_memory()

    references: list[weakref.ref[Any]] = []
    with run.stage.span("cell", "x", "raised OutOfMemoryError") as cell:
        run.companion.begin(run.monitor, run.recorder, cell)
        try:
            train()
        except RuntimeError as error:
            references.append(weakref.ref(error))
            run.companion.end(run.recorder, cell, error)
    cell = run.session.span(cell.id)
    run.companion.report(run.session, cell)
    assert run.companion.conclude(run.session, cell)
    # The interpreter's own references go with the block; a ring would not.
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("quiet", [False, True])
def test_of_nested_watches_the_inner_one_shows_its_card(*, quiet: bool) -> None:
    """One error has one card, and a finding in both; a quiet inner watch leaves the card to the outer one."""
    run = Run()
    inner = OutOfMemory(WatchOptions(quiet=quiet), observer=run.observer)
    with run.cell(out_of_memory()):
        with run.stage.span("block", "inner", "raised OutOfMemoryError") as block:
            inner.begin(run.monitor, run.recorder, block)
            inner.end(run.recorder, block, out_of_memory())
        inner.report(run.session, run.session.span(block.id))
    assert bool(run.shown) == quiet
    assert len(run.findings) == 2


UNDER_A_LIMIT = """
import resource, sys, numpy, hfmem_widget
pages = int(open("/proc/self/statm").read().split()[0])
rows = []
try:
    with hfmem_widget.watch("limited", chart=False) as session:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ({left} << 20), -1))
        {code}
except MemoryError:
    rows.clear()
    (finding,) = session.findings
    known = (finding.evidence["cause"], finding.title, finding.evidence["diagnosis"])
    print(*known, session.broken_off, "torch" in sys.modules)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ulimit -v holds on Linux only")
@pytest.mark.parametrize(
    ("left", "code", "figure"),
    [
        (1024, "numpy.zeros(2 << 30, dtype=numpy.uint8)", "2.00 GiB requested, "),
        (100, "while True: rows.append({len(rows): str(len(rows))})", ""),
    ],
    ids=["one request", "small objects, until no byte is left"],
)
def test_a_limit_of_the_shells_is_the_cause(left: int, code: str, figure: str) -> None:
    """Under ``ulimit -v`` the finding names the limit, not the machine's free memory; torch stays out."""
    text = run_alone(UNDER_A_LIMIT.format(left=left, code=code)).stdout
    assert "\nlimit " in text
    assert f": {figure}this process may use" in text
    assert ("Limit reached: ulimit -v" in text) is (left == 1024)
    assert text.endswith("False False\n")
