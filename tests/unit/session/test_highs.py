"""Highs are kept for any number of openings at the price of one."""

from __future__ import annotations

import math
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.session.highs import MOST_ROWS, NOTHING, Highs

VALUES = st.one_of(st.just(math.nan), st.floats(0, 1e12))
ACTIONS = st.lists(st.sampled_from(["note", "open", "close", "ask"]), max_size=60)


def highest(rows: list[tuple[float, ...]]) -> list[float]:
    """Return the highest of each column, the slow way."""
    width = max(len(row) for row in rows)
    columns = [[row[at] for row in rows if at < len(row)] for at in range(width)]
    return [
        max((one for one in column if not math.isnan(one)), default=NOTHING) for column in columns
    ]


@given(actions=ACTIONS, data=st.data())
def test_any_interleaving_keeps_every_high(actions: list[str], data: Any) -> None:
    """Nested or overlapping, asked or not, with columns added: each opening has the highest since it."""
    highs: Highs[int] = Highs()
    truth: dict[int, list[tuple[float, ...]]] = {}
    width = 1
    for number, action in enumerate(actions):
        width = min(3, width + data.draw(st.integers(0, 1)))
        row = tuple(data.draw(st.lists(VALUES, min_size=width, max_size=width)))
        if action == "open":
            highs.open(number, row)
            truth[number] = []
        if action in {"open", "note"}:
            if action == "note":
                highs.note(row)
            for rows in truth.values():
                rows.append(row)
        elif truth:
            key = data.draw(st.sampled_from(list(truth)))
            if action == "close":
                assert _padded(highs.close(key)) == _padded(highest(truth.pop(key)))
            else:
                assert _padded(highs.since(key)) == _padded(highest(truth[key]))
                told = {each: _padded(own) for each, own in highs.highs_by_key()}
                assert told == {each: _padded(highest(rows)) for each, rows in truth.items()}
    assert list(highs) == list(truth)


def _padded(values: list[float]) -> list[float]:
    # An opening hears of a new column with the rows that are noted for it, not of those before.
    return [*values, *[NOTHING] * (3 - len(values))]


def test_neighbours_without_end_do_not_pile_up_in_what_they_lie_in() -> None:
    """An outer opening that is never the newest keeps a bounded number of rows."""
    highs: Highs[int] = Highs()
    highs.open(-1, (0.0,))
    highs.open(0, (0.0,))
    for number in range(1, 10 * MOST_ROWS):
        highs.close(number - 1)
        highs.open(number, (float(number),))

    assert len(pickle.dumps(highs)) < 40 * MOST_ROWS
    assert highs.since(-1) == [10 * MOST_ROWS - 1.0]


def test_what_is_not_open_has_no_highs() -> None:
    """Asking after the end gives nothing."""
    highs: Highs[str] = Highs()
    highs.open("a", (1.0,))
    highs.close("a")
    highs.note((5.0,))

    assert highs.since("a") == []
    assert "a" not in highs
