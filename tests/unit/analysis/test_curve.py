"""A line in few points: extremes stay, gaps break it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.analysis.curve import curve, visible_gaps
from hfmem_widget.session import Timeline

NAN = math.nan
READINGS = st.lists(st.floats(0, 1e12), min_size=1, max_size=300)


def timeline(values: list[float], capacity: int = 4096) -> Timeline:
    line = Timeline(1, capacity)
    for at, value in enumerate(values):
        line.append(at * 0.1, (value,))
    return line


@given(READINGS, st.integers(1, 40), st.sampled_from([16, 4096]))
def test_extreme_readings_are_drawn(values: list[float], columns: int, capacity: int) -> None:
    """The lowest and the highest reading are drawn, whether or not the timeline has folded."""
    drawn = [value for _, value in curve(timeline(values, capacity), 0, 0.0, 30.0, columns=columns)]
    assert (min(drawn), max(drawn)) == (min(values), max(values))


@given(READINGS, st.integers(1, 40))
def test_points_are_few_and_in_order_of_time(values: list[float], columns: int) -> None:
    """A line has at most two points a column and its two ends, in order of time."""
    points = curve(timeline(values), 0, 0.0, 30.0, columns=columns)
    assert len(points) <= 2 * columns + 2
    assert [time for time, _ in points] == sorted(time for time, _ in points)


def test_a_line_reaches_from_its_first_reading_to_its_last() -> None:
    """However few columns there are, both ends of the line are in it."""
    points = curve(timeline([5.0, 1.0, 9.0, 5.0]), 0, 0.0, 1.0, columns=1)
    assert (points[0], points[-1]) == ((0.0, 5.0), (0.1 * 3, 5.0))


@pytest.mark.parametrize(
    ("readings", "times"),
    [
        ([1.0, NAN, 3.0], [0.0, 0.1, 0.2]),
        ([1.0, NAN, NAN, NAN, 3.0], [0.0, 0.2, 0.4]),
        ([NAN, NAN], []),
    ],
)
def test_missing_readings_break_the_line(readings: list[float], times: list[float]) -> None:
    """The line ends and begins where it was read; a series without any value has no line."""
    points = curve(timeline(readings), 0, 0.0, 0.4, columns=100)

    assert [time for time, _ in points] == pytest.approx(times)
    assert [math.isnan(value) for _, value in points] == [False, True, False][: len(times)]


@pytest.mark.parametrize(("columns", "broken"), [(100, True), (20, False)])
def test_a_gap_narrower_than_a_column_is_no_break(columns: int, *, broken: bool) -> None:
    """A narrow gap could not be seen; a wider one is shown, cut to the visible time."""
    line = timeline([1.0, 2.0])
    line.add_gap(0.1, 0.4)
    for at in range(4, 100):
        line.append(at * 0.1, (3.0,))
    points = curve(line, 0, 0.0, 10.0, columns=columns)

    assert any(math.isnan(value) for _, value in points) is broken
    assert visible_gaps(line, 0.2, 10.2, columns) == ([(0.2, 0.4)] if broken else [])
