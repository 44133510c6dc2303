"""Launchers that users have, with scripts that know nothing of us: exactly the ranks are followed."""

import json
import sys
from pathlib import Path

import pytest

from hfmem_widget.ranks.directory import streams
from tests.ranks.launch import BARE, SCRIPTS, TORCHRUN, followed, free_port, python, sessions

pytestmark = pytest.mark.slow

SITE = "import os; os.environ['SITE_RAN'] = os.environ.get('SITE_RAN', '') + 'x'"


def reports(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("report-*.json"))]


def test_a_trainer_under_torchrun_is_followed_and_not_changed(tmp_path: Path) -> None:
    """Two streams in spite of workers and children, all steps; the same losses, and the site's code ran."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    environ = BARE | {"PYTHONPATH": str(tmp_path / "site")}
    run, plain, watched = (tmp_path / name for name in ("run", "plain", "watched"))
    plain.mkdir()
    watched.mkdir()
    script = SCRIPTS / "train.py"
    python(script, plain, free_port(), environ=environ)
    words = (free_port(), script, watched, "with-children")
    python(*TORCHRUN, *words, environ=followed(run, environ))
    ranks = sessions(run)

    assert reports(plain) == reports(watched) != []
    assert reports(watched)[1]["rank"] == 1
    assert reports(watched)[1]["site"]
    assert reports(watched)[1]["cuda"] is False
    assert [rank.label for rank in ranks] == ["rank 0", "rank 1"]
    assert [rank.steps.count for rank in ranks] == [6, 6]
    assert {span.kind for span in ranks[1].spans} >= {"block", "train", "step", "forward"}
    assert [rank.running for rank in ranks] == [False, False]
    assert [rank.spans[0].outcome for rank in ranks] == ["done", "done"]


def test_notebook_launcher_forks_ranks(tmp_path: Path) -> None:
    """Each child of the watched process is a rank; the watch goes on, and the environment is as it was."""
    done = python(SCRIPTS / "notebook.py", tmp_path / "run", free_port())

    assert json.loads(done.stdout.splitlines()[-1]) == {"same": True, "steps": 0, "outcome": "done"}
    assert [rank.steps.count for rank in sessions(tmp_path / "run")] == [4, 4]
    head = json.loads(streams(tmp_path / "run").paths[1].read_bytes().splitlines()[0])
    assert {name: head[name] for name in ("rank", "local", "world", "attempt", "engine")} == {
        "rank": 1, "local": 1, "world": 2, "attempt": 0, "engine": "notebook_launcher",
    }  # fmt: skip


def test_spawned_processes_are_ranks(tmp_path: Path) -> None:
    """An error that torch.multiprocessing catches is that of the rank, and why is told."""
    environ = followed(tmp_path / "run")
    python(SCRIPTS / "spawned.py", free_port(), "raise", "spawn", environ=environ, code=1)
    whole, failed = sessions(tmp_path / "run")

    assert whole.spans[0].outcome == "done"
    assert failed.spans[0].outcome == "raised RuntimeError"
    assert [finding.kind for finding in failed.findings] == ["oom"]


def test_a_restarted_rank_has_a_stream_for_each_attempt(tmp_path: Path) -> None:
    """Torchrun says which attempt it is, and a line in the script follows it."""
    run = tmp_path / "run"
    restarts = (*TORCHRUN[:-1], "--max-restarts", "1", TORCHRUN[-1], free_port())
    python(*restarts, SCRIPTS / "restarted.py", run)

    names = (path.name[3:9] for path in streams(run).paths)
    attempts = dict(zip(names, sessions(run), strict=True))
    assert list(attempts) == ["000-a0", "000-a1", "001-a0", "001-a1"]
    assert attempts["001-a0"].spans[0].outcome == "raised RuntimeError"
    assert attempts["001-a1"].spans[0].outcome == attempts["000-a1"].spans[0].outcome == "done"
    # The launcher ends rank 0 of the first attempt, wherever that is.
    assert [len(attempts[each].steps) for each in ("000-a1", "001-a0", "001-a1")] == [1, 1, 1]


def test_a_world_that_grows_and_shrinks_is_followed(tmp_path: Path) -> None:
    """No old rank is called silent as 2 ranks become 4, a node is lost, and 2 go on."""
    data = json.loads(python(SCRIPTS / "elastic.py", tmp_path / "run", tmp_path / "flag").stdout)
    two, four, lost, after = data["seen"]

    assert [two["ranks"], four["ranks"], after["ranks"]] == [[0, 1], [0, 1, 2, 3], [0, 1]]
    assert "4 instead of 2 ranks" in four["findings"].pop("rank-restarted")
    assert "killed" in lost["findings"]["rank-gone"]
    assert "2 instead of 4 ranks" in after["findings"].pop("rank-restarted")
    assert two["findings"] == four["findings"] == after["findings"] == {}
    assert (data["codes"], data["outcome"]) == ([0, 0], "done")


def test_a_killed_rank_is_named_and_leaves_what_it_has_written(tmp_path: Path) -> None:
    """A killed rank is named once the launcher has ended; at most its last second is lost, and no other's."""
    words = (SCRIPTS / "spawned.py", free_port(), "kill", "fork")
    done = python(SCRIPTS / "watched.py", tmp_path / "run", sys.executable, *words)
    data = json.loads(done.stdout.splitlines()[-1])
    ranks = sessions(tmp_path / "run")

    assert data["code"] == 1
    assert list(data["findings"]) == ["rank-gone"]
    assert "Rank 1 was killed" in data["findings"]["rank-gone"]
    assert len(ranks) == 2
    assert all(not any("could not be read" in note for note in rank.notes) for rank in ranks)
    assert all(rank.timeline.samples >= 5 for rank in ranks)


def test_clocks_off_by_seconds_are_corrected(tmp_path: Path) -> None:
    """A node's clock is five seconds ahead: its ranks' times are put right, and one sentence says so."""
    done = python(SCRIPTS / "watched.py", tmp_path / "run", sys.executable, SCRIPTS / "clocks.py")
    data = json.loads(done.stdout.splitlines()[-1])

    assert data["code"] == 0
    assert list(data["findings"]) == ["clock"]
    assert round(data["clocks"]["ahead"]) == 5
    assert [step for _, _, step in data["ranks"].values()] == [12, 12]
