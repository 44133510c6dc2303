"""Stacks on a real GPU: the composition of the peak is the allocator's own peak, to the byte."""

import pytest

from tests.gpu.conftest import Run
from tests.gpu.scenarios import MODEL, SETUP, TRAIN

WATCHED_TRAINING = (
    "import hfmem_widget\n"
    + SETUP
    + "with hfmem_widget.watch('train', stacks=True, quiet=True) as session:\n    "
    + TRAIN.strip().replace("\n", "\n    ")
    + "\npeak = session.stacks.peaks[0] if session.stacks else None\n"
)

FEW_EVENTS = """
import functools
import hfmem_widget.sources.torch_cuda as torch_cuda
torch_cuda.CudaAllocator.recording = functools.partial(torch_cuda.CudaHistory, most={most})
"""


def test_the_composition_is_the_allocators_own_peak(run_python: Run) -> None:
    """Of a training: what is live comes to the requested peak, and with the rounding to the allocated one."""
    report = run_python.after(WATCHED_TRAINING)("""
peaks = session.spans[0].peaks
report({
    "live": peak.bytes, "highest": peak.highest, "rounding": peak.rounding,
    "requested": peaks["cuda:0/requested"].value, "allocated": peaks["cuda:0/allocated"].value,
    "certainty": peaks["cuda:0/requested"].certainty, "exact": peak.exact,
    "sums": [sum(row.bytes for row in peak.rows(by)) for by in ("line", "module", "operator")],
    "kinds": sorted({site.kind for site in peak.sites}),
    "modules": [row.name for row in peak.rows("module")[:8]],
    "cost": [session.stacks.recording.seconds, session.stacks.recording.snapshot],
    "left_on": torch._C._cuda_isHistoryEnabled(), "wrapped": peak.wrapped, "entries": peak.entries,
})
""")

    assert report["certainty"] == "exact"
    assert report["exact"]
    assert report["highest"] == report["requested"]
    assert report["live"] == report["requested"]
    assert report["live"] + report["rounding"] == report["allocated"]
    assert report["rounding"] >= 0
    assert report["sums"] == [report["live"]] * 3
    assert {"before", "forward"} <= set(report["kinds"])
    assert any("Bert" in name for name in report["modules"])
    assert min(report["cost"]) > 0
    assert not report["left_on"]
    assert not report["wrapped"]


def test_a_cell_that_brings_cuda_up_is_recorded_from_its_first_byte(run_python: Run) -> None:
    """Also where it imports torch: nothing is from before."""
    body = (
        MODEL
        + "model = make_model(2)\nloss = model(**batch_of(256)).loss\ntorch.cuda.synchronize()\n"
    )
    report = run_python.after(
        "import hfmem_widget\nwith hfmem_widget.watch(stacks=True, quiet=True) as session:\n    "
        + body.strip().replace("\n", "\n    ")
    )("""
peak = session.stacks.peaks[0]
report([peak.exact, peak.highest, sorted({site.kind for site in peak.sites}), session.stacks.recording.began])
""")

    assert report[0]
    assert "before" not in report[2]
    assert report[3] > 0


def test_the_users_own_recording_is_left_alone(run_python: Run) -> None:
    """It goes on with all of its events, and a sentence says why there are no stacks."""
    on, events, actions, stacks, notes = run_python(
        """
import torch, hfmem_widget
torch.ones(1, device="cuda")
torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1000)
first = torch.empty(1 << 20, device="cuda")
with hfmem_widget.watch(stacks=True, quiet=True) as session:
    second = torch.empty(1 << 20, device="cuda")
third = torch.empty(1 << 20, device="cuda")
trace = torch.cuda.memory._snapshot()["device_traces"][0]
report([torch._C._cuda_isHistoryEnabled(), sum(event["action"] == "alloc" for event in trace),
        [event["action"] for event in trace], session.stacks is None, session.notes])
"""
    )

    assert on
    assert events == 3
    assert actions.count("snapshot") <= 1
    assert stacks
    assert any("allocation history itself" in note for note in notes)


@pytest.mark.parametrize(
    ("tokens", "exact"),
    [("(64, 96, 64, 96, 64, 96, 511)", True), ("(511, 64, 64, 64, 64, 64, 64, 64)", False)],
)
def test_a_wrapped_history_is_known_to_be_so(run_python: Run, tokens: str, exact: bool) -> None:
    """A ring too small for the run: exact where the peak is in what it kept, and known to be."""
    report = run_python.after(FEW_EVENTS.format(most=6000) + "import hfmem_widget\n" + SETUP)(f"""
with hfmem_widget.watch(stacks=True, quiet=True) as session:
    for tokens in {tokens}:
        step(model, optimizer, tokens)
peak = session.stacks.peaks[0]
report([peak.wrapped, peak.exact, peak.highest, session.spans[0].peaks["cuda:0/requested"].value,
        session.stacks._repr_mimebundle_()["text/plain"].splitlines()[-3:]])
""")

    assert report[0]
    assert report[1] == exact
    assert report[2] <= report[3]
    assert any("may have been earlier" in line for line in report[4]) != exact


def test_torchs_own_viewer_reads_what_is_saved(run_python: Run) -> None:
    """The functions behind pytorch.org/memory_viz take the file."""
    kept, events, live = run_python.after(WATCHED_TRAINING)("""
import pickle, tempfile, pathlib
from torch.cuda import _memory_viz
path = session.stacks.save(pathlib.Path(tempfile.mkdtemp()) / "peak.pickle")
snapshot = pickle.loads(path.read_bytes())
report([len(_memory_viz.segsum(snapshot)), len(snapshot["device_traces"][0]),
        len(_memory_viz.trace_plot(snapshot))])
""")

    assert kept > 0
    assert events > 1000
    assert live > 1000


def test_after_an_out_of_memory_error_what_was_live_is_told(run_python: Run) -> None:
    """And the error is the user's own, with memory free again once it is let go."""
    report = run_python(
        """
import torch, hfmem_widget
one = torch.ones(1, device="cuda")
torch.cuda.set_per_process_memory_fraction(0.02)
watch = hfmem_widget.watch(stacks=True, quiet=True)
kept = []
try:
    with watch as session:
        while True:
            kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    kind = type(error).__name__
live = session.stacks.peaks[0]
blocks = len(kept)
kept.clear()
report([kind, live.bytes, blocks * (64 << 20), live.exact, torch.cuda.memory_allocated()])
"""
    )

    assert report[0] == "OutOfMemoryError"
    assert report[1] == report[2] + 4
    assert report[3]
    assert report[4] == 512
