"""Whether readings keep rising: robust lines, and rules that separate growth from steps, teeth and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_POINTS = 120  # points that a line is fitted to: all pairs of them are compared, which is 7,140

Z_95 = 1.96
_SPREAD = 1.4826  # the standard deviation of normal noise, in median absolute deviations

# Of an even share of the growth, what each quarter of the readings must contribute:
LEAST_RISE = 0.2
LEAST_RISE_AT_END = 0.7  # the last one, which is lower on a plateau and in a cache that fills up
LEAST_WHERE_SLOWER = 0.85  # the last one where it rose faster before: that must have stopped
LEAST_LASTING = 0.1  # to the level that is never left again

LEAST_UNEVEN = 0.1  # of all changes of size: what must be off their median, to tell size from time
MOST_IN_TWO = 0.55  # of lasting growth: the two biggest rises, such as a model and a workspace


@dataclass(frozen=True, slots=True)
class FittedLine:
    """A line through readings."""

    slope: float
    low: float  # bounds of its 95 % interval
    high: float
    intercept: float  # its value at x = 0
    spread: float  # robust standard deviation of the readings about it


def theil_sen(x: Floats, y: Floats, z: float = Z_95) -> FittedLine:
    """Return the line with the median of all pairwise slopes of at least 3 readings, with Sen's interval.

    The interval is `z` standard deviations wide at each side. It comes from the variance of Kendall's S,
    enlarged by the autocorrelation of the residuals (Hamed and Rao, 1998): neighbouring steps are not
    independent.
    """
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    slopes = (y[second] - y[first])[run > 0] / run[run > 0]
    slope = float(np.median(slopes))
    intercept = float(np.median(y - slope * x))
    residuals = y - slope * x - intercept
    n, pairs = len(x), len(slopes)
    variance = n * (n - 1) * (2 * n + 5) / 18 * _for_autocorrelation(residuals)
    reach = z * math.sqrt(variance)
    low, high = max(0, int((pairs - reach) / 2)), min(pairs - 1, math.ceil((pairs + reach) / 2))
    ordered = np.partition(slopes, (low, high))
    spread = _SPREAD * float(np.median(np.abs(residuals)))
    return FittedLine(slope, float(ordered[low]), float(ordered[high]), intercept, spread)


def goes_on(y: Floats, at_end: float = LEAST_RISE_AT_END) -> bool:
    """Return whether readings rise all the time: not in a few steps, up to a plateau, or in teeth.

    There are at least 4, evenly spaced. `at_end` is the part of an even share that the last quarter must
    contribute.
    """
    levels = np.array([np.median(quarter) for quarter in np.array_split(y, 4)])
    rises = np.diff(levels)
    even = rises.sum() / 3
    if even <= 0 or rises.min() < LEAST_RISE * even or rises[-1] < at_end * even:
        return False
    lasting = np.minimum.accumulate(y[::-1])[::-1]
    grown = lasting[-1] - lasting[0]
    steps = np.diff(lasting)
    ends = lasting[np.linspace(0, len(y) - 1, 5).astype(int)]
    if grown <= 0 or np.diff(ends).min() < LEAST_LASTING * grown / 4:
        return False
    return bool(np.sort(steps)[-2:].sum() <= MOST_IN_TWO * grown)


def thinned(x: Floats, y: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """Return at most `most` points: medians of equally many neighbours."""
    size = -(-len(x) // most)
    if size <= 1:
        return x, y
    # The remainder is dropped at the beginning: the newest must be whole.
    kept = slice(len(x) % size, None)
    thin_x, thin_y = (np.median(values[kept].reshape(-1, size), axis=1) for values in (x, y))
    return thin_x, thin_y


def without_size(y: Floats, size: Floats) -> Floats | None:
    """Return readings corrected for a size that they depend on, such as a batch's tokens.

    The dependence is estimated from one reading to the next, where growth is small and the same for all. The
    result is None where the size rises so evenly with time that the two cannot be told apart.
    """
    if np.isnan(size).any() or np.ptp(size) == 0:
        return y
    by, changes = np.diff(size), np.diff(y)
    uneven = by - np.median(by)
    weights = np.abs(uneven)
    if weights.sum() < LEAST_UNEVEN * np.abs(by).sum():
        return None
    changed = weights > 0
    ratios = (changes - np.median(changes))[changed] / uneven[changed]
    order = np.argsort(ratios)
    share = weights[changed][order].cumsum()
    per_unit = max(float(ratios[order][np.searchsorted(share, share[-1] / 2)]), 0.0)
    corrected: Floats = y - per_unit * (size - np.median(size))
    return corrected


def _for_autocorrelation(residuals: Floats) -> float:
    """Return the factor by which autocorrelation enlarges the variance of Kendall's S; at least 1."""
    n = len(residuals)
    ranks = np.argsort(np.argsort(residuals)).astype(float)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if power == 0 or np.ptp(residuals) == 0:
        return 1.0
    most = max(1, n // 4)
    lags = np.arange(1, most + 1)
    alike = np.correlate(ranks, ranks, "full")[n : n + most] / power
    alike[np.abs(alike) < Z_95 / math.sqrt(n)] = 0.0
    weights = (n - lags) * (n - lags - 1) * (n - lags - 2)
    return max(1.0, 1 + 2 / (n * (n - 1) * (n - 2)) * float(weights @ alike))
