"""Figures over ranks: how they spread, which rank differs from its peers, and which clock is off.

Arrays of steps have a row for each rank and a column for each step; NaN is "not known".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.session.timeline import Floats
from hfmem_widget.text import MIB

SAME_WEIGHTS = 0.02
"""The share by which the weights of peers may differ."""

STEPS = 20
"""The newest steps whose peaks are compared."""

LEAST_STEPS = 5
"""Steps before which no rank is judged: the first ones allocate what later ones reuse."""

LEAST_PEERS = 4
"""The least number of ranks with equal weights among which one can stand out."""

DEVIATIONS = 6 * 1.4826
"""Median absolute deviations; 1.4826 of them are a standard deviation where figures are normal."""

OUTLIER_SHARE = 0.02
OUTLIER_BYTES = 256 * MIB
"""The least difference of an outlier from its peers."""

COMMON_STEPS = 8
"""Steps that hosts must have in common before their clocks are compared."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The lowest, the median and the highest of figures, and the places of the lowest and the highest."""

    low: float
    median: float
    high: float
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Outlier:
    """A rank by its place, its median over the newest steps, and that of its peers."""

    place: int
    value: float
    peers: float


def spread(values: Floats) -> Spread:
    """Return how the figures of ranks spread, shape ``(ranks,)``."""
    if not len(values) or np.isnan(values).all():
        return Spread(math.nan, math.nan, math.nan, -1, -1)
    low, high = int(np.nanargmin(values)), int(np.nanargmax(values))
    return Spread(float(values[low]), float(np.nanmedian(values)), float(values[high]), low, high)


def peers(weights: Floats) -> NDArray[np.int64]:
    """Return a group number for each rank: equal for equal weights, and for unknown ones."""
    groups = np.full(len(weights), -1, dtype=np.int64)
    least, group = -math.inf, -1
    for place in np.argsort(weights, kind="stable"):  # NaN comes last
        weight = weights[place]
        if math.isnan(weight):
            break
        if weight > least * (1 + SAME_WEIGHTS) or least < 0:
            least, group = weight, group + 1
        groups[place] = group
    return groups


def outliers(peaks: Floats, groups: NDArray[np.int64]) -> list[Outlier]:
    """Return the ranks whose step peaks (bytes) are far from those of their `peers`, the farthest first."""
    has_enough = (~np.isnan(peaks)).sum(axis=1) >= LEAST_STEPS
    values = np.full(len(peaks), np.nan)
    if has_enough.any():
        values[has_enough] = np.nanmedian(peaks[has_enough], axis=1)
    far_off = []
    for group in np.unique(groups):
        places = np.flatnonzero((groups == group) & ~np.isnan(values))
        if len(places) < LEAST_PEERS:
            continue
        own = values[places]
        median = float(np.median(own))
        off = np.abs(own - median)
        least = max(DEVIATIONS * float(np.median(off)), OUTLIER_SHARE * median, OUTLIER_BYTES)
        far_off += [
            Outlier(int(places[at]), float(own[at]), median) for at in np.flatnonzero(off > least)
        ]
    return sorted(far_off, key=lambda outlier: -abs(outlier.value - outlier.peers))


def offsets(ends: Floats, hosts: Sequence[str]) -> dict[str, float]:
    """Return by how many seconds the clock of each host is ahead: all ranks end a step together.

    `ends` are when each rank ended each step, by the clock of its host. Hosts that have too few steps in
    common with the others are left out.
    """
    names = np.array(hosts)
    has_ended = ~np.isnan(ends)
    common = has_ended.sum(axis=0) * 2 > max(2, has_ended.any(axis=1).sum())
    if common.sum() < COMMON_STEPS or len(set(hosts)) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a rank may have none of these steps
        # The lower of the two middle ones: their mean would not be the clock of any host.
        agreed = np.nanpercentile(ends[:, common], 50, axis=0, method="lower")
        off = ends[:, common] - agreed
        rows = np.nanmedian(off, axis=1)
    steps = (~np.isnan(off)).sum(axis=1)
    clock_ahead = {}
    for host in sorted(set(hosts)):
        own = (names == host) & (steps >= COMMON_STEPS)
        if own.any():
            clock_ahead[host] = float(np.median(rows[own]))
    return clock_ahead
