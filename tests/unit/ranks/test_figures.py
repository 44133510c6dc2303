"""Figures over ranks: how they spread, who are peers, who stands out, whose clock is off."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.ranks.aggregate import COMMON_STEPS, offsets, outliers, peers
from hfmem_widget.ranks.overview import MOST_OPEN, Strip, WaitingBuckets
from hfmem_widget.ranks.roster import KEPT, RecentSteps
from hfmem_widget.ranks.stream import Finished
from hfmem_widget.session.rank_records import SILENT_CELL, STRIP_COLUMNS, STRIP_ROWS
from hfmem_widget.text import GIB
from tests.unit.ranks.played import cells_of

NAN = math.nan


def test_a_rank_among_thousand_is_found_and_no_other() -> None:
    """In eight stages of a pipeline, one rank that keeps 5 % more at every step stands out alone."""
    rng = np.random.default_rng(0)
    stage = np.arange(1024) // 128
    weights = np.array((10 + 0.9 * stage) * GIB, dtype=np.float64)
    kept = (34 - 3.2 * stage) * GIB
    peaks = (4 * weights + kept)[:, None] * (1 + rng.normal(0, 0.004, (1024, 20)))
    peaks[417] *= 1.05

    assert [one.place for one in outliers(peaks, peers(weights))] == [417]


@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=7),
    st.integers(COMMON_STEPS, 40),
    st.integers(0, 1000),
)
def test_clocks_are_known_to_a_tenth_of_a_second(ahead: list[float], steps: int, seed: int) -> None:
    """The differences between the clocks of hosts are found, whatever they are."""
    rng = np.random.default_rng(seed)
    hosts = [f"n{at}" for at in range(len(ahead)) for _ in range(4)]
    ends = 1e9 + 0.5 * np.arange(steps) + np.repeat(ahead, 4)[:, None]
    ends = ends + rng.normal(0, 0.01, ends.shape)

    ahead_by_host = offsets(ends, hosts)

    differences = [ahead_by_host[f"n{at}"] - ahead_by_host["n0"] for at in range(len(ahead))]
    assert differences == pytest.approx([one - ahead[0] for one in ahead], abs=0.1)


def test_clocks_are_compared_by_enough_common_steps() -> None:
    """Too few steps in common, or a host without any, give no offset."""
    ends = np.full((4, 12), NAN)
    ends[:, : COMMON_STEPS - 1] = 1.0
    assert offsets(ends, ["a", "a", "b", "b"]) == {}

    ends[:3] = 1.0
    assert set(offsets(ends, ["a", "a", "b", "c"])) == {"a", "b"}


def finished(first: int, count: int, peak: float, start: float = 0.0) -> Finished:
    """Return steps that end a second apart."""
    numbers = list(range(first, first + count))
    figures = [[start + number, peak, 0.0, peak, peak, peak] for number in numbers]
    return Finished(numbers, numbers, [start + number - 1 for number in numbers], figures)


def test_the_newest_steps_are_kept() -> None:
    """The newest steps count, and ranks that lag have those in common."""
    steps = RecentSteps()
    steps.widen(3)
    both = np.array([0, 1])
    steps.add(0, finished(1, KEPT + 40, 5.0))
    steps.add(1, finished(1, KEPT + 30, 7.0))

    assert np.isnan(steps.peaks(np.array([2])).newest).all()
    assert (steps.peaks(both).newest == [[5.0], [7.0]]).all()
    assert steps.highest(KEPT + 30, KEPT + 30, both)[0] == 7.0
    assert steps.highest(KEPT + 31, KEPT + 35, both)[0] == 5.0
    assert (~np.isnan(steps.ends(both)).any(axis=0)).sum() >= KEPT - 10


def test_a_second_training_begins_anew() -> None:
    """Steps of the first training are forgotten where numbers begin again."""
    steps = RecentSteps()
    steps.widen(1)
    steps.add(0, finished(1, 30, 9.0))
    steps.add(0, finished(1, 6, 2.0, start=100.0))

    peaks = steps.peaks(np.array([0])).newest
    assert np.nanmax(peaks) == 2.0
    assert (~np.isnan(peaks)).sum() == 6


def test_buckets_do_not_grow_without_bound() -> None:
    """Beyond a number of buckets the oldest are passed on."""
    buckets = WaitingBuckets(1.0)
    time = np.arange(MOST_OPEN + 100.0)
    buckets.add(0, time, time, None)

    assert len(list(buckets.passed_on(-math.inf))) == 100
    assert len(buckets) == MOST_OPEN


@given(st.integers(1, 2000), st.integers(1, 2 * STRIP_COLUMNS), st.sampled_from([1, 4, 8]))
def test_a_strip_is_of_bounded_size(world: int, columns: int, per_node: int) -> None:
    """Every rank has its row, and the highest is never lost, whatever the world and the length."""
    strip = Strip(world, per_node)
    shares = np.full(world, 0.5)
    shares[world // 2] = 0.9
    for second in range(columns):
        strip.add(float(second), np.arange(world), shares)

    rows = strip.shown()

    assert len(rows.first) <= STRIP_ROWS
    assert len(rows.at) <= STRIP_COLUMNS
    row = int(np.searchsorted(rows.first, world // 2, side="right")) - 1
    assert (cells_of(rows)[:, row] == 180).all()


def test_a_strip_has_whole_nodes_in_a_row() -> None:
    """A row has two nodes of eight among 1,024 ranks; a silent cell differs from an empty one."""
    strip = Strip(1024, 8)
    shares = np.full(1024, NAN)
    shares[:16] = 0.0
    strip.add(0.0, np.arange(1024), shares)

    rows = strip.shown()

    assert rows.first[:3] == (0, 16, 32)
    assert (rows.cells[0], rows.cells[1]) == (0, SILENT_CELL)
