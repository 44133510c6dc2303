"""A training that is recorded, and shown again by a process that has no part in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.session import Session
from tests.data import ROOT
from tests.trainer.tiny import make_trainer, of_kind

FACTS = """
import hfmem_widget

def facts(session, other):
    def text(shown):
        return shown._repr_mimebundle_()["text/plain"].splitlines()

    return {
        # Where the recording is, is not in the recording.
        "card": [line for line in text(session) if "The recording is in" not in line],
        "anatomy": text(session.anatomy()),
        "steps": session.steps.to_pandas().round(3).to_csv(),
        "findings": [finding.title for finding in session.findings],
        "compare": text(hfmem_widget.compare(session, other)),
        "figure": [trace.name for trace in session.figure().data],
    }
"""

ANOTHER_PROCESS = f"""{FACTS}
import json, sys
sessions = [hfmem_widget.open(path) for path in sys.argv[1:]]
known = facts(*sessions)
known["torch"] = "torch" in sys.modules
print(json.dumps(known))
"""


def test_another_process_shows_what_this_one_did(tmp_path: Path) -> None:
    """Card, anatomy, steps, findings, comparison and chart are those of the live session, without torch."""
    paths = [tmp_path / f"run-{size}.hfmem.jsonl" for size in (2, 4)]
    live = []
    for path, size in zip(paths, (2, 4), strict=True):
        trainer = make_trainer(tmp_path, per_device_train_batch_size=size, eval_strategy="epoch")
        with hfmem_widget.watch(f"batch {size}", quiet=True, record=path) as session:
            trainer.train()
        live.append(session)
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known: dict[str, Any] = {}
    exec(FACTS, known)

    opened = json.loads(done.stdout)

    assert not opened.pop("torch")
    assert opened == json.loads(json.dumps(known["facts"](*live)))


@pytest.fixture(scope="module")
def folder_of_two_trainings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where one callback has recorded two trainings, to one name."""
    folder = tmp_path_factory.mktemp("twice")
    callback = hfmem_widget.MemoryCallback(quiet=True, record=folder / "run.hfmem.jsonl")
    trainer = make_trainer(folder / "out", callbacks=[callback])
    for _ in range(2):
        trainer.train()
    return folder


def test_a_second_training_is_recorded_under_a_name_with_a_number(
    folder_of_two_trainings: Path,
) -> None:
    """A callback may train twice: each training has a recording of its own."""
    names = ("run.hfmem.jsonl", "run-2.hfmem.jsonl")
    sessions = [hfmem_widget.open(folder_of_two_trainings / name) for name in names]

    assert [len(of_kind(session, "train")) for session in sessions] == [1, 1]
    assert [session.steps.count for session in sessions] == [2, 2]


def test_a_name_that_is_taken_is_refused_when_the_callback_is_made(tmp_path: Path) -> None:
    """Long before the training begins, which would go on without us."""
    path = tmp_path / "run.hfmem.jsonl"
    path.write_text("mine", encoding="utf-8")

    with pytest.raises(OptionError, match="already exists"):
        hfmem_widget.MemoryCallback(record=path)


def test_where_a_recording_cannot_begin_the_training_is_watched_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name was taken meanwhile: one line on stderr says so at once, and a note on the card."""
    begun: list[Session] = []

    class Run(TrainingRun):
        def __init__(self, monitor: Monitor, session: Session, **given: Any) -> None:
            begun.append(session)
            super().__init__(monitor, session, **given)

    monkeypatch.setattr("hfmem_widget.drivers.trainer.TrainingRun", Run)
    path = tmp_path / "run.hfmem.jsonl"
    callback = hfmem_widget.MemoryCallback(quiet=True, record=path)
    path.write_text("mine", encoding="utf-8")

    make_trainer(tmp_path / "out", callbacks=[callback]).train()

    (session,) = begun
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "memwatch" in line]
    assert "There is no recording: " in line
    assert session.notes[0] in line
    assert session.steps.count == 2
    assert path.read_text(encoding="utf-8") == "mine"


def test_what_cannot_be_followed_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that is not there: the training goes on unwatched, after one line on stderr."""
    callback = hfmem_widget.MemoryCallback(quiet=True, devices=["cuda:7"])

    make_trainer(tmp_path, callbacks=[callback]).train()

    lines = [line for line in capsys.readouterr().err.splitlines() if "memwatch" in line]
    assert len(lines) == 1
    assert "cuda:7" in lines[0]
