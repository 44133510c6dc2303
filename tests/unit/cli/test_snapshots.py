"""`hfmem` with snapshots of torch's allocator from elsewhere."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.cli.output import FINE, NO, WRONG
from hfmem_widget.errors import OptionError
from hfmem_widget.text import MINUS
from tests.data.torch_snapshots import Allocations, training
from tests.unit.cli.conftest import Checked, Hfmem
from tests.unit.features.compare.test_by_line import site, with_stacks
from tests.unit.features.stacks.test_snapshot import old

MIB = 1 << 20
MAIN = ("/home/user/project/train.py", 9, "main")
STEP = ("/home/user/project/train.py", 21, "step")
LOSS = ("/home/user/project/train.py", 22, "step")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a snapshot in the test's folder, and returns its path."""

    def written(snapshot: Any, name: str = "a.pickle") -> Path:
        path = tmp_path / name
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        return path

    return written


def run_of(step: int, loss: int = 4) -> Allocations:
    """Return a complete history: two lines of a function hold some MiB at its peak."""
    allocations = Allocations()
    allocations.alloc(8 * MIB, MAIN)
    allocations.wait(0.5)
    passing = [allocations.alloc(step * MIB, STEP, MAIN), allocations.alloc(loss * MIB, LOSS, MAIN)]
    allocations.wait(0.5)
    for address in passing:
        allocations.free(address)
    return allocations


def on_two_devices() -> dict[str, Any]:
    snapshot, second = run_of(16).snapshot(), training(1).snapshot()
    for segment in second["segments"]:
        segment["device"] = 1
    snapshot["segments"] += second["segments"]
    snapshot["device_traces"] += second["device_traces"]
    return snapshot


def rows(out: str) -> dict[str, str]:
    return {line[:8].strip(): line[9:] for line in out.splitlines() if line[:1].isalpha()}


def damaged() -> dict[str, Any]:
    snapshot = run_of(16).snapshot()
    snapshot["segments"][0]["total_size"] += 512
    return snapshot


@pytest.mark.parametrize(
    ("snapshot", "code", "expected"),
    [
        (
            run_of(16).snapshot(),
            FINE,
            {
                "format": "a snapshot of torch's allocator",
                "devices": "cuda:0 8.00 MiB allocated, 8.00 MiB reserved, 1 segment, 1 block",
                "history": "cuda:0 7 events over 1.0 s",
                "peaks": "cuda:0 28.0 MiB exact",
                "damage": "none",
            },
        ),
        (damaged(), NO, {"damage": "1 segment whose blocks do not add up"}),
        (
            old(run_of(16).snapshot()),
            FINE,
            {"history": "cuda:0 7 events", "peaks": "cuda:0 28.0 MiB exact"},
        ),
        (run_of(16).snapshot()["segments"], FINE, {"peaks": "cuda:0 n/a"}),
    ],
    ids=["a history", "damage", "torch 2.1, without times", "segments alone"],
)
def test_a_check_shows_the_contents_of_a_snapshot(
    snapshot: Any, code: int, expected: dict[str, str], write: Write, hfmem: Hfmem
) -> None:
    """A check has allocated and reserved bytes, the history's length, the peak, and what is damaged."""
    exit_code, out, _ = hfmem("check", write(snapshot))

    assert exit_code == code
    assert expected.items() <= rows(out).items()


def test_a_check_says_that_older_events_are_gone(write: Write, hfmem: Hfmem) -> None:
    """A block whose stack has no event lost that event; one without a stack is older."""
    cut, late = Allocations(most=4), run_of(16)
    for _ in range(5):
        cut.alloc(MIB, MAIN)
    late.forget()
    late.alloc(MIB, MAIN)

    assert "4 events over 0.0 ms; older ones are gone" in hfmem("check", write(cut.snapshot())).out
    assert "≥ 5.00 MiB" in hfmem("check", write(cut.snapshot())).out
    out = hfmem("check", write(late.snapshot())).out
    assert "gone" not in out
    assert "note: 8.00 MiB is older than the history" in out


def test_a_check_names_the_device_of_older_memory(write: Write, hfmem: Hfmem) -> None:
    """Each of two devices has its row, in order."""
    out = hfmem("check", write(on_two_devices())).out
    history = out[out.index("history") : out.index("peaks")]
    assert [line[9:15] for line in history.splitlines()] == ["cuda:0", "cuda:1"]
    assert "108.0 MiB on cuda:1 is older than the history" in out


def test_a_snapshot_is_explained(write: Write, hfmem: Hfmem) -> None:
    """The text has the peak by line, and reserved and free memory, in at most 40 lines."""
    code, out, _ = hfmem("explain", write(training().snapshot()))

    assert code == FINE
    assert out.startswith("a.pickle: a snapshot with 737 events over 1.7 s\n492.0 MiB was")
    assert "264.0 MiB was reserved there when it was taken, 0.00 MiB of it free." in out
    assert "project/train.py:61   327.0 MiB" in out[out.index("Lines that held most at the peak") :]
    assert len(out.splitlines()) <= 40


def test_the_device_with_the_highest_peak_is_explained_first(write: Write, hfmem: Hfmem) -> None:
    """The other devices follow with their peaks."""
    out = hfmem("explain", write(on_two_devices())).out
    assert "was allocated on cuda:1 at the peak" in out
    assert out[out.index("The other devices") :].split()[3:6] == ["cuda:0", "28.0", "MiB"]


def test_segments_have_no_peak(write: Write, hfmem: Hfmem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment of the snapshot is explained, and no peak."""
    path = write(run_of(16).snapshot()["segments"])
    explained = hfmem("explain", path).out
    assert "8.00 MiB was allocated on cuda:0 when it was taken" in explained
    assert "peak" not in explained
    monkeypatch.chdir(path.parent)
    hfmem("report", path.name)
    assert "live at the peak" not in Path("a.html").read_text("utf-8")


def test_an_empty_snapshot_is_explained(write: Write, hfmem: Hfmem) -> None:
    """A process that allocated nothing has an empty snapshot."""
    path = write({"segments": [], "device_traces": [[]]})
    assert hfmem("check", path).code == FINE
    assert hfmem("explain", path).out.endswith("with no events\nNothing was allocated.\n")


def test_frames_of_c_alone_are_torchs_own(write: Write, hfmem: Hfmem) -> None:
    """If only C++ frames were recorded, no line of a user is named."""
    allocations = Allocations()
    allocations.alloc(MIB, ("??", 0, "at::native::empty_cuda"))
    out = hfmem("explain", write(allocations.snapshot())).out
    assert "from one line" not in out
    assert "torch's own code" in out


def test_the_data_have_the_documented_form(write: Write, checked: Checked) -> None:
    """Each command's `--json` has the documented form, with a history and without."""
    whole, bare = write(on_two_devices()), write(run_of(1).snapshot()["segments"], "b.pickle")
    for path in (whole, bare):
        assert checked("check", "check", path, "--json")["damage"] == []
        data = checked("explanation", "explain", path, "--json")
        assert (data["devices"][0]["peak"] is None) == (path == bare)
    words = "compare", whole, write(run_of(32).snapshot(), "c.pickle"), "--json", "--by", "line"
    assert checked("comparison", *words)["cells"][1]["changes"]


def test_two_snapshots_are_compared_by_line(write: Write, hfmem: Hfmem) -> None:
    """Lines of one function are distinguished by their numbers; there is no time and no speed."""
    a, b = write(run_of(16).snapshot()), write(run_of(24, 2).snapshot(), "b.pickle")
    code, out, _ = hfmem("compare", a, b, "--by", "line")

    assert code == FINE
    assert "b: 8.00 MiB more, allocated in step() of train.py, alive at the peak." in out
    changes = [line.split()[:4] for line in out.splitlines() if line.startswith("project/")]
    assert changes == [
        ["project/train.py:21", "(step)", "+8.00", "MiB"],
        ["project/train.py:22", "(step)", f"{MINUS}2.00", "MiB"],
    ]
    assert not [word for word in ("duration", "left behind", "reserved") if word in out]


def test_snapshots_of_one_name_are_told_apart(tmp_path: Path, hfmem: Hfmem) -> None:
    """Their folders distinguish them, also in the notes on each."""
    for folder in ("base", "head"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "peak.pickle").write_bytes(training().dump())
    out = hfmem("compare", *(tmp_path / folder / "peak.pickle" for folder in ("base", "head"))).out
    assert "base: 108.0 MiB is older than" in out
    assert "head: 108.0 MiB is older than" in out


@pytest.mark.parametrize(("step", "code"), [(16, FINE), (32, NO)])
def test_exact_peaks_are_judged(step: int, code: int, write: Write, hfmem: Hfmem) -> None:
    """Histories that begin with nothing allocated have exact peaks."""
    a, b = write(run_of(16).snapshot()), write(run_of(step).snapshot(), "b.pickle")
    done = hfmem("compare", a, b, "--fail-over", "2%")
    assert done.code == code
    assert "cuda:0 peak of requested memory: 28.0 MiB in a, " in done.out


@pytest.mark.parametrize(
    ("metric", "text"),
    [("peak", "the peak of b is not known exactly"), ("reserved", "have no such figure")],
)
def test_uncertain_peaks_are_not_judged(metric: str, text: str, write: Write, hfmem: Hfmem) -> None:
    """The peak may have been before the history begins."""
    paths = write(run_of(16).snapshot()), write(training().snapshot(), "b.pickle")
    code, _, err = hfmem("compare", *paths, "--fail-over", "2%", "--metric", metric)
    assert code == WRONG
    assert text in err


def test_snapshots_compare_with_recordings(write: Write, tmp_path: Path, hfmem: Hfmem) -> None:
    """They are compared by requested bytes and by line, since a snapshot has neither texts nor classes."""
    lines = ((9, 8, "main"), (21, 10, "Run.step"), (22, 4, "Run.step"))
    sites = [site(f"project/train.py:{at}", size, name) for at, size, name in lines]
    recorded = with_stacks("base", *sites).save(tmp_path / "base.jsonl")
    words = "compare", recorded, write(run_of(16).snapshot(), "head.pickle"), "--by", "line"
    out = hfmem(*words, "--fail-over", "50%").out

    changes = [line.split()[:3] for line in out.splitlines() if line.startswith("project/")]
    assert changes == [["project/train.py:21", "(step)", "+6.00"]]
    assert "22.0 MiB in base, 28.0 MiB in head" in out


def test_python_compares_them_as_the_terminal_does(write: Write) -> None:
    """Python compares two snapshots, or one and a session with stacks, by line, and not by step."""
    opened = [
        hfmem_widget.open(write(run_of(step).snapshot(), f"{step}.pickle")) for step in (16, 24)
    ]
    a, b = opened
    session = with_stacks("base", site("project/train.py:21", 10, "Run.step"))

    comparisons = hfmem_widget.compare(a, b, by="line"), hfmem_widget.compare(session, a, by="line")
    pair_text, mixed_text = (compared._repr_mimebundle_()["text/plain"] for compared in comparisons)
    assert "24.pickle: 8.00 MiB more, allocated in step() of train.py" in pair_text
    assert "+6.00 MiB" in mixed_text
    with pytest.raises(OptionError, match="no samples to align by step"):
        hfmem_widget.compare(a, b, by="step")


def test_a_comparison_needs_a_common_subject(write: Write, tmp_path: Path, hfmem: Hfmem) -> None:
    """What a comparison needs in common is a history, stacks, or classes."""
    snapshot, bare = write(run_of(16).snapshot()), write([], "bare.pickle")
    sessions = {"with": with_stacks("with", site("a.py:1", 1)), "without": with_stacks("without")}
    sessions["without"].stacks = None
    recorded = {name: each.save(tmp_path / f"{name}.jsonl") for name, each in sessions.items()}

    assert "bare has no history of allocations" in hfmem("compare", snapshot, bare).err
    assert "without has no stacks" in hfmem("compare", recorded["without"], snapshot).err
    by_module = hfmem("compare", recorded["with"], snapshot, "--by", "module")
    assert (by_module.code, "does not name classes" in by_module.err) == (WRONG, True)


class Runs:
    """An object whose unpickling would run code."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"segments": [Runs()]}), "could run code"),
        (run_of(16).dump()[:500], "it is damaged or cut off"),
        (pickle.dumps({"weights": [1, 2]}), "it is not a snapshot of torch's allocator"),
    ],
)
@pytest.mark.parametrize("command", ["check", "explain", "report", "compare"])
def test_an_unreadable_snapshot_is_refused(
    command: str, content: bytes, message: str, tmp_path: Path, hfmem: Hfmem
) -> None:
    """Every command refuses it in one sentence."""
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    code, out, err = hfmem(command, *[path] * (2 if command == "compare" else 1))
    assert (code, out, err.count("\n")) == (WRONG, "", 1)
    assert message in err


@pytest.mark.parametrize("words", [("export", "--to", "csv"), ("watch", "--once")])
def test_other_commands_refuse_them(words: tuple[str, ...], write: Write, hfmem: Hfmem) -> None:
    """A snapshot has no samples, and does not grow."""
    code, _, err = hfmem(*words, write(run_of(16).snapshot()))
    assert code == WRONG
    assert err.endswith("hfmem check, explain, report and compare read torch's snapshots\n")
