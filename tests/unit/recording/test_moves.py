"""What would have fit goes along with a recording, and is shown wherever that is opened."""

import copy
import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

import hfmem_widget
from hfmem_widget.features.report.page import page
from hfmem_widget.session import Change, Finding, Move, Session
from hfmem_widget.text import GIB
from hfmem_widget.view.card import card_bundle
from tests.scenes import scripted_run
from tests.unit.view.test_hostile_text import CORPUS, Strict

LESS = Move(
    "2 rows in a batch, 4 batches accumulated",
    (
        Change("arguments", "per_device_train_batch_size", "2"),
        Change("arguments", "gradient_accumulation_steps", "4"),
    ),
    batch=2,
    length=512,
    accumulation=4,
    cost="",
    peak=int(5 * GIB),
    low=4.9 * GIB,
    high=5.1 * GIB,
    room=6.0 * GIB,
    largest_batch=3,
    longest=700,
)
UNKNOWN = replace(
    LESS,
    name="rows of at most 256 tokens",
    changes=(Change("data", "max_length", "256"),),
    cost="longer rows lose their end",
    high=math.nan,
    room=math.nan,
    spare=GIB,
    largest_batch=None,
    longest=0,
)


def failed(*moves: Move) -> Session:
    """Return a run that ended for want of memory."""
    session = scripted_run("short")
    root = session.spans[0]
    session.findings.append(Finding("oom", "critical", "Out of memory.", {}, (), root.id))
    session.moves = list(moves)
    return session


def opened(session: Session, folder: Path) -> Session:
    restored: Session = hfmem_widget.open(session.save(folder / "run.hfmem.jsonl"))
    return restored


def test_they_come_back(tmp_path: Path) -> None:
    """Each figure of a change is read as it was, also where it is not available, and in a copy."""
    session = failed(LESS, UNKNOWN)
    restored = opened(session, tmp_path)

    assert restored.moves[0] == LESS
    assert [move.fits for move in restored.moves] == [True, None]
    assert (restored.moves[1].largest_batch, restored.moves[1].longest) == (None, 0)
    assert math.isnan(restored.moves[1].room)
    assert restored.moves[1].changes == UNKNOWN.changes
    assert pickle.loads(pickle.dumps(restored)) == copy.copy(restored) == restored
    assert copy.copy(session).moves == session.moves


def test_the_card_of_an_opened_run_lists_them(tmp_path: Path) -> None:
    """The card lists the changes without the line that writes a new cell below the cell."""
    session = failed(LESS)
    sessions = (session, opened(session, tmp_path))
    bundles = [card_bundle(each, each.spans[0], with_chart=False) for each in sessions]
    cards = [bundle["text/html"].replace("<wbr>", "") for bundle in bundles]
    assert all("gradient_accumulation_steps=4" in card for card in cards)
    assert ["--write" in card for card in cards] == [True, False]


def test_a_recording_of_before_says_nothing_of_the_largest(tmp_path: Path) -> None:
    """Changes of an older recording are read, and their table has no such column."""
    path = failed(LESS).save(tmp_path / "run.hfmem.jsonl")
    path.write_text(path.read_text().replace(',"largest_batch":3,"longest":700', ""))
    restored = hfmem_widget.open(path)
    card = card_bundle(restored, restored.spans[0], with_chart=False)["text/html"]

    assert restored.moves == [replace(LESS, largest_batch=None, longest=None)]
    assert "fits up to" not in card
    assert "3 rows or 700 tokens" not in card


@pytest.mark.parametrize("is_opened", [False, True])
def test_the_report_lists_them(tmp_path: Path, *, is_opened: bool) -> None:
    """The report lists the changes under a heading of their own, which it lacks where there are none."""
    html = page(opened(failed(LESS), tmp_path) if is_opened else failed(LESS), static=True)

    assert "What fits in 6.00 GiB" in html
    assert "per_device_train_batch_size=2" in html.replace("<wbr>", "")
    assert "3 rows or 700 tokens" in html
    assert "--write" not in html
    assert 'id="moves"' in html
    assert 'id="moves"' not in page(failed(), static=True)


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_text_from_outside_is_text(text: str, tmp_path: Path) -> None:
    """Hostile text in any field of a move is text on the card, with the usual limit of length."""
    hostile = Move(text, (Change("peft", text, text),), 1, 1, 1, text, 5, 4.0, 6.0, 7.0)
    restored = opened(failed(hostile), tmp_path)

    Strict(card_bundle(restored, restored.spans[0], with_chart=False)["text/html"])
    [move] = restored.moves
    assert max(map(len, (move.name, move.cost, move.changes[0].value))) <= 1024
    assert "\x1b" not in move.code + move.name


def test_a_list_that_got_shorter_ends_there(tmp_path: Path) -> None:
    """An unknown call costs its own line only."""
    text = failed(LESS, UNKNOWN).save(tmp_path / "run.hfmem.jsonl").read_text()
    head, end = text.rsplit("\n", 2)[:2]
    unknown = text.replace('"target":"data"', '"target":"os.system"')
    for name, changed in (("short", f'{head}\n{{"k":"move","i":1}}\n{end}\n'), ("odd", unknown)):
        other = tmp_path / f"{name}.hfmem.jsonl"
        other.write_text(changed)
        assert hfmem_widget.open(other).moves == [LESS]
