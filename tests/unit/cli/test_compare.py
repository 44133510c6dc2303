"""`hfmem compare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.cli.compare import judge, parse_limit
from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import FINE, NO, WRONG
from hfmem_widget.features.compare.api import compare
from hfmem_widget.features.compare.text import text
from hfmem_widget.session import Peak
from hfmem_widget.text import GIB, MIB
from tests.scenes import scripted_run

Make = Callable[..., Path]


@pytest.fixture
def two(recorded: Make) -> list[str]:
    """Return two recordings; the second takes 0.3 % more."""
    runs = recorded("training", "a.hfmem.jsonl", "base"), recorded("steps", "b.hfmem.jsonl", "head")
    return [str(path) for path in runs]


def test_the_table_is_that_of_the_notebook(
    two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is what `hfmem_widget.compare` shows of the same sessions."""
    base, head = scripted_run("training"), scripted_run("steps")
    base.label, head.label = "base", "head"

    assert main(["compare", *two]) == FINE
    assert capsys.readouterr().out == text(compare(base, head)) + "\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
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
    words: list[str], code: int, said: str, two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1 if it exceeds by more, and a sentence has both figures."""
    assert main(["compare", *two, *words]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("run", "outcome"), [("failed", "raised OutOfMemoryError"), ("", "broken off")]
)
def test_a_run_that_did_not_finish_is_not_within_a_limit(
    run: str, outcome: str, recorded: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures are those of a part: whatever they are, the exit code is 1."""
    base, head = recorded("eight gpus", "a.hfmem.jsonl"), recorded(run or "short", "b.hfmem.jsonl")
    if not run:
        head.write_bytes(b"".join(head.read_bytes().splitlines(keepends=True)[:-1]))

    assert main(["compare", str(base), str(head), "--fail-over", "2%"]) == NO
    assert f"did not finish: {outcome}." in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["2", "much", "2GB", "-1%", "%", "nan%"])
def test_a_limit_that_is_none_is_refused(
    limit: str, two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said what a limit looks like; nothing is compared."""
    assert main(["compare", *two, f"--fail-over={limit}"]) == WRONG
    shown = capsys.readouterr()

    assert "--fail-over must be a percentage" in shown.err
    assert shown.out == ""


def test_markdown_is_the_same_table(two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each row has as many cells as the head, and what stands below a figure follows in its cell."""
    main(["compare", *two, "--markdown"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]

    assert len({row.count(" | ") for row in rows[:4]}) == 1
    assert rows[3].startswith("| head | 7.01 GiB exact<br>+23.0 MiB · +0.3 % |")


def test_a_label_cannot_leave_its_cell(recorded: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """In Markdown a label is text: no bars, no HTML, no links, no mentions."""
    label = "a|b <img src=x> [x](http://y) @someone #1 `c`"
    a, b = recorded("training", "a.hfmem.jsonl", "base"), recorded("steps", "b.hfmem.jsonl", label)

    main(["compare", str(a), str(b), "--markdown", "--fail-over", "2%"])
    shown = capsys.readouterr().out

    assert "a\\|b" in shown
    assert not [raw for raw in ("<img", "http://", "@someone", "#1", " `c") if raw in shown]


def test_runs_of_one_name_are_told_apart_by_their_files(
    recorded: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs of one script have one label: the names of the files stand for it."""
    runs = [str(recorded("training", f"{name}.hfmem.jsonl")) for name in ("before", "after")]

    main(["compare", *runs])

    assert "after" in capsys.readouterr().out.split("before", 1)[1]


def test_different_devices_are_said(
    recorded: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says that two runs were on different products."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("training", "b.hfmem.jsonl")
    b.write_text(b.read_text("utf-8").replace("NVIDIA H200", "NVIDIA A100"), "utf-8")

    assert main(["compare", str(a), str(b)]) == FINE
    assert "Different devices: a on NVIDIA H200, b on NVIDIA A100." in capsys.readouterr().out


def test_nothing_in_common_cannot_be_judged(
    recorded: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run on a GPU and one on the host are shown, but not judged: the exit code is 2."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("cpu", "b.hfmem.jsonl")

    assert main(["compare", str(a), str(b), "--fail-over", "2%"]) == WRONG
    shown = capsys.readouterr()

    assert "tiny-bert did not use cuda:0." in shown.out
    assert "nothing can be judged" in shown.err


def record(**peaks: float) -> Record:
    """Return the record of a run that had some peaks, by device without its colon."""
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
    """More than the limit on any device counts, also on one that was not used before; 1 MiB never does."""
    judged = judge(record(**before), record(**after), "peak", parse_limit(limit))

    assert [line.split()[0] for is_over, line in judged if is_over] == over


def test_a_run_that_goes_on_is_not_compared(
    recorded: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said that it still runs."""
    path = recorded("training")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    monkeypatch.setattr("time.time", lambda: 0.0)

    assert main(["compare", str(path), str(path)]) == WRONG
    assert "still running" in capsys.readouterr().err
