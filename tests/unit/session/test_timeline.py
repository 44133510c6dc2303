"""The timeline keeps the shape of a run of any length, and the highs of open spans, in bounded memory."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.session import Timeline
from hfmem_widget.session.spans import MOST_ROWS, NOTHING, Highs
from hfmem_widget.session.timeline import CELLS, GAPS_KEPT
from tests.data.threads import on_threads


@given(
    st.lists(st.tuples(st.floats(0, 1e12), st.just(math.nan) | st.floats(0, 9)), max_size=600),
    st.sampled_from([2, 8, 64, 128]),
)
def test_reading_changes_nothing(samples: list[tuple[float, float]], capacity: int) -> None:
    """A timeline has the same rows, read after each sample or at the end, or filled at once."""
    patient, watched, at_once = (Timeline(2, capacity) for _ in range(3))
    for second, values in enumerate(samples):
        patient.append(float(second), values)
        watched.append(float(second), values)
        assert len(watched) > 0

    at_once.extend(np.arange(len(samples), dtype=float), np.array(samples).reshape(-1, 2))

    assert watched == patient
    assert at_once == patient


def test_one_thread_may_append_while_another_reads() -> None:
    """No sample is lost or entered twice."""
    timeline = Timeline(1, capacity=1 << 16)

    def append() -> None:
        for second in range(20_000):
            timeline.append(float(second), (float(second),))

    def look() -> None:
        for _ in range(5_000):
            len(timeline)

    on_threads(append, look)

    np.testing.assert_array_equal(timeline.time, np.arange(20_000.0))


def test_the_longest_gaps_are_kept() -> None:
    """If there are too many gaps, the shortest is dropped first."""
    timeline = Timeline(1)
    for second in range(GAPS_KEPT + 1):
        timeline.add_gap(float(second), second + (0.1 if second == 7 else 0.5))

    assert len(timeline.gaps) == GAPS_KEPT
    assert (7.0, 7.1) not in timeline.gaps


@pytest.mark.parametrize("capacity", [0, 1, 7, -2])
def test_capacity_is_even_and_positive(capacity: int) -> None:
    """A capacity that cannot be halved is refused."""
    with pytest.raises(ValueError, match="even number"):
        Timeline(1, capacity=capacity)


@pytest.mark.parametrize(
    ("start", "stop", "times", "gaps"),
    [
        (0, 9, [*range(10)], 2),
        (4, 6.5, [4, 5, 6], 1),
        (9, 99, [9], 0),
        (6, 6, [6], 1),
        (3.5, 6, [3, 4, 5, 6], 1),
        (2, 3, [2, 3], 1),
        (3, 4, [3, 4], 1),
        (3.1, 4.9, [3, 4], 0),
        (0, 1.9, [0, 1], 0),
        (0, 2, [0, 1, 2], 1),
    ],
)
def test_a_part_has_rows_and_gaps(start: float, stop: float, times: list[int], gaps: int) -> None:
    """A part has the rows of its time and the gaps that touch it, and leaves the whole as it was."""
    timeline = Timeline(2, capacity=64)
    for at in range(10):
        timeline.append(float(at), (float(at), 2.0 * at))
    timeline.add_gap(2.0, 3.0)
    timeline.add_gap(5.0, 6.0)
    part = timeline.between(start, stop, [1])

    assert (len(part), part.samples, part.width) == (len(times), len(times), 1)
    assert part.time.tolist() == times
    assert part.low[:, 0].tolist() == part.high[:, 0].tolist() == [2 * at for at in times]
    assert len(part.gaps) == gaps
    assert len(timeline) == 10


@pytest.mark.parametrize("look_every", [1, 7, 1000])
@pytest.mark.parametrize("samples", [1, 8, 9, 17, 100, 500])
def test_each_row_stands_for_the_same_number_of_samples(samples: int, look_every: int) -> None:
    """Each row but the last stands for as many samples, however often a timeline was read meanwhile."""
    timeline = Timeline(1, capacity=8)
    heights = [float(at * 37 % 101) for at in range(samples)]
    for at, height in enumerate(heights):
        timeline.append(float(at), (height,))
        if at % look_every == 0:
            len(timeline)
    rows = len(timeline)
    starts = range(0, samples, timeline.bucket)
    groups = [heights[at : at + timeline.bucket] for at in starts]

    assert timeline.time.tolist() == [float(at) for at in starts]
    assert timeline.low[:, 0].tolist() == [min(one) for one in groups]
    assert timeline.high[:, 0].tolist() == [max(one) for one in groups]
    assert rows == len(starts) <= 8


@pytest.mark.parametrize("rows", [3, 4, 5])
def test_very_many_series_have_few_rows(rows: int) -> None:
    """If their number is odd, the last row stays as it is."""
    width = CELLS // (rows - 1)
    timeline = Timeline(width, capacity=4096)
    counts, times = [], []
    for at in range(rows + 2):
        timeline.append(float(at), [float(at)] * width)
        counts.append(len(timeline))
        times.append(timeline.time.tolist())

    assert counts[:rows] == list(range(1, rows + 1))
    assert times[rows] == [float(at) for at in (*range(0, rows, 2), rows)]
    assert timeline.high[:, 0].tolist()[:1] == [1.0]


VALUES = st.one_of(st.just(math.nan), st.floats(0, 1e12))
ACTIONS = st.lists(st.sampled_from(["note", "open", "close", "ask"]), max_size=60)


def highest(rows: list[tuple[float, ...]]) -> list[float]:
    """Return the highest value of each column, computed the slow way."""
    width = max(len(row) for row in rows)
    columns = [[row[at] for row in rows if at < len(row)] for at in range(width)]
    return [
        max((one for one in column if not math.isnan(one)), default=NOTHING) for column in columns
    ]


@given(actions=ACTIONS, data=st.data())
def test_any_interleaving_keeps_every_high(actions: list[str], data: Any) -> None:
    """Each opening has the highest value since, however openings and readings interleave."""
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
                known = {each: _padded(own) for each, own in highs.highs_by_key()}
                assert known == {each: _padded(highest(rows)) for each, rows in truth.items()}
    assert list(highs) == list(truth)


def _padded(values: list[float]) -> list[float]:
    # An opening hears of a new column with the rows that are noted for it, not of those before.
    return [*values, *[NOTHING] * (3 - len(values))]


def test_many_inner_openings_do_not_pile_up_in_the_outer_one() -> None:
    """An outer opening that is never the newest keeps a bounded number of rows."""
    highs: Highs[int] = Highs()
    highs.open(-1, (0.0,))
    highs.open(0, (0.0,))
    for number in range(1, 10 * MOST_ROWS):
        highs.close(number - 1)
        highs.open(number, (float(number),))

    assert len(pickle.dumps(highs)) < 40 * MOST_ROWS
    assert highs.since(-1) == [10 * MOST_ROWS - 1.0]


def test_a_closed_key_has_no_highs() -> None:
    """Reading it after the end returns nothing."""
    highs: Highs[str] = Highs()
    highs.open("a", (1.0,))
    highs.close("a")
    highs.note((5.0,))

    assert highs.since("a") == []
    assert "a" not in highs
