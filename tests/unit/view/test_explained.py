"""Where the memory of a run went, as text: for people, and for those who read with a program."""

from __future__ import annotations

import pytest

from hfmem_widget.session import Finding, Move, Session
from hfmem_widget.text import GIB
from hfmem_widget.view.card import MOST_TEXT, card_bundle
from hfmem_widget.view.explained import MOST_LINES
from tests.scenes import SCRIPTED_RUNS, scripted_run

LEFT = "%memholders --free errors frees what the error holds."


def failed(moves: int = 0) -> Session:
    """Return a training that ran out of memory; so many changes were tried."""
    session = scripted_run("failed")
    diagnosis = {"device": "cuda:0", "diagnosis": "Memory is full: the batch takes it."}
    title = "Out of memory on cuda:0: 2.00 GiB requested"
    session.findings.insert(0, Finding("oom", "critical", title, diagnosis, (LEFT,), 1))
    session.moves = [
        Move(f"change {at}", (), 1, 1, 1, "", int(GIB), 1.0, 2.0, 3.0) for at in range(moves)
    ]
    return session


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_an_explanation_is_short(name: str) -> None:
    """It begins with how the run ended and the sentence of its card, and has at most 40 lines."""
    session = scripted_run(name)
    explained = session.explain()
    lines = repr(explained).splitlines()
    assert lines[0].startswith(f"{session.spans[0].label}: {explained.outcome}")
    assert lines[1].startswith("Peak ")
    assert len(lines) <= MOST_LINES


def test_an_error_is_explained_by_its_cause() -> None:
    """With the first advice, as a call where there are no magics; of very much the end is left out."""
    session = failed(moves=3)
    session.findings += [Finding("x", "info", "word " * 50, {}, ("more " * 50,), 1)] * 30
    text = repr(session.explain())
    assert "critical: Out of memory on cuda:0" in text
    assert "  Memory is full: the batch takes it.\n  hfmem_widget.free('errors')" in text
    assert len(text.splitlines()) <= MOST_LINES


def test_without_a_span_there_is_nothing_to_explain() -> None:
    """That is said."""
    assert repr(Session("x").explain()) == "x: nothing was watched"


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_the_text_of_a_card_answers_by_itself(name: str) -> None:
    """The peak, its parts, the findings with their first advice; at most 1,500 characters."""
    session = scripted_run(name)
    text = card_bundle(session, session.spans[0], with_chart=True)["text/plain"]
    assert len(text) <= MOST_TEXT
    assert all(each.title.rstrip(".") in text for each in session.findings[:3])
    assert all(each.advice[0].rstrip(".") in text for each in session.findings[:3] if each.advice)
    assert "at the peak" in text or not session.anatomy("peak").bytes("weights") > 0


def test_a_long_text_keeps_its_end() -> None:
    """What to type next is the last line, however much is found."""
    session = failed(moves=40)
    text = card_bundle(session, session.spans[0], with_chart=True)["text/plain"]
    assert len(text) <= MOST_TEXT
    assert text.splitlines()[-1].startswith("  next: %memholders")


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("training", ["%memanatomy"]),
        ("leak", ["%memholders", "%memfit", "%memanatomy"]),
        ("short", []),
    ],
)
def test_the_next_command_is_one_that_makes_sense(name: str, commands: list[str]) -> None:
    """What would fit where batches are known, who holds memory after a leak, and else nothing."""
    assert [*scripted_run(name).explain().next] == commands
