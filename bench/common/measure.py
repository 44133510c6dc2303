"""Two or more ways of doing the same thing, measured in one run: interleaved, with spread, as ratios.

Shared by the scripts in the folder above. Run by itself it prints the machine and the versions they run with.
"""

import argparse
import datetime as dt
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROOT = Path(__file__).resolve().parents[2]
# A checkout that is not installed can be measured too.
sys.path.insert(0, str(ROOT))

RESAMPLES = 4000
Rounds = dict[str, list[float]]
Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A middle value, and the 95 % bootstrap interval around it."""

    middle: float
    low: float
    high: float

    def text(self, unit: float = 1.0, digits: int = 1) -> str:
        """Return it in multiples of `unit`, such as ``42.1 (41.0 to 43.5)``."""
        parts = (f"{one / unit:,.{digits}f}" for one in (self.middle, self.low, self.high))
        return "{} ({} to {})".format(*parts)


def interleave(
    ways: Mapping[str, Callable[[], T]], rounds: int, *, within: float = math.inf
) -> dict[str, list[T]]:
    """Measure every way once a round, each round in another order, so that drift hits all alike.

    Parameters
    ----------
    ways : mapping of str to callable
        Each does its thing once, and returns what it measured.
    rounds : int
        At most.
    within : float
        Seconds after which no round begins, once three are made.
    """
    deadline = time.monotonic() + within
    order = np.random.default_rng(0)
    measured: dict[str, list[T]] = {name: [] for name in ways}
    for done in range(rounds):
        if done >= 3 and time.monotonic() > deadline:
            break
        for name in order.permutation(list(ways)):
            measured[str(name)].append(ways[str(name)]())
    return measured


def estimate(values: ArrayLike) -> Estimate:
    """Return the median of independent measurements, with its interval by the percentile bootstrap."""
    return _bootstrap(values, lambda rows: np.median(rows, axis=1))


def trimmed(values: ArrayLike, cut: float = 0.2) -> Estimate:
    """Return their mean without the lowest and the highest `cut` of them, with its interval likewise.

    It is as deaf to outliers as need be, and its interval narrower than the median's.
    """

    def middle_mean(rows: Floats) -> Floats:
        out = int(cut * rows.shape[1])
        middle: Floats = np.sort(rows, axis=1)[:, out : rows.shape[1] - out].mean(axis=1)
        return middle

    return _bootstrap(values, middle_mean)


def _bootstrap(values: ArrayLike, middle_of: Callable[[Floats], Floats]) -> Estimate:
    known = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(len(known), size=(RESAMPLES, len(known)))
    low, high = np.percentile(middle_of(known[picks]), [2.5, 97.5])
    return Estimate(float(middle_of(known[None])[0]), float(low), float(high))


def ratio(values: ArrayLike, base: ArrayLike) -> Estimate:
    """Return how many times `base` it is, from the ratios of each round."""
    return estimate(np.asarray(values, dtype=float) / np.asarray(base, dtype=float))


def machine(*packages: str) -> str:
    """Return what a result depends on: date, kind of processor, system, versions; no names."""
    words = [
        dt.datetime.now(tz=dt.UTC).date().isoformat(),
        f"{len(os.sched_getaffinity(0))} cores {platform.machine()}",
        platform.system(),
        f"Python {platform.python_version()}",
    ]
    for package in packages:
        try:
            words.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            words.append(f"{package} not installed")
    return ", ".join(words)


def cli(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with what every script takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw numbers there too")
    return parser


def not_here(reason: str) -> NoReturn:
    """Say in one sentence that nothing can be measured on this machine, and end; that is no failure."""
    print(f"Not measured: {reason}")
    sys.exit()


def report(
    title: str,
    circumstances: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    notes: Sequence[str] = (),
    raw: Mapping[str, Any] | None = None,
    json_to: Path | None = None,
) -> None:
    """Print one table in Markdown and, if wanted, write the raw numbers as JSON."""
    print(f"{title}\n{circumstances}\n")
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"| {' | '.join(cells)} |")
    print(*("", *notes), sep="\n")
    if json_to is not None:
        table = [dict(zip(head, row, strict=True)) for row in rows]
        found = {"title": title, "circumstances": circumstances, "table": table, "raw": raw or {}}
        json_to.write_text(json.dumps(found, indent=1, default=_plain) + "\n")


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Estimate) else str(value)


if __name__ == "__main__":
    print(machine("torch", "transformers", "ipykernel", "anywidget", "plotly", "nvidia-ml-py"))
