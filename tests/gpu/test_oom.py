"""Out-of-memory errors of different causes, provoked: the reason is right, the error is the user's own."""

import json

import pytest

from tests.gpu.conftest import Run
from tests.gpu.oom_cases import (
    ATTACH,
    BACKWARDS,
    CASES,
    CHECKPOINTED_TRAINER,
    COMPILED,
    PARALLEL,
    Provoked,
)

pytestmark = pytest.mark.whole_card

HARNESS = """
import contextlib, gc, io, os, re, sys, traceback
{before}
import torch
import hfmem_widget
GIB = 1 << 30
# With the hooks by which a Trainer's model is followed, torch calls it through one function more.
WAYS_INTO_A_MODULE = ("_call_impl", "_wrapped_call_impl", "inner")
SIZE = re.compile(r"[\\d.]+ (?:bytes|[KMG]iB)")

def bytes_of(size, **options):
    return torch.empty(int(size) // 4, device="cuda", **options)

torch.ones(1, device="cuda")
FREE, TOTAL = torch.cuda.mem_get_info()

{scenario}

def description_of(error):
    frames = [
        (frame.filename.rpartition("/")[2], frame.lineno, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
        if "/hfmem_widget/" not in frame.filename and frame.name not in WAYS_INTO_A_MODULE
    ]
    text = SIZE.sub("SIZE", str(error))
    return [type(error).__module__, type(error).__qualname__, re.sub(r"\\d+", "N", text), frames]

def attempt(watch):
    try:
        with watch as session:
            sessions.append(session)
            scenario()
    except BaseException as error:
        return description_of(error)

def free_all():
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    for name in ("model", "kept", "optimizer", "trainer"):
        globals().pop(name, None)
    gc.collect()
    torch.cuda.empty_cache()

sessions = []
bare = attempt(contextlib.nullcontext())
free_all()
before = torch.cuda.memory_allocated()
{attach}
printed, complained = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
    watched = attempt(hfmem_widget.watch("provoked"))
free_all()
{after}
session = sessions[-1]
finding = next((one for one in session.findings if one.kind == "oom" and one.severity == "critical"), None)
report({{
    "bare": bare, "watched": watched,
    "left": torch.cuda.memory_allocated() - before,
    "finding": finding and [finding.title, dict(finding.evidence), list(finding.advice)],
    "printed": printed.getvalue(), "stderr": complained.getvalue(), "notes": list(session.notes),
}})
"""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_cause_is_found(run_python: Run, case: Provoked) -> None:
    """The diagnosis and its advice are right, the error is unchanged, and the memory is free again."""
    code = {name: getattr(case, name) for name in ("scenario", "before", "attach", "after")}
    report = run_python(HARNESS.format(**code))

    assert report["finding"] is not None, report
    title, evidence, advice = report["finding"]
    assert evidence["cause"] == case.cause, report["printed"]
    assert case.advice in " ".join(advice), report["printed"]
    assert title.startswith("Out of memory on cuda:0")
    assert evidence["observed"] == case.is_observed, report["notes"]
    assert "out of memory \u00b7 cuda:0" in report["printed"]
    assert report["watched"] == report["bare"]
    assert report["left"] <= 16 << 20


IN_BACKWARD = """
import contextlib, io, sys
import torch
import hfmem_widget
from hfmem_widget.features.oom.observer import OBSERVER
GIB = 1 << 30
torch.cuda.set_per_process_memory_fraction(8 * GIB / torch.cuda.mem_get_info()[1])

def wide(x):
    # 3.1 GiB each for the product and its square, as much again for the gradient of either
    return x.unsqueeze(0).expand(200, -1, -1).mul(1.5)

{scenario}

noted, printed, complained, error = [], io.StringIO(), io.StringIO(), None
OBSERVER.listen(noted.append)
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
    try:
        with hfmem_widget.watch("backward") as session:
            scenario()
    except RuntimeError as caught:
        error = f"{{type(caught).__qualname__}}: {{caught}}"
last = noted[-1] if noted else None
found = [one for one in session.findings if one.kind == "oom" and one.severity == "critical"]
report({{
    "error": error, "printed": printed.getvalue(), "stderr": complained.getvalue(),
    "notes": list(session.notes), "calls": last and list(last.calls), "asked": last and last.asked,
    "readings": last and dict(last.readings), "blocks": bool(last and last.blocks),
    "autocast": last and last.autocast,
    "evidence": [dict(one.evidence) for one in found],
}})
"""


@pytest.mark.parametrize(("scenario", "place", "call"), BACKWARDS.values(), ids=BACKWARDS)
def test_a_backward_pass_has_the_whole_card(
    request: pytest.FixtureRequest, run_python: Run, scenario: str, place: str, call: str
) -> None:
    """Whatever thread ran out, and with Python on it or without: all figures, the place, and no complaint."""
    if scenario == PARALLEL:
        request.getfixturevalue("two_gpus")
    report = run_python(IN_BACKWARD.format(scenario=scenario))

    everything = json.dumps(report, indent=1)
    assert report["error"] is not None, everything
    assert "out of memory" in report["error"], everything
    assert "memwatch:" not in report["stderr"], everything
    (evidence,) = report["evidence"]
    assert evidence["observed"] is True, everything
    assert {"asked", "free", "allocated", "reserved", "allowed"} <= set(evidence), everything
    assert evidence["cause"] in {"limit", "huge"}, everything
    assert report["blocks"], everything
    assert report["autocast"] is None or scenario == COMPILED, everything
    assert report["asked"] >= 1 << 30, everything
    assert "torch.autograd.graph._engine_run_backward" in report["calls"], everything
    assert "__main__.scenario" in report["calls"], everything
    if call.isidentifier():
        assert any(one.endswith(f".{call}") for one in report["calls"]), everything
    words = ("requested", "allocated", "parts: ", "in backward pass", place, "\n1. ")
    assert [one for one in words if one not in report["printed"]] == [], everything


def test_a_checkpointed_training_is_explained(run_python: Run) -> None:
    """A Trainer that recomputes activations has its card, with nothing on stderr, wherever it ran out."""
    code = HARNESS.format(scenario=CHECKPOINTED_TRAINER, before="", attach=ATTACH, after="")
    report = run_python(code)
    everything = json.dumps(report, indent=1)
    assert report["finding"] is not None, everything
    _, evidence, advice = report["finding"]
    assert evidence["observed"], everything
    assert "not looked at" not in report["stderr"], everything
    assert "checkpointing on" not in " ".join(advice), everything
    assert "parts: " in report["printed"], everything
    assert "\nin train" in report["printed"], everything


OBSERVED = """
import torch
from hfmem_widget.features.oom.observer import OomObserver
{before}
events = []
observer = OomObserver()
observer.listen(events.append)
counts = [torch.cuda.memory_stats()["allocation.all.allocated"]]
try:
    torch.empty(1 << 45, device="cuda")
except torch.OutOfMemoryError:
    pass
counts.append(torch.cuda.memory_stats()["allocation.all.allocated"])
(one,) = events
biggest = one.blocks.biggest[0]
report([counts, one.blocks.count, [biggest.bytes, biggest.count], biggest.where])
"""


def test_what_is_noted_allocates_nothing(run_python: Run) -> None:
    """Tens of thousands of blocks are noted, each of them, without a byte of the GPU."""
    before = 'kept = [torch.empty(1 << 18, device="cuda") for _ in range(30_000)]'
    (first, then), count, biggest, _ = run_python(OBSERVED.format(before=before))
    assert then == first
    assert count >= 30_000
    assert biggest == [1 << 20, 30_000]


RECORDED = """
torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
def attend():
    return torch.empty(1 << 28, device="cuda")
kept = attend()
"""


def test_blocks_have_their_lines_where_stacks_are_recorded(run_python: Run) -> None:
    """With a recording on, the biggest live blocks have the user's line."""
    *_, where = run_python(OBSERVED.format(before=RECORDED))
    assert where.endswith("in attend"), where


def test_a_batch_size_that_was_found_is_a_note(run_python: Run) -> None:
    """Errors that auto_find_batch_size caught are one note, and no card."""
    findings, printed = run_python(
        """
import contextlib, io, torch, hfmem_widget
from accelerate.utils import find_executable_batch_size
printed = io.StringIO()
with contextlib.redirect_stdout(printed), hfmem_widget.watch("find") as session:
    torch.ones(1, device="cuda")
    total = torch.cuda.mem_get_info()[1]
    with hfmem_widget.span("warm up"):
        torch.cuda.synchronize()

    @find_executable_batch_size(starting_batch_size=64)
    def train(batch_size):
        torch.empty(int(total * batch_size / 40), dtype=torch.uint8, device="cuda")

    import time
    time.sleep(0.3)  # a tick finds that CUDA is up
    train()
found = [one for one in session.findings if one.kind == "oom"]
report([[[one.kind, one.severity, one.title] for one in found], printed.getvalue()])
"""
    )
    ((kind, severity, title),) = findings
    assert (kind, severity) == ("oom", "info")
    assert "caught" in title
    assert "out of memory \u00b7" not in printed
