"""`hfmem compare`."""

from pathlib import Path

import pytest

from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.cli.compare import judge, parse_limit
from hfmem_widget.cli.output import FINE, NO, WRONG
from hfmem_widget.features.compare.api import compare
from hfmem_widget.features.compare.text import text
from hfmem_widget.session import Peak
from hfmem_widget.text import GIB, MIB
from tests.scenes import scripted_run
from tests.unit.cli.conftest import Hfmem, Make
from tests.unit.features.compare.test_by_line import TRAINER, with_stacks


@pytest.fixture
def two(recorded: Make) -> list[str]:
    """Return two recordings; the second takes 0.3 % more."""
    runs = recorded("training", "a.hfmem.jsonl", "base"), recorded("steps", "b.hfmem.jsonl", "head")
    return [str(path) for path in runs]


def test_the_table_is_that_of_the_notebook(two: list[str], hfmem: Hfmem) -> None:
    """The output is that of `hfmem_widget.compare` for the same sessions."""
    base, head = scripted_run("training"), scripted_run("steps")
    base.label, head.label = "base", "head"

    assert hfmem("compare", *two) == (FINE, text(compare(base, head)) + "\n", "")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--fail-over", "2%"], FINE, "(+23.0 MiB, +0.3 %), within the limit of 2 %."),
        (["--fail-over", "0.1 %"], NO, "7.01 GiB in head (+23.0 MiB, +0.3 %), more than the limit"),
        (["--fail-over", "10MiB"], NO, "more than the limit of 10.0 MiB"),
        (["--fail-over", "0.1%", "--metric", "left"], FINE, "left behind"),
        (["--fail-over", "0.1%", "--metric", "reserved"], NO, "peak of reserved"),
        (["--fail-over", "0.1%", "--markdown"], NO, "- cuda:0 peak of allocated"),
    ],
)
def test_the_second_may_exceed_the_first_by_a_limit(
    words: list[str], code: int, sentence: str, two: list[str], hfmem: Hfmem
) -> None:
    """The exit code is 1 if it exceeds by more, and a sentence has both figures."""
    exit_code, out, _ = hfmem("compare", *two, *words)
    assert exit_code == code
    assert sentence in out


@pytest.mark.parametrize(
    ("run", "outcome"), [("failed", "raised OutOfMemoryError"), ("", "broken off")]
)
def test_unfinished_runs_fail_limits(run: str, outcome: str, recorded: Make, hfmem: Hfmem) -> None:
    """The figures are those of a part of the run, so the exit code is always 1."""
    base, head = recorded("eight gpus", "a.hfmem.jsonl"), recorded(run or "short", "b.hfmem.jsonl")
    if not run:
        head.write_bytes(b"".join(head.read_bytes().splitlines(keepends=True)[:-1]))

    code, out, _ = hfmem("compare", base, head, "--fail-over", "2%")
    assert code == NO
    assert f"did not finish: {outcome}." in out


@pytest.mark.parametrize("limit", ["2", "much", "2GB", "-1%", "%", "nan%"])
def test_an_invalid_limit_is_refused(limit: str, two: list[str], hfmem: Hfmem) -> None:
    """The error describes a limit; nothing is compared."""
    code, out, err = hfmem("compare", *two, f"--fail-over={limit}")

    assert (code, out) == (WRONG, "")
    assert "--fail-over must be a percentage" in err


def test_markdown_is_the_same_table(two: list[str], hfmem: Hfmem) -> None:
    """Each row has as many cells as the head, and text below a figure follows in its cell."""
    table = hfmem("compare", *two, "--markdown").out
    rows = [line for line in table.splitlines() if line.startswith("| ")]

    assert len({row.count(" | ") for row in rows[:4]}) == 1
    assert rows[3].startswith("| head | 7.01 GiB exact<br>+23.0 MiB · +0.3 % |")


def test_lines_of_code_are_compared(tmp_path: Path, hfmem: Hfmem) -> None:
    """Lines are compared as text and as Markdown; without stacks a sentence says what is missing."""
    sizes = {"base": (TRAINER(3),), "head": (TRAINER(9),), "bare": ()}
    sessions = {name: with_stacks(name, *sites) for name, sites in sizes.items()}
    sessions["bare"].stacks = None
    a, b, bare = (one.save(tmp_path / f"{name}.jsonl") for name, one in sessions.items())

    for words in ((), ("--markdown",)):
        done = hfmem("compare", a, b, "--by", "line", *words)
        assert done.code == FINE
        plain = done.out.replace("\\", "")
        assert "6.00 MiB more, allocated in Trainer._prepare_inputs() of" in plain
        assert "transformers/trainer.py:2001" in done.out
    code, out, _ = hfmem("compare", a, bare, "--by", "module")
    assert code == FINE
    assert "Nothing is compared by module with bare: no stacks of cuda:0 were recorded." in out
    assert "--stacks" in out


def test_a_label_cannot_leave_its_cell(recorded: Make, hfmem: Hfmem) -> None:
    """In Markdown a label stays text, without bars, HTML, links or mentions."""
    label = "a|b <img src=x> [x](http://y) @someone #1 `c`"
    a, b = recorded("training", "a.hfmem.jsonl", "base"), recorded("steps", "b.hfmem.jsonl", label)

    out = hfmem("compare", a, b, "--markdown", "--fail-over", "2%").out

    assert "a\\|b" in out
    assert not [raw for raw in ("<img", "http://", "@someone", "#1", " `c") if raw in out]


def test_runs_of_one_name_are_told_apart_by_their_files(recorded: Make, hfmem: Hfmem) -> None:
    """Two runs of one script have the same label, so the file names are shown."""
    runs = [recorded("training", f"{name}.hfmem.jsonl") for name in ("before", "after")]

    assert "after" in hfmem("compare", *runs).out.split("before", 1)[1]


def test_different_devices_are_noted(recorded: Make, hfmem: Hfmem) -> None:
    """One sentence says that the runs were on different products."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("training", "b.hfmem.jsonl")
    b.write_text(b.read_text("utf-8").replace("NVIDIA H200", "NVIDIA A100"), "utf-8")

    code, out, _ = hfmem("compare", a, b)
    assert code == FINE
    assert "Different devices: a on NVIDIA H200, b on NVIDIA A100." in out


def test_runs_without_a_common_device_are_not_judged(recorded: Make, hfmem: Hfmem) -> None:
    """A run on a GPU and one on the host are shown, and the exit code is 2."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("cpu", "b.hfmem.jsonl")

    result = hfmem("compare", a, b, "--fail-over", "2%")

    assert result.code == WRONG
    assert "tiny-bert did not use cuda:0." in result.out
    assert "nothing can be judged" in result.err


def record(**peaks: float) -> Record:
    """Return the record of a run with these peaks, by device without its colon."""
    devices = tuple(
        DeviceRecord(key=f"cuda:{key[-1]}", peak=Peak(peak, "exact"), after=0.0, before=0.0)
        for key, peak in peaks.items()
    )
    return Record(label="x", title="x", identity="x", duration=1.0, devices=devices)


@pytest.mark.parametrize(
    ("before", "after", "limit", "over"),
    [
        ({"a0": GIB}, {"a0": 1.0199 * GIB}, "2%", []),
        ({"a0": GIB}, {"a0": 1.021 * GIB}, "2%", ["cuda:0"]),
        ({"a0": 0.0}, {"a0": MIB}, "2%", []),
        ({"a0": 0.0}, {"a0": 1.1 * MIB}, "2%", ["cuda:0"]),
        ({"a0": GIB}, {"a0": GIB + 2}, "1b", ["cuda:0"]),
        ({"a0": GIB, "a3": GIB}, {"a0": GIB, "a3": 2 * GIB}, "2%", ["cuda:3"]),
        ({"a0": GIB}, {"a0": GIB, "a1": GIB}, "2%", ["cuda:1"]),
        ({"a0": GIB, "a1": GIB}, {"a0": GIB}, "2%", []),
        ({"a0": GIB}, {"a0": float("nan")}, "2%", []),
    ],
)
def test_every_device_is_judged(
    before: dict[str, float], after: dict[str, float], limit: str, over: list[str]
) -> None:
    """A rise above the limit counts on any device, also on a new one; less than 1 MiB never does."""
    judged = judge(record(**before), record(**after), "peak", parse_limit(limit))

    assert [line.split()[0] for is_over, line in judged if is_over] == over


def test_growing_runs_fail(recorded: Make, monkeypatch: pytest.MonkeyPatch, hfmem: Hfmem) -> None:
    """The error says that it still runs."""
    path = recorded("training")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    monkeypatch.setattr("time.time", lambda: 0.0)

    code, _, err = hfmem("compare", path, path)
    assert code == WRONG
    assert "still running" in err
