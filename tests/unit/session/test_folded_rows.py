"""Rows that are folded: how many steps or samples each stands for, and what a part of them has."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from hfmem_widget.session import Steps
from hfmem_widget.session.blocks import BLOCK
from hfmem_widget.session.timeline import GAPS_KEPT, Timeline
from tests.unit.session.test_steps import many


def numbers(steps: Steps) -> list[tuple[int, int]]:
    return [(one.first, one.last) for one in steps]


def test_steps_that_cannot_be_joined_go_from_the_oldest_on() -> None:
    """Where each has a parent of its own, half of them make room for the newer ones."""
    steps = many([1.0] * 9, most=8, parents=[*range(1, 10)])

    assert numbers(steps) == [(at, at) for at in range(5, 10)]
    assert steps.count == 9


def test_steps_that_cannot_be_joined_are_told_from_the_newest_on() -> None:
    """As many as were asked for."""
    steps = many([1.0] * 6, most=8, parents=[*range(1, 7)])

    assert steps.folded(3)[:, 1].tolist() == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("count", "rows"),
    [
        (8, [(at, at) for at in range(1, 9)]),
        (9, [(1, 2), (3, 4), (5, 6), (7, 8), (9, 9)]),
        (11, [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 11)]),
        (17, [(1, 4), (5, 8), (9, 12), (13, 16), (17, 17)]),
        (21, [(1, 4), (5, 8), (9, 12), (13, 16), (17, 20), (21, 21)]),
    ],
)
def test_steps_are_joined_by_twos_and_fours(count: int, rows: list[tuple[int, int]]) -> None:
    """Twice as many a row, each time that there is no room; the newest row fills up first."""
    assert numbers(many([1.0] * count, most=8)) == rows


def test_samples_wait_until_there_are_enough_for_a_row_of_work() -> None:
    """Nobody looks meanwhile; whoever looks has them all."""
    timeline = Timeline(1)
    waiting = []
    for at in range(2 * BLOCK):
        timeline.append(float(at), (1.0,))
        waiting.append(len(timeline._new))

    assert waiting == [*range(1, BLOCK), 0] * 2
    assert len(timeline) == 2 * BLOCK


def test_of_gaps_the_shortest_goes() -> None:
    """Once there are more than are kept; the first of equals."""
    timeline = Timeline(1)
    for at in range(GAPS_KEPT + 1):
        timeline.add_gap(10.0 * at, 10.0 * at + (0.5 if at in {3, 5} else 1.0))

    assert len(timeline.gaps) == GAPS_KEPT
    assert [start for start, _ in timeline.gaps if start < 70] == [0, 10, 20, 40, 50, 60]


@pytest.mark.parametrize(
    ("start", "stop", "kept"),
    [
        (0.0, 9.0, 2),
        (2.0, 3.0, 1),
        (3.0, 4.0, 1),
        (3.1, 4.9, 0),
        (5.0, 6.0, 1),
        (0.0, 1.9, 0),
        (0.0, 2.0, 1),
    ],
)
def test_a_part_has_the_gaps_that_touch_it(start: float, stop: float, kept: int) -> None:
    """At their ends too."""
    timeline = Timeline(1)
    for at in range(9):
        timeline.append(float(at), (1.0,))
    timeline.add_gap(2.0, 3.0)
    timeline.add_gap(5.0, 6.0)

    assert len(timeline.between(start, stop).gaps) == kept


@pytest.mark.parametrize("series", [1, 3])
def test_a_part_takes_the_series_that_it_was_asked_for(series: int) -> None:
    """In their order, and all without being asked."""
    timeline = Timeline(3)
    timeline.append(0.0, (1.0, 2.0, 3.0))
    columns = [2] if series == 1 else None
    part = timeline.between(0.0, 1.0, columns)

    assert part.width == series
    assert part.high.tolist() == part.low.tolist() == [[3.0] if columns else [1.0, 2.0, 3.0]]
    assert part.samples == 1


ROWS: list[tuple[Callable[[], Timeline], int]] = [
    (lambda: Timeline(1, 4096), 4096),
    (lambda: Timeline(200, 4096), 150_000 // 200 + 1),
]


@pytest.mark.parametrize(("make", "most"), ROWS)
def test_a_timeline_fills_before_it_folds(make: Callable[[], Timeline], most: int) -> None:
    """Every sample has a row of its own up to there; with one more, two share one."""
    timeline = make()
    values = tuple(np.zeros(timeline.width))
    for at in range(most):
        timeline.append(float(at), values)
    assert (len(timeline), timeline.bucket) == (most, 1)

    timeline.append(float(most), values)
    assert (len(timeline), timeline.bucket) == ((most + 1) // 2 + 1, 2)


def test_before_the_first_step_none_has_ended() -> None:
    """Whatever ends is later."""
    assert many([]).ended_at == -math.inf
    assert many([1.0, 1.0]).ended_at == 2.5


@pytest.mark.parametrize(("most", "rows"), [(8, 8), (7, 5), (5, 5), (4, 3), (3, 3), (2, 2)])
def test_steps_are_folded_no_further_than_they_must_be(most: int, rows: int) -> None:
    """As many as there may be stay as they are; the newest stays apart."""
    steps = many([1.0] * 8, most=8)
    folded = steps.folded(most)

    assert len(folded) == rows
    assert folded[-1, 1:3].tolist() == [8.0, 8.0]
