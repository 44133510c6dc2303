"""Lines through readings, and what tells growth from everything else that rises."""

from __future__ import annotations

import numpy as np
import pytest

from hfmem_widget.features.leaks.trends import Floats, goes_on, theil_sen, without_size


def x(count: int = 60) -> Floats:
    return np.arange(float(count))


def noise(count: int = 60, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(0, 1, count)


def test_a_line_is_found_to_the_last_digit() -> None:
    """Where readings lie on it, the bounds are the slope."""
    line = theil_sen(x(), 7.0 + 3.0 * x())

    assert (line.slope, line.low, line.high) == (3.0, 3.0, 3.0)
    assert (line.intercept, line.spread) == (7.0, 0.0)


def test_a_quarter_of_wild_readings_does_not_move_it() -> None:
    """The median of all slopes is robust, as a mean is not."""
    y = 3.0 * x()
    y[::5] += 1000.0

    assert theil_sen(x(), y).slope == pytest.approx(3.0, abs=0.2)
    assert abs(np.polyfit(x(), np.where(np.arange(60) > 50, y + 500, y), 1)[0] - 3.0) > 1.0


def test_the_bounds_hold_as_often_as_they_say() -> None:
    """Of many lines among noise, nineteen of twenty have the true slope between their bounds."""
    lines = [theil_sen(x(), 0.1 * x() + noise(seed=seed)) for seed in range(400)]
    held = sum(line.low <= 0.1 <= line.high for line in lines)

    assert 0.92 < held / 400 < 0.99


def test_correlated_readings_widen_the_bounds() -> None:
    """A reading that repeats the one before is not independent, and the bounds still hold."""
    held, widths = 0, []
    for seed in range(200):
        row = noise(seed=seed)
        for at in range(1, len(row)):
            row[at] += 0.7 * row[at - 1]
        line = theil_sen(x(), row)
        held += line.low <= 0.0 <= line.high
        widths.append(line.high - line.low)

    assert held / 200 > 0.75
    independent = theil_sen(x(), noise())
    assert np.median(widths) > 2 * (independent.high - independent.low)


GROWTH = {
    "even": x(),
    "every sixth": 6.0 * (x() // 6),
    "with noise": x() + 3 * noise(),
    "with a small dip": x() - 3.0 * (x() == 40),
}
NONE = {
    "noise": noise(),
    "one step": np.where(x() > 30, 80.0, 0.0),
    "three steps": 80.0 * (x() > 15) + 80.0 * (x() > 30) + 80.0 * (x() > 45),
    "a plateau": np.minimum(x(), 40),
    "ever slower": 1 - np.exp(-x() / 15),
    "teeth": x() % 13,
    "one long tooth": np.where(x() < 31, x(), x() - 31),
    "falling": -x(),
    "with a deep dip": x() - 30.0 * (x() == 40),
    "two loads and little besides": 0.4 * x() / 59 + 0.3 * (x() >= 20) + 0.3 * (x() >= 40),
}


@pytest.mark.parametrize("name", GROWTH)
def test_growth_goes_on(name: str) -> None:
    """Each quarter has its share of it, and no two rises make most of it."""
    assert goes_on(x(), GROWTH[name])


@pytest.mark.parametrize("name", NONE)
def test_other_rises_are_not_growth(name: str) -> None:
    """Steps, plateaus, sawtooths and noise have a slope, too."""
    assert not goes_on(x(), NONE[name])


SHARED = np.array([*range(12), 32, 33, 64, 65, 96, 97, 128, 129, 160, 161, 192, 193, 244.0])
"""The steps that have readings where most share one."""


def test_growth_goes_on_where_readings_are_far_apart() -> None:
    """Each step keeps as much, and after the first ones most share a reading."""
    assert goes_on(SHARED, 8.0 * SHARED)


@pytest.mark.parametrize(
    "levels",
    [np.where(SHARED > 120, 80.0, 0.0), 1 - np.exp(-SHARED / 40), np.minimum(SHARED, 100)],
    ids=["one step", "ever slower", "a plateau"],
)
def test_rises_between_distant_readings_are_not_growth(levels: Floats) -> None:
    """A change between two readings is one rise, however far apart they are."""
    assert not goes_on(SHARED, levels)


TOKENS = np.random.default_rng(2).integers(100, 1000, 60).astype(float)
BUCKETS = 100.0 * (1 + x() // 10)


@pytest.mark.parametrize("tokens", [TOKENS, np.sort(TOKENS), BUCKETS])
def test_memory_that_follows_the_batch_size_is_subtracted(tokens: Floats) -> None:
    """Whatever the order of the batches, with a leak or without."""
    for per_step in (0.0, 2.0):
        corrected = without_size(50 + 0.3 * tokens + per_step * x(), tokens)
        assert corrected is not None
        assert np.diff(corrected) == pytest.approx(np.full(59, per_step))


def test_a_batch_size_that_rises_like_time_cannot_be_separated_from_it() -> None:
    """Then there is no finding rather than a wrong one."""
    assert without_size(3.0 * x(), 100 + 8 * x()) is None


def test_readings_without_a_size_stay_as_they_are() -> None:
    """So do those of equal size, and a size that makes less of it is taken for chance."""
    y = x() + noise()

    assert without_size(y, np.full(60, np.nan)) is y
    assert without_size(y, np.full(60, 8.0)) is y
    assert without_size(-TOKENS, TOKENS).tolist() == (-TOKENS).tolist()  # type: ignore[union-attr]  # not None
