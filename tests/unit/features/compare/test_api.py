"""`hfmem_widget.compare`: sessions side by side, from a script."""

from dataclasses import replace
from pathlib import Path

import pytest

import hfmem_widget
from hfmem_widget import compare
from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.history import History
from hfmem_widget.analysis.record import record_of, whole
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare import api
from hfmem_widget.features.compare.api import Subject
from hfmem_widget.session import Session
from tests.fakes.ranks import Script, SimulatedRun
from tests.scenes import scripted_run


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    """Return a history of two runs of one label, one of another, and a cell without any."""
    history = History()
    monkeypatch.setattr(api, "HISTORY", history)
    for number, label in enumerate(["base", "base", "lora", "cell [4]"], 1):
        session = scripted_run("steps")
        span = replace(whole(session), kind="cell", label=label, start=float(number))
        history.add(record_of(session, span, cell=Cell(number, "", "trainer.train()")))
    return history


def test_sessions_are_compared_under_their_labels() -> None:
    """Each session is a row, the first is the baseline."""
    comparison = compare(scripted_run("steps"), scripted_run("training"))

    assert isinstance(comparison, hfmem_widget.Comparison)
    assert [cell.name for cell in comparison.cells] == ["fine-tune", "fine-tune (2)"]
    assert comparison.baseline == 0
    assert comparison.by == "step"


def test_several_sessions_are_runs_of_one() -> None:
    """A sequence of sessions is one row with a spread."""
    runs = [scripted_run("steps"), scripted_run("steps")]
    comparison = compare(runs, scripted_run("cpu"), baseline="tiny-bert")

    assert [(cell.name, cell.runs) for cell in comparison.cells] == [
        ("fine-tune", 2),
        ("tiny-bert", 1),
    ]
    assert comparison.baseline == 1


@pytest.mark.parametrize(
    ("subjects", "message"),
    [
        ((), "at least one cell"),
        (([],), "with at least one in it"),
        (([1],), "a sequence of sessions"),
        ((Session("now"),), "'now' is still running"),
        (("nothing",), "No watched cell"),
        ((True,), "not bool"),
        ((object(),), "not object"),
    ],
)
def test_an_incomparable_subject_is_an_error(subjects: tuple[Subject, ...], message: str) -> None:
    """The error names what `compare` accepts, and what to do."""
    with pytest.raises(OptionError, match=message):
        compare(*subjects)


def test_a_label_has_all_its_runs_and_a_number_one(history: History) -> None:
    """A cell that is named twice is one row; a single run has its number behind its name."""
    comparison = compare("base", "lora", "2", "4", "lora")
    assert compare("lora", "ba", baseline="ba").baseline == 1

    assert [(cell.name, cell.runs) for cell in comparison.cells] == [
        ("base", 2),
        ("lora", 1),
        ("base [2]", 1),
        ("trainer.train() [4]", 1),
    ]


def test_labels_of_a_script_are_compared_without_the_extension() -> None:
    """Each block that was watched has its label in the history of the process."""
    for label in ("one block", "another block"):
        with hfmem_widget.watch(label, quiet=True):
            pass

    comparison = compare("one block", "another block")

    assert [cell.name for cell in comparison.cells] == ["one block", "another block"]


def test_a_comparison_prints_as_text_and_has_a_short_name() -> None:
    """`print` shows the table; a log has one line."""
    comparison = compare(scripted_run("steps"))
    assert repr(comparison) == "<Comparison of 'fine-tune' on cuda:0>"
    assert str(comparison).startswith("memcompare \u00b7 cuda:0 NVIDIA H200")


def test_cells_that_started_ranks_are_compared_by_their_ranks(tmp_path: Path) -> None:
    """A row has the worst, the median and the lowest rank, and each phase; a line names the ranks."""
    sessions = []
    for name, heavier in (("base", 1.0), ("sharded", 0.8)):
        script = Script(world=4, activations=20e9 * heavier, heavier={2: 1.3}, interval=0.5)
        SimulatedRun(script).write(tmp_path / name, 12.0)
        session = scripted_run("cpu")
        session.label, session.run = name, hfmem_widget.open(tmp_path / name)
        sessions.append(session)

    comparison = compare(*sessions)
    table = comparison.to_pandas()

    assert comparison.device == "ranks"
    for session in sessions:
        ranks = session.run.overview.ranks
        row = table.loc[session.label]
        assert row["peak"] == session.run.ranks[2].peak
        assert (row["median"], row["lowest"]) == (ranks.median, ranks.lowest)
        assert row["backward"] == max(phase.high for phase in ranks.phases)
        assert row["forward"] < row["backward"]
    shown = str(comparison)
    assert "rank 2 of base" in shown
    assert shown.startswith("memcompare \u00b7 4 ranks \u00b7 compared with base")
    assert all(words in shown for words in ("median rank", "lowest rank", "backward"))


def test_ranks_are_not_compared_with_a_cell_that_has_none(tmp_path: Path) -> None:
    """A note names the cell that did not use the compared device."""
    SimulatedRun(Script(world=2, interval=0.5)).write(tmp_path / "run", 6.0)
    session = scripted_run("cpu")
    session.label, session.run = "ranks", hfmem_widget.open(tmp_path / "run")

    comparison = compare(session, scripted_run("training"))

    assert any("did not use" in note for note in comparison.notes)
