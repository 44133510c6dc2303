"""What it costs to ask what holds the memory, against a walk over everything the garbage collector knows.

A namespace of 300,000 objects (a list of instances, each with a dict and a list), a culprit at the end of it;
and a training loop's notebook: a model of 146 tensors, its optimizer, 100 losses with their graphs.

    python bench/holders.py
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import measure
import numpy as np
import torch

from hfmem_widget.holding import scan

OBJECTS = 300_000
ROUNDS = 7


class Record:
    """What a notebook has by the thousand."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.fields = {"values": [index]}


def many() -> dict[str, Any]:
    """Return a namespace of `OBJECTS` objects and one tensor."""
    records: list[object] = [Record(index) for index in range(OBJECTS // 3)]
    return {"records": [*records, {"kept": torch.zeros(2**20)}]}


def trained() -> dict[str, Any]:
    """Return a namespace of a training loop that keeps its losses."""
    layers = [torch.nn.Linear(64, 64) for _ in range(73)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    losses = [model(torch.ones(8, 64)).sum() for _ in range(100)]
    return {"model": model, "optimizer": optimizer, "losses": losses}


def tensors_known_to_the_collector() -> int:
    """Return how many tensors a walk over everything finds: no names, no bytes, no graphs."""
    return sum(1 for one in gc.get_objects() if issubclass(type(one), torch.Tensor))


def timed(action: Callable[[], object]) -> float:
    """Return how many seconds it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def report(name: str, namespace: Mapping[str, object]) -> None:
    """Print both ways' medians."""
    found = scan(namespace)
    rounds = measure.interleave(
        {
            "scan": lambda: timed(lambda: scan(namespace)),
            "gc.get_objects()": lambda: timed(tensors_known_to_the_collector),
        },
        ROUNDS,
    )
    first = found.rows[0]
    print(f"{name}: {found.objects:,} objects looked at, first {first.path} {first.bytes:,} B")
    for way, seconds in rounds.items():
        print(f"  {way:18} {np.median(seconds) * 1000:8.1f} ms ({min(seconds) * 1000:.1f} at best)")
    if found.bound:
        print(f"  {found.bound}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report(f"{OBJECTS:,} objects", many())
    report("a training loop's notebook", trained())
