"""Lines through readings, and what tells growth from everything else that rises."""

from __future__ import annotations

import numpy as np
import pytest

from hfmem_widget.features.leaks.slope import (
    Z_95,
    Floats,
    _for_autocorrelation,
    goes_on,
    theil_sen,
    thinned,
    without_size,
)


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


def test_readings_that_remember_widen_the_bounds() -> None:
    """What repeats the reading before is no independent witness: the bounds still hold."""
    held, widths = 0, []
    for seed in range(200):
        row = noise(seed=seed)
        for at in range(1, len(row)):
            row[at] += 0.7 * row[at - 1]
        line = theil_sen(x(), row)
        held += line.low <= 0.0 <= line.high
        widths.append(line.high - line.low)

    assert held / 200 > 0.75
    assert np.median(widths) > 2 * (theil_sen(x(), noise()).high - theil_sen(x(), noise()).low)


GROWTH = {
    "even": x(),
    "every sixth": 6.0 * (x() // 6),
    "with noise": x() + 3 * noise(),
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
}


@pytest.mark.parametrize("name", GROWTH)
def test_growth_goes_on(name: str) -> None:
    """Each quarter has its share of it, and no two rises make most of it."""
    assert goes_on(GROWTH[name])


@pytest.mark.parametrize("name", NONE)
def test_what_else_rises_is_no_growth(name: str) -> None:
    """Steps, plateaus, teeth and noise have a slope too."""
    assert not goes_on(NONE[name])


def test_thinning_takes_medians_and_keeps_the_newest() -> None:
    """What is left over at the beginning goes."""
    thin_x, thin_y = thinned(x(10), x(10) ** 2, most=3)

    assert thin_x.tolist() == [3.5, 7.5]
    assert thin_y.tolist() == [12.5, 56.5]
    assert thinned(x(3), x(3), most=3)[0].tolist() == [0.0, 1.0, 2.0]


TOKENS = np.random.default_rng(2).integers(100, 1000, 60).astype(float)
BUCKETS = 100.0 * (1 + x() // 10)


@pytest.mark.parametrize("tokens", [TOKENS, np.sort(TOKENS), BUCKETS])
def test_what_goes_with_the_size_is_taken_off(tokens: Floats) -> None:
    """Whatever the order of the batches, and whether it leaks beside or not."""
    for per_step in (0.0, 2.0):
        corrected = without_size(50 + 0.3 * tokens + per_step * x(), tokens)
        assert corrected is not None
        assert np.diff(corrected) == pytest.approx(np.full(59, per_step))


def test_a_size_that_rises_like_time_cannot_be_told_from_it() -> None:
    """Then nothing is said, rather than something wrong."""
    assert without_size(3.0 * x(), 100 + 8 * x()) is None


def test_readings_without_a_size_stay_as_they_are() -> None:
    """So do those of equal size, and a size that makes less of it is taken for chance."""
    y = x() + noise()

    assert without_size(y, np.full(60, np.nan)) is y
    assert without_size(y, np.full(60, 8.0)) is y
    assert without_size(-TOKENS, TOKENS).tolist() == (-TOKENS).tolist()  # type: ignore[union-attr]  # not None


def kendall(n: int) -> float:
    """Return the variance of Kendall's S among n independent readings."""
    return n * (n - 1) * (2 * n + 5) / 18


@pytest.mark.parametrize("count", [3, 5, 12, 61])
def test_a_line_is_the_median_of_all_pairs_with_sens_bounds(count: int) -> None:
    """By counting: slopes of all pairs in order, and how far from the middle Kendall's variance reaches."""
    # No reading remembers the one before: the bounds are those of independent ones.
    y = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 0.0, 7.0, 8.0, 6.0, 11.0, 10.0] * 6)[:count]
    if count > 12:
        y = noise(count, seed=3)
    slopes = sorted((y[j] - y[i]) / (j - i) for i in range(count) for j in range(i + 1, count))
    reach = Z_95 * np.sqrt(kendall(count) * _for_autocorrelation(y - np.median(y)))
    low, high = int(max(0, (len(slopes) - reach) / 2)), int(np.ceil((len(slopes) + reach) / 2))
    line = theil_sen(x(count), y)
    left = y - line.slope * x(count) - line.intercept

    assert line.slope == pytest.approx(np.median(slopes))
    assert np.median(left) == pytest.approx(0.0, abs=1e-12)
    assert line.spread == pytest.approx(np.median(np.abs(left)) / 0.6745, rel=1e-4)
    assert slopes[max(low - 2, 0)] <= line.low <= slopes[min(low + 2, len(slopes) - 1)]
    assert (
        slopes[max(high - 2, 0) if high < len(slopes) else -3]
        <= line.high
        <= slopes[min(high + 2, len(slopes) - 1)]
    )


def test_the_spread_of_normal_noise_is_its_standard_deviation() -> None:
    """However robustly it is told."""
    spreads = [theil_sen(x(120), 4.0 * noise(120, seed=seed)).spread for seed in range(100)]

    assert np.mean(spreads) == pytest.approx(4.0, rel=0.05)


def alike(left: Floats) -> float:
    """Return what Hamed and Rao's formula says, term by term."""
    n = len(left)
    ranks = np.array([float((left < one).sum()) for one in left]) - (n - 1) / 2
    total = 0.0
    for lag in range(1, max(1, n // 4) + 1):
        share = sum(ranks[at] * ranks[at + lag] for at in range(n - lag)) / sum(ranks**2)
        if abs(share) >= Z_95 / np.sqrt(n):
            total += (n - lag) * (n - lag - 1) * (n - lag - 2) * share
    return max(1.0, 1 + 2 / (n * (n - 1) * (n - 2)) * total)


@pytest.mark.parametrize("memory", [-0.6, 0.0, 0.5, 0.9])
def test_how_much_neighbours_are_alike_is_hameds_and_raos(memory: float) -> None:
    """Lags up to a quarter of the readings, of their ranks, where they are more than chance; at least 1."""
    for seed in range(5):
        row = noise(40, seed=seed)
        for at in range(1, len(row)):
            row[at] += memory * row[at - 1]

        assert _for_autocorrelation(row) == pytest.approx(alike(row))
    assert _for_autocorrelation(np.zeros(9)) == 1.0


def quarters(*rises: float, count: int = 80) -> Floats:
    """Return readings that rise by so much from the middle of each quarter to that of the next."""
    middles = (np.arange(4) + 0.5) * count / 4 - 0.5
    levels = np.cumsum([0.0, *rises])
    inside = np.interp(x(count), middles, levels)
    before, after = x(count) < middles[0], x(count) > middles[-1]
    each = count / 4
    row: Floats = inside + before * (x(count) - middles[0]) * rises[0] / each
    row += after * (x(count) - middles[-1]) * rises[-1] / each
    return row


@pytest.mark.parametrize(
    ("rises", "goes"),
    [
        ((1.0, 1.0, 1.0), True),
        ((1.15, 1.15, 0.72), True),
        ((1.17, 1.17, 0.66), False),
        ((0.25, 1.4, 1.35), True),
        ((0.15, 1.45, 1.4), False),
        ((1.4, 0.25, 1.35), True),
        ((1.45, 0.15, 1.4), False),
        ((-1.0, -1.0, -1.0), False),
        ((0.0, 0.0, 0.0), False),
    ],
)
def test_every_quarter_must_have_its_share(rises: tuple[float, ...], *, goes: bool) -> None:
    """A fifth of an even share each, and the last one seven tenths, which tells a plateau."""
    assert goes_on(quarters(*rises)) is goes


@pytest.mark.parametrize(("at_end", "goes"), [(0.5, True), (0.85, False)])
def test_what_the_last_quarter_must_have_is_for_the_caller_to_say(
    at_end: float, *, goes: bool
) -> None:
    """More of it, where it rose faster before."""
    assert goes_on(quarters(1.1, 1.1, 0.8), at_end) is goes


@pytest.mark.parametrize(("share", "goes"), [(0.5, True), (0.6, False)])
def test_two_rises_must_not_make_most_of_it(share: float, *, goes: bool) -> None:
    """Two models that are loaded are two steps, whatever grows slowly beside them."""
    row = x() * (1 - share) / 59
    row[20:] += share / 2
    row[40:] += share / 2

    assert goes_on(row) is goes


@pytest.mark.parametrize(("deep", "goes"), [(3.0, True), (30.0, False)])
def test_what_falls_back_is_no_growth(deep: float, *, goes: bool) -> None:
    """The level that is never gone below again has to rise in each quarter."""
    row = x().copy()
    row[40] -= deep

    assert goes_on(row) is goes


@pytest.mark.parametrize(
    ("count", "size", "points"), [(120, 1, 120), (121, 2, 60), (240, 2, 120), (500, 5, 100)]
)
def test_no_more_points_are_left_than_may_be(count: int, size: int, points: int) -> None:
    """Each the median of as many neighbours, and the newest is whole."""
    left, right = thinned(x(count), 2.0 * x(count))

    assert len(left) == len(right) == points
    assert left[-1] == np.median(x(count)[-size:])
    assert right == pytest.approx(2.0 * left)
