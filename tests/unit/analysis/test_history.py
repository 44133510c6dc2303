"""What was watched is kept, within bounds, and found again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hfmem_widget.analysis import history as module
from hfmem_widget.analysis.history import History
from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.errors import OptionError


def remember(history: History, label: str = "", number: int = 1) -> Record:
    """Let a watched cell end."""
    fields: dict[str, Any] = {"number": number, "started_at": float(number), "duration": 1.0}
    identity = f"label {label}" if label else f"cell {number}"
    record = Record(label=label, title=f"cell [{number}]", identity=identity, **fields)
    history.add(record)
    return record


def numbers(records: tuple[Record, ...] | list[Record]) -> list[int | None]:
    return [record.number for record in records]


@pytest.fixture
def history() -> History:
    return History()


def test_runs_are_found_by_identity_and_by_label(history: History) -> None:
    """All runs are found, oldest first; a label also by its beginning where no other begins so."""
    for number, label in enumerate(["base", "lora", "base"], 1):
        remember(history, label, number)

    for records in (history.runs_of("label base"), history.find("base"), history.find("ba")):
        assert numbers(records) == [1, 3]


def test_the_oldest_curves_are_dropped(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest records lose their curves where these take too much, and keep their figures."""
    curve = np.zeros((2, 100), dtype=np.float32)
    monkeypatch.setattr(module, "MOST_BYTES", 2 * curve.nbytes)
    for number in range(4):
        record = remember(History(), number=number)
        history.add(replace(record, devices=(DeviceRecord(key="cuda:0", after=5.0, curve=curve),)))

    assert [record.size > 0 for record in history.records] == [False, False, True, True]
    assert [record.devices[0].after for record in history.records] == [5.0] * 4


def test_a_cleared_history_has_nothing(history: History) -> None:
    """The count of forgotten records is reset, too."""
    remember(history)
    history.clear()

    assert (history.records, history.forgotten) == ([], 0)


def test_a_number_finds_one_run(history: History) -> None:
    """A run is found by its number with or without brackets; a label that is a number goes first."""
    for number in (16, 17):
        remember(history, "base", number)
    assert numbers(history.find("16")) == numbers(history.find("[16]")) == [16]

    remember(history, "16", 18)
    assert numbers(history.find("16")) == [18]
    assert numbers(history.find("[16]")) == [16]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qlora", "No watched cell 'qlora'. Available: 4, 'lora', 'load', 'base'."),
        ("lo", "'lo' may be 'load', 'lora'; write more of it"),
        ("9", "No watched cell '9'. Available: "),
        ("", "No watched cell ''. Available: "),
    ],
)
def test_an_unknown_name_says_what_there_is(history: History, name: str, expected: str) -> None:
    """The message lists the labels, and the numbers of cells that have none."""
    for number, label in enumerate(["base", "load", "lora", ""], 1):
        remember(history, label, number)

    with pytest.raises(OptionError) as error:
        history.find(name)
    assert str(error.value).startswith(expected)


def test_without_any_watched_cell_it_says_how_to_watch(history: History) -> None:
    """Without a watched cell the error says how to watch one."""
    with pytest.raises(OptionError, match="%%memwatch --label"):
        history.find("base")


def test_a_list_of_many_names_is_cut(history: History) -> None:
    """A message stays readable however many cells there are."""
    for number in range(50):
        remember(history, f"{number} {'x' * 150}", number)

    with pytest.raises(OptionError, match="and 30 more") as error:
        history.find("nothing")
    assert len(str(error.value)) < 4_000
