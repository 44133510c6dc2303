"""Loops that leak and loops that do not: what we say, and what "more than 1 MB an iteration" says.

The loops are real code on small models, played twice: as a GPU's allocator would count what torch allocates,
to the byte, and as the heap of this process. Then rows of random readings, with and without growth.

    python bench/leaks.py
"""

import time

import numpy as np
from common import measure  # noqa: F401  (puts the checkout on the path)

from hfmem_widget.features.leaks.trends import trend_in
from hfmem_widget.text import MIB, format_bytes
from tests.data.leak_cases import CASES
from tests.data.leak_noise import GROWING, STILL, readings
from tests.data.leak_played import Played, played
from tests.scenes import scripted_run

RANDOM = 2_000


def verdict(says_leak: bool, leaks: bool) -> str:  # noqa: FBT001  (a cell of a table)
    """Return what a rule says, marked where it is wrong."""
    text = "leak" if says_leak else "-"
    return text if says_leak == leaks else f"{text} (wrong)"


def report(rows: tuple[Played, ...]) -> None:
    """Print what each rule says of each case."""
    print("| loop | | GPU | heap | mean > 1 MB | any > 1 MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for one in rows:
        leaks = one.case.leaks
        ours = [verdict(trend is not None, leaks) for trend in (one.on_gpu, one.on_host)]
        if one.on_gpu is not None:
            ours[0] += f", {format_bytes(one.on_gpu.slope)} {one.on_gpu.what}"
        theirs = [verdict(rule in one.cries, leaks) for rule in ("mean", "any")]
        kind = "leaks" if leaks else "does not"
        print(f"| {one.case.name} | {kind} | {' | '.join([*ours, *theirs])} |")
    rules = {
        "ours, GPU": lambda one: one.on_gpu is not None,
        "ours, heap": lambda one: one.on_host is not None,
        "mean > 1 MB": lambda one: "mean" in one.cries,
        "any > 1 MB": lambda one: "any" in one.cries,
    }
    leaking, still = [[one for one in rows if one.case.leaks is leaks] for leaks in (True, False)]
    for name, rule in rules.items():
        missed = sum(not rule(one) for one in leaking)
        false = sum(rule(one) for one in still)
        print(f"{name:12} missed {missed} of {len(leaking)}, false alarms {false} of {len(still)}")


def report_random() -> None:
    """Print how often random rows are called growing."""
    for shapes in (STILL, GROWING):
        for shape in shapes:
            rng = np.random.default_rng(1)
            found = sum(trend_in(readings(rng, shape)) is not None for _ in range(RANDOM))
            print(f"{shape:40} {found / RANDOM:7.2%} of {RANDOM:,}")


def report_cost() -> None:
    """Print what asking takes."""
    from hfmem_widget.features import judge

    for name in ("training", "steps", "eight gpus", "100,000 steps"):
        session = scripted_run(name)
        began = time.perf_counter()
        for _ in range(10):
            judge(session)
        print(f"{name:16} {(time.perf_counter() - began) * 100:6.2f} ms")
    rng = np.random.default_rng(1)
    points = readings(rng, "a leak among noise")
    began = time.perf_counter()
    for _ in range(100):
        trend_in(points)
    print(f"one row of {len(points)} points, {(time.perf_counter() - began) * 10:.2f} ms")


if __name__ == "__main__":
    report(tuple(played(case) for case in CASES))
    print(f"\nrandom rows of readings, noise of up to {format_bytes(30 * MIB)}")
    report_random()
    print("\nwhat it takes to ask")
    report_cost()
