"""`hfmem` with the directory of a distributed run."""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import FINE, NO, WRONG
from hfmem_widget.cli.watch import watch
from tests.fakes.ranks import Script, SimulatedRun, append
from tests.unit.cli.conftest import Hfmem

RUN = "ab" * 16


def made(place: Path, script: Script | None = None) -> SimulatedRun:
    """Write the directory of a finished run of four ranks, the last of which needs more."""
    run = SimulatedRun(script or Script(world=4, heavier={3: 1.1}, interval=0.5), run=RUN)
    run.write(place, 12.0)
    return run


def test_check_shows_the_data_of_the_ranks(tmp_path: Path, hfmem: Hfmem) -> None:
    """A check shows ranks, nodes, steps, the worst rank and findings; a complete run is fine."""
    made(tmp_path / "run")

    code, out, _ = hfmem("check", tmp_path / "run")

    assert code == FINE
    assert "ranks         4 of 4" in out
    assert "highest peak  rank 3: 50" in out
    assert "damage        none" in out
    assert "more than its peers" in out


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("a line", "1 line could not be read"),
        ("a rank", "1 rank missing"),
        ("an end", "no end: rank 2"),
        ("a stranger", "1 file of the run's directory left out: of another run"),
    ],
)
def test_check_reports_damage(damage: str, sentence: str, tmp_path: Path, hfmem: Hfmem) -> None:
    """Missing or unreadable data are a sentence, and the exit code is 1."""
    path = tmp_path / "run" / made(tmp_path / "run").ranks[2].stream
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "a rank":
        path.unlink()
    elif damage == "an end":
        path.write_bytes(b"".join(lines[:-1]))
        for each in path.parent.glob("*.jsonl"):
            os.utime(each, (1e9, 1e9))  # else it goes on
    elif damage == "a line":
        path.write_bytes(b"".join([*lines[:5], b"hello\n", *lines[5:]]))
    else:
        head = lines[0].replace(RUN.encode(), b"cd" * 16)
        append(path.with_name("r00002-a0-node0000-1.jsonl"), head)

    code, out, _ = hfmem("check", tmp_path / "run")
    assert code == NO
    assert sentence in out


def test_another_directory_is_refused(tmp_path: Path, hfmem: Hfmem) -> None:
    """Every command refuses it in one sentence."""
    for command in ("check", "watch", "report"):
        code, _, err = hfmem(command, tmp_path)
        assert code == WRONG
        assert "is not the folder of a run: it has no run.json" in err


def test_an_empty_run(tmp_path: Path, hfmem: Hfmem) -> None:
    """An empty run has no report, and `watch --once` says that it is empty."""
    SimulatedRun(Script(world=2), run=RUN).write(tmp_path / "run", 0.0, finish=False)

    code, _, err = hfmem("report", tmp_path / "run")
    assert code == WRONG
    assert "no rank" in err
    code, out, _ = hfmem("watch", "--once", tmp_path / "run")
    assert code == FINE
    assert "empty" in out


def test_report_is_a_page_of_all_ranks(tmp_path: Path) -> None:
    """The report is one file with the overview."""
    made(tmp_path / "run")

    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "run.html")]) == FINE
    assert "fine-tune" in (tmp_path / "run.html").read_text()


def test_compare_judges_the_highest_rank(tmp_path: Path, hfmem: Hfmem) -> None:
    """A run whose highest rank needs more exceeds the limit; the same run does not."""
    made(tmp_path / "a")
    made(tmp_path / "b", Script(world=4, heavier={3: 1.2}, interval=0.5))
    a, b = tmp_path / "a", tmp_path / "b"

    code, out, _ = hfmem("compare", a, b, "--fail-over", "2%")
    assert code == NO
    assert "more than the limit of 2 %" in out
    assert hfmem("compare", a, a, "--fail-over", "2%").code == FINE


def test_watch_shows_a_run_once(tmp_path: Path, hfmem: Hfmem) -> None:
    """The data have a row for each rank, with its exact peak."""
    run = made(tmp_path / "run")

    code, out, _ = hfmem("watch", "--once", "--json", tmp_path / "run")
    data = json.loads(out)

    assert code == FINE
    peaks = {row["rank"]: row["peak"] for row in data["ranks"]["table"]}
    assert peaks == {number: rank.peak for number, rank in run.ranks.items()}
    assert (data["state"], data["step"]) == ("done", 22)


def test_watch_follows_a_run_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second look shows what the ranks wrote since the first; the last one shows the end."""
    run = SimulatedRun(Script(world=2, interval=0.5), run=RUN, began=time.time())
    run.write(tmp_path / "run", 1.0, finish=False)
    parts = [False, True]

    def pause(seconds: float) -> None:
        del seconds
        run.write(tmp_path / "run", 4.0, finish=parts.pop(0))

    assert watch(Namespace(RUN=str(tmp_path / "run"), once=False, json=True), pause) == FINE
    states = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [one["state"] for one in states] == ["running", "running", "done"]
    assert [one["step"] for one in states] == sorted(one["step"] for one in states)


def test_watch_says_that_a_run_broke_off(tmp_path: Path) -> None:
    """The exit code is 1 if a rank has no end and has written nothing for long."""
    run = made(tmp_path / "run", Script(world=2, interval=0.5, killed={1: 6.0}))
    for rank in run.ranks.values():
        os.utime(tmp_path / "run" / rank.stream, (1e9, 1e9))

    assert main(["watch", "--once", str(tmp_path / "run")]) == NO


def test_leaving_the_screen_does_not_touch_the_run(tmp_path: Path) -> None:
    """Ctrl-C ends the process without a traceback, with exit code 0 and unchanged files."""
    run = SimulatedRun(Script(world=2), began=time.time() - 10, run=RUN)
    run.write(tmp_path / "run", 10.0, finish=False)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    words = [sys.executable, "-m", "hfmem_widget", "watch", str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=240)

    assert (watching.returncode, err) == (FINE, b"")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
