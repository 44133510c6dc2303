"""Series at the limit between level and growing: ``python -m tests.data.leak_rows`` rewrites `leak_rows.txt`.

Of each row the trend that is found is kept, with its figures, or that there is none.
"""

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from hfmem_widget.features.leaks.trends import ComparablePoints, trend_in
from hfmem_widget.text import MIB

FILE = Path(__file__).with_name("leak_rows.txt")

Shape = Callable[[int, int], float]
"""MiB above where it began, at one of so many points."""

SHAPES: dict[str, Shape] = {
    "even": lambda at, _: 1.0 * at,
    "slow": lambda at, count: 2.5 * at / count,
    "since the middle": lambda at, count: max(0.0, at - count / 2),
    "since the last quarter": lambda at, count: max(0.0, at - 0.75 * count),
    "until the middle": lambda at, count: min(float(at), count / 2),
    "until the last quarter": lambda at, count: min(float(at), 0.75 * count),
    "slower and slower": lambda at, count: (at * count) ** 0.5,
    "much slower in the end": lambda at, count: at if at < 0.7 * count else 0.49 * count + 0.3 * at,
    "faster and faster": lambda at, count: at**2 / count,
    "after a drop": lambda at, count: 2.0 * count - 6 * at if at < count / 4 else 0.5 * at,
    "after a large drop": lambda at, count: 40.0 if at < count / 3 else at - count / 3,
    "by one rise": lambda at, count: 30.0 * (at >= count / 2),
    "by two rises": lambda at, count: (
        20.0 * (at >= count / 3) + 20.0 * (at >= 2 * count / 3) + 0.4 * at
    ),
    "by four rises": lambda at, count: 10.0 * (5 * at // count),
    "in teeth": lambda at, _: 9.0 * (at % 6) + 0.5 * at,
    "in teeth that grow": lambda at, _: (at % 4) * (1 + at / 8),
    "back again": lambda at, count: float(at if at < 0.8 * count else 1.6 * count - at),
    "falling": lambda at, _: -1.0 * at,
    "not at all": lambda _at, _count: 0.0,
}
COUNTS = (6, 11, 12, 17, 30, 64, 130, 500)
NOISE = (0.0, 0.4, 6.0)
"""MiB, of one standard deviation."""


def row(shape: Shape, count: int, noise: float, *, device: str, what: str) -> ComparablePoints:
    """Return a series of points, every third of which has twice the tokens, and 3 MiB more for it."""
    chance = random.Random(f"{count} {noise}")
    sizes = np.array([2.0 if at % 3 == 2 else 1.0 for at in range(count)])
    heights = [500 + shape(at, count) + chance.gauss(0, noise) for at in range(count)]
    number = np.arange(1.0, count + 1)
    return ComparablePoints(
        device=device,
        what=what,
        number=number,
        time=number / 2,
        allocated=(np.array(heights) + 3 * sizes) * MIB,
        size=sizes,
        within=np.full(count, np.nan),
    )


def found(points: ComparablePoints) -> str:
    """Return the figures of a trend, in points and in KiB."""
    one = trend_in(points)
    if one is None:
        return "none"
    sizes = (one.slope, one.low, one.high, one.intercept, one.grown, one.spread)
    figures = " ".join(f"{size / 1024:.6g}" for size in sizes)
    return f"{one.first:g}-{one.last:g} ({one.start:g}-{one.stop:g} s, {one.points}): {figures}"


def of_shape(name: str) -> list[str]:
    """Return the series of a shape that have a trend, each with its figures."""
    lines = []
    for count, noise in product(COUNTS, NOISE):
        for device, what in (("cuda:0", "a step"), ("cpu", "an evaluation")):
            trend = found(row(SHAPES[name], count, noise, device=device, what=what))
            if trend != "none":
                lines.append(f"{name}, {count} with {noise:g} MiB on {device}: {trend}")
    return lines


if __name__ == "__main__":
    lines = [line for name in SHAPES for line in of_shape(name)]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
