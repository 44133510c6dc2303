"""Launchers that users have, with scripts that know nothing of us: exactly the ranks are followed."""

from __future__ import annotations

import json
from pathlib import Path

from hfmem_widget.ranks.directory import streams
from tests.ranks.launch import BARE, SCRIPTS, TORCHRUN, followed, free_port, python, sessions

SITE = "import os; os.environ['SITE_RAN'] = os.environ.get('SITE_RAN', '') + 'x'"


def said(folder: Path) -> list[dict[str, object]]:
    """Return what the ranks of a training said of it."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("said-*.json"))]


def test_a_trainer_under_torchrun_is_followed_and_not_changed(tmp_path: Path) -> None:
    """Two streams in spite of workers and children, all steps; the same losses, and the site's code ran."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    environ = BARE | {"PYTHONPATH": str(tmp_path / "site")}
    run = tmp_path / "run"
    for name, each in (("plain", environ), ("followed", followed(run, environ))):
        (tmp_path / name).mkdir()
        python(*TORCHRUN, free_port(), SCRIPTS / "train.py", tmp_path / name, environ=each)

    ranks = sessions(run)

    assert said(tmp_path / "plain") == said(tmp_path / "followed") != []
    assert said(tmp_path / "followed")[1]["rank"] == 1
    assert said(tmp_path / "followed")[1]["site"]
    assert said(tmp_path / "followed")[1]["cuda"] is False
    assert [rank.label for rank in ranks] == ["rank 0", "rank 1"]
    assert [len(rank.steps) for rank in ranks] == [6, 6]
    assert {span.kind for span in ranks[1].spans} >= {"block", "train", "step", "forward"}
    assert [rank.running for rank in ranks] == [False, False]
    assert [rank.spans[0].outcome for rank in ranks] == ["done", "done"]


def test_notebook_launcher_forks_ranks(tmp_path: Path) -> None:
    """Each child of the watched process is a rank; the watch goes on, and the environment is as it was."""
    done = python(SCRIPTS / "notebook.py", tmp_path / "run", free_port())
    ranks = sessions(tmp_path / "run")

    assert json.loads(done.stdout.splitlines()[-1]) == {"same": True, "steps": 0, "outcome": "done"}
    assert [len(rank.steps) for rank in ranks] == [4, 4]
    head = json.loads(streams(tmp_path / "run").paths[1].read_bytes().splitlines()[0])
    assert {name: head[name] for name in ("rank", "local", "world", "attempt", "engine")} == {
        "rank": 1, "local": 1, "world": 2, "attempt": 0, "engine": "notebook_launcher",
    }  # fmt: skip


def test_spawned_processes_are_ranks(tmp_path: Path) -> None:
    """An error that torch.multiprocessing catches is that of the rank, and why is told."""
    environ = followed(tmp_path / "run")
    python(SCRIPTS / "spawned.py", free_port(), "raise", environ=environ, code=1)
    whole, failed = sessions(tmp_path / "run")

    assert whole.spans[0].outcome == "done"
    assert failed.spans[0].outcome == "raised RuntimeError"
    assert [finding.kind for finding in failed.findings] == ["oom"]


def test_a_killed_rank_leaves_what_it_has_written(tmp_path: Path) -> None:
    """Of a rank that is killed the last second at most is lost; the other's file is whole."""
    environ = followed(tmp_path / "run")
    python(SCRIPTS / "spawned.py", free_port(), "kill", environ=environ, code=1)
    ranks = sessions(tmp_path / "run")

    assert len(ranks) == 2
    assert all(not any("could not be read" in note for note in rank.notes) for rank in ranks)
    assert all(rank.timeline.samples >= 5 for rank in ranks)


def test_a_restarted_rank_has_a_stream_for_each_attempt(tmp_path: Path) -> None:
    """By a line in the script; torchrun says which attempt it is."""
    run = tmp_path / "run"
    restarts = (*TORCHRUN[:-1], "--max-restarts", "1", TORCHRUN[-1], free_port())
    python(*restarts, SCRIPTS / "restarted.py", run)

    attempts = dict(
        zip((each.name[3:9] for each in streams(run).paths), sessions(run), strict=True)
    )
    assert list(attempts) == ["000-a0", "000-a1", "001-a0", "001-a1"]
    assert attempts["001-a0"].spans[0].outcome == "raised RuntimeError"
    assert attempts["001-a1"].spans[0].outcome == attempts["000-a1"].spans[0].outcome == "done"
    # The launcher ends rank 0 of the first attempt, wherever that is.
    assert [len(attempts[each].steps) for each in ("000-a1", "001-a0", "001-a1")] == [1, 1, 1]
