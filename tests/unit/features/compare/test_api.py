"""`hfmem_widget.compare`: sessions side by side, from a script."""

from __future__ import annotations

import pytest

import hfmem_widget
from hfmem_widget import compare
from hfmem_widget.analysis.history import History
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.api import Subject, compare_named
from hfmem_widget.session import Session
from hfmem_widget.testing import scripted_run


@pytest.fixture
def history() -> History:
    """Return a history of two runs of one label, one of another, and a cell without any."""
    history = History()
    for number, label in enumerate(["base", "base", "lora", ""], 1):
        history.begins(scripted_run("steps"), label)
        history.cell_ended(number)
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
    ("subjects", "said"),
    [
        ((), "at least one cell"),
        (([],), "with at least one in it"),
        (([1],), "a sequence of sessions"),
        ((Session("now"),), "'now' is still running"),
        (("base",), "load the extension"),
        ((True,), "not bool"),
        ((object(),), "not object"),
    ],
)
def test_what_cannot_be_compared_is_said(subjects: tuple[Subject, ...], said: str) -> None:
    """An error says what is taken, and what to do."""
    with pytest.raises(OptionError, match=said):
        compare(*subjects)


def test_a_label_has_all_its_runs_and_a_number_one(history: History) -> None:
    """What is named twice stands there once, and a run of a label says which it is."""
    comparison = compare_named(history, ["base", "lora", "2", "4", "lora"])

    assert [(cell.name, cell.runs) for cell in comparison.cells] == [
        ("base", 2),
        ("lora", 1),
        ("base [2]", 1),
        ("fine-tune", 1),
    ]


def test_a_baseline_need_not_be_named_twice(history: History) -> None:
    """One that is not among the names joins them."""
    comparison = compare_named(history, ["lora"], baseline="ba")
    assert [cell.name for cell in comparison.cells] == ["lora", "base"]
    assert comparison.baseline == 1


def test_a_comparison_prints_as_text_and_has_a_short_name() -> None:
    """`print` shows the table; a log has one line."""
    comparison = compare(scripted_run("steps"))
    assert repr(comparison) == "<Comparison of 'fine-tune' on cuda:0>"
    assert str(comparison).startswith("memcompare \u00b7 cuda:0 NVIDIA H200")
