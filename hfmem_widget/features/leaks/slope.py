"""Whether a row of readings keeps rising: robust lines, and what tells growth from steps, teeth and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_POINTS = 120
"""Points that a line is laid through: all pairs of them are compared, which is 7,140."""

Z_95 = 1.96
_SPREAD = 1.4826
"""From a median absolute deviation to the standard deviation of normal noise."""

LEAST_RISE = 0.2
"""Of an even share: what each quarter must contribute to growth that goes on."""

LEAST_RISE_AT_END = 0.7
"""The same for the last one, which tells a plateau, and a cache that fills ever more slowly."""

LEAST_WHERE_SLOWER = 0.85
"""The same where it rose faster before: what slows down must have stopped slowing down."""

LEAST_UNEVEN = 0.1
"""Of all changes of size: what must differ from their median, so that they are not mistaken for time."""

LEAST_LASTING = 0.1
"""Of an even share: what each quarter must add to the level that is never gone below again."""

MOST_IN_TWO = 0.55
"""Of all lasting growth: what the two biggest rises may make. A second model is one rise, and so is a
workspace."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through readings, and how sure its slope is.

    Attributes
    ----------
    slope, low, high : float
        Per unit of x; the bounds are those of 95 %, or of whatever was asked for.
    intercept : float
        At x = 0.
    spread : float
        Standard deviation of the readings about it, robustly.
    """

    slope: float
    low: float
    high: float
    intercept: float
    spread: float

    def at(self, x: float) -> float:
        """Return its value at some x."""
        return self.intercept + self.slope * x


def theil_sen(x: Floats, y: Floats, z: float = Z_95) -> Line:
    """Return the line with the median of all pairwise slopes, with Sen's interval.

    The interval comes from the variance of Kendall's S, enlarged by the autocorrelation of what the line
    leaves (Hamed and Rao, 1998): neighbouring steps are not independent witnesses.

    Parameters
    ----------
    x, y : array of shape (n,)
        `x` rises; n is at least 3.
    z : float, optional
        How wide the interval is, in standard deviations.
    """
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    slopes = (y[second] - y[first])[run > 0] / run[run > 0]
    slope = float(np.median(slopes))
    intercept = float(np.median(y - slope * x))
    left = y - slope * x - intercept
    n, pairs = len(x), len(slopes)
    variance = n * (n - 1) * (2 * n + 5) / 18 * _for_autocorrelation(left)
    reach = z * math.sqrt(variance)
    low, high = max(0, int((pairs - reach) / 2)), min(pairs - 1, math.ceil((pairs + reach) / 2))
    ordered = np.partition(slopes, (low, high))
    spread = _SPREAD * float(np.median(np.abs(left)))
    return Line(slope, float(ordered[low]), float(ordered[high]), intercept, spread)


def goes_on(y: Floats, at_end: float = LEAST_RISE_AT_END) -> bool:
    """Return whether readings rise all the time, not by a few steps, nor up to a plateau, nor in teeth.

    Parameters
    ----------
    y : array of shape (n,)
        In order of time, evenly spaced; n is at least 4.
    at_end : float, optional
        Of an even share, what the last quarter must contribute.
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
    whole = len(x) // size * size
    # What is left over at the beginning goes: the newest must be whole.
    part = slice(len(x) - whole, None)
    return np.median(x[part].reshape(-1, size), axis=1), np.median(
        y[part].reshape(-1, size), axis=1
    )


def without_size(y: Floats, size: Floats) -> Floats | None:
    """Return readings corrected for the size of what was at work, such as a batch's tokens.

    How much goes with the size is seen from one reading to the next, where growth is small and the same for
    all: so neither is taken for the other.

    Returns
    -------
    array of shape (n,) or None
        None where the size rises so evenly with time that the two cannot be told apart.
    """
    if np.isnan(size).any() or np.ptp(size) == 0:
        return y
    by, changes = np.diff(size), np.diff(y)
    uneven = by - np.median(by)
    weights = np.abs(uneven)
    if weights.sum() < LEAST_UNEVEN * np.abs(by).sum():
        return None
    told = weights > 0
    ratios = (changes - np.median(changes))[told] / uneven[told]
    order = np.argsort(ratios)
    share = weights[told][order].cumsum()
    per_unit = max(float(ratios[order][np.searchsorted(share, share[-1] / 2)]), 0.0)
    corrected: Floats = y - per_unit * (size - np.median(size))
    return corrected


def _for_autocorrelation(left: Floats) -> float:
    """Return by how much the variance of Kendall's S grows because neighbours are alike; at least 1."""
    n = len(left)
    ranks = np.argsort(np.argsort(left)).astype(float)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if power == 0 or np.ptp(left) == 0:
        return 1.0
    most = max(1, n // 4)
    lags = np.arange(1, most + 1)
    alike = np.correlate(ranks, ranks, "full")[n : n + most] / power
    alike[np.abs(alike) < Z_95 / math.sqrt(n)] = 0.0
    weights = (n - lags) * (n - lags - 1) * (n - lags - 2)
    return max(1.0, 1 + 2 / (n * (n - 1) * (n - 2)) * float(weights @ alike))
