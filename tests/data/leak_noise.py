"""Random series of readings, drawn after the rules were made: some are level, some grow."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hfmem_widget.features.leaks.trends import A_STEP, ComparablePoints
from hfmem_widget.text import MIB

Draw = Callable[[np.random.Generator, int], Any]


def _scale(rng: np.random.Generator) -> float:
    return float(10 ** rng.uniform(-2, 1.5))


def _noise(rng: np.random.Generator, n: int) -> Any:
    return rng.normal(0, _scale(rng), n)


def _alike(rng: np.random.Generator, n: int) -> Any:
    """Return readings that are correlated with the one before."""
    share, noise = rng.uniform(0.5, 0.95), rng.normal(0, _scale(rng), n)
    row = np.zeros(n)
    for at in range(1, n):
        row[at] = share * row[at - 1] + noise[at]
    return row


def _steps(rng: np.random.Generator, n: int) -> Any:
    row = np.zeros(n)
    for at in rng.integers(0, n, rng.integers(1, 4)):
        row[at:] += rng.uniform(5, 500)
    return row + rng.normal(0, rng.uniform(0, 1), n)


def _plateau(rng: np.random.Generator, n: int) -> Any:
    full = rng.uniform(0.05, 0.5) * n
    return rng.uniform(10, 500) * np.minimum(np.arange(n) / full, 1) + _noise(rng, n) / 30


def _teeth(rng: np.random.Generator, n: int) -> Any:
    period, at = rng.integers(3, max(4, n // 3)), np.arange(n) + rng.integers(0, 50)
    return rng.uniform(0.1, 5) * (at % period) + rng.normal(0, rng.uniform(0, 1), n)


def _leak(rng: np.random.Generator, n: int) -> Any:
    """Return even growth that ends well above its noise."""
    noise = _noise(rng, n)
    return noise + np.arange(n) / n * max(8 * noise.std(), rng.uniform(5, 500))


def _after_drop(rng: np.random.Generator, n: int) -> Any:
    """Return growth during which earlier memory is freed."""
    freed, slope = rng.uniform(0.1, 0.5) * n, rng.uniform(0.5, 20)
    return np.arange(n) * slope - np.where(np.arange(n) > freed, 0.6 * slope * n, 0)


_SHAPES: dict[str, Draw] = {
    "noise": _noise,
    "noise with far outliers": lambda rng, n: np.clip(rng.standard_t(2, n), -50, 50) * _scale(rng),
    "noise that remembers": _alike,
    "a random walk": lambda rng, n: np.cumsum(rng.normal(0, _scale(rng) / 3, n)),
    "one to three steps up": _steps,
    "a plateau": _plateau,
    "a cache that fills": lambda rng, n: (  # it meets ever fewer new keys
        rng.uniform(10, 500) * (1 - np.exp(-np.arange(n) * rng.uniform(3, 12) / n))
    ),
    "teeth": _teeth,
    "a leak among noise": _leak,
    "a leak by rare steps": lambda rng, n: (
        np.arange(n) // int(rng.integers(1, max(2, n // 10))) * rng.uniform(1, 50)
    ),
    "a leak of batches": lambda rng, n: (  # of sizes drawn anew at each step
        np.cumsum(rng.uniform(0, 2, n)) * rng.uniform(0.3, 20)
    ),
    "a leak that begins late": lambda rng, n: (
        np.maximum(0, np.arange(n) - rng.uniform(0, 0.4) * n) * rng.uniform(0.5, 20)
    ),
    "a leak, and something else is freed": _after_drop,
}

STILL = tuple(_SHAPES)[:8]
GROWING = tuple(_SHAPES)[8:]


def readings(rng: np.random.Generator, shape: str) -> ComparablePoints:
    """Return 30 to 300 steps: a warm-up, then one of the shapes."""
    n = int(rng.integers(30, 300))
    warm_up = np.where(np.arange(n) < rng.integers(0, 4), -rng.uniform(0, 200), 0.0)
    row = 500 + warm_up + _SHAPES[shape](rng, n)
    number, unknown = np.arange(1.0, n + 1.0), np.full(n, np.nan)
    return ComparablePoints(
        device="cuda:0",
        what=A_STEP,
        number=number,
        time=number / 10,
        allocated=row * MIB,
        size=unknown,
        within=unknown,
    )
