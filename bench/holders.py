"""What it costs to ask what holds the memory, and what the answers are, against two walks over all objects.

A notebook of a million objects (a list of instances, each with a dict and a list) with a culprit at the end
of it; one in which each of these leads to a tensor that all share, so that none can be left out at a glance;
and a training loop's: a model of 146 tensors, its optimizer, 100 losses with their graphs.

`gc.get_objects()` is walked for tensors, as many a snippet does. pytorch_memlab's `MemReporter` does so too,
and reads each tensor's storage; where the package is not installed its walk is written out here, without what
it prints. "held" is how many bytes of tensors a way finds of those that there are; "named" is how many of
those it gives a name that the notebook knows.

    pip install --no-deps pytorch_memlab calmsize    # into an environment to throw away
    python bench/holders.py
"""

import contextlib
import gc
import io
import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from common import measure

from hfmem_widget.sources.heap.retained import Group, reach
from hfmem_widget.sources.heap.scan import scan

OBJECTS = 1_000_000
ROUNDS = 9
MOST_SECONDS = 120.0
"""Seconds after which a notebook has no further round."""

Found = tuple[int, int]
"""Bytes of tensors, and how many of them have a name of the notebook's."""


class Record:
    """What a notebook has by the thousand."""

    def __init__(self, index: int, *shared: object) -> None:
        self.index = index
        self.fields = {"values": [index, *shared]}


def many() -> dict[str, Any]:
    """Return a namespace of `OBJECTS` objects and one tensor."""
    records: list[object] = [Record(index) for index in range(OBJECTS // 3)]
    return {"records": [*records, {"kept": torch.zeros(2**20)}]}


def entangled() -> dict[str, Any]:
    """Return a namespace of as many objects, from each of which a tensor is reached."""
    shared = {"scale": torch.zeros(2**20)}
    return {"records": [Record(index, shared) for index in range(OBJECTS // 3)]}


def trained() -> dict[str, Any]:
    """Return a namespace of a training loop that keeps its losses."""
    layers = [torch.nn.Linear(64, 64) for _ in range(73)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    losses = [model(torch.ones(8, 64)).sum() for _ in range(100)]
    return {"model": model, "optimizer": optimizer, "losses": losses}


def scanned(namespace: Mapping[str, object]) -> Found:
    """Ask as `%memholders` does."""
    found = scan(namespace, most_seconds=math.inf)
    total = sum(found.explained().values())
    return total, total


def reached(namespace: Mapping[str, object]) -> Found:
    """Ask as `%memholders --free` does: what each variable keeps alone."""
    groups = [Group(name, [value]) for name, value in namespace.items()]
    found = reach(groups, [], most_seconds=math.inf)
    alone = sum(sum(sizes.values()) for sizes in found.alone.values())
    return alone, alone


def walked(_: Mapping[str, object]) -> Found:
    """Walk over all objects, and add up the storages of those that are tensors, each once."""
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    storages = (one.untyped_storage() for one in tensors)
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values()), 0


def reported(namespace: Mapping[str, object]) -> Found:
    """Ask pytorch_memlab, which is given the model, as its manual says, and names that model's tensors."""
    with contextlib.redirect_stdout(io.StringIO()):
        from pytorch_memlab import MemReporter

        reporter = MemReporter(namespace.get("model"))
        reporter.report()
    rows = [row for stats in reporter.device_tensor_stat.values() for row in stats]
    named = sum(row[3] for row in rows if not row[0].rstrip("0123456789").endswith("Tensor"))
    return sum(row[3] for row in rows), named


def reported_as_written_out(_: Mapping[str, object]) -> Found:
    """Do what `MemReporter` does: all objects, `isinstance`, each tensor's storage and its gradient's."""
    seen: dict[int, int] = {}
    for one in [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]:
        gradient = one.grad if isinstance(one, torch.nn.Parameter) else None
        for tensor in (one, gradient):
            if tensor is not None and tensor.numel():
                storage = tensor.untyped_storage()
                seen[storage.data_ptr()] = -(-storage.nbytes() // 512) * 512
    return sum(seen.values()), 0


def ways() -> dict[str, Callable[[Mapping[str, object]], Found]]:
    """Return what is compared."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import pytorch_memlab  # noqa: F401  (to see whether it is there)
    except ImportError:
        theirs = {"MemReporter's walk, written out": reported_as_written_out}
    else:
        theirs = {"pytorch_memlab MemReporter": reported}
    return {
        "%memholders": scanned,
        "%memholders --free, without an argument": reached,
        "gc.get_objects(), tensors": walked,
        **theirs,
    }


def timed(action: Callable[[], object]) -> float:
    """Return how many seconds of CPU time it takes, which a busy machine hardly changes."""
    began = time.process_time()
    action()
    return time.process_time() - began


def compare(name: str, namespace: Mapping[str, object]) -> None:
    """Print what each way costs and finds."""
    searches = ways()
    found = {way: ask(namespace) for way, ask in searches.items()}
    rounds = measure.interleave(
        {way: lambda ask=ask: timed(lambda: ask(namespace)) for way, ask in searches.items()},
        ROUNDS,
        within=MOST_SECONDS,
    )
    base = rounds["gc.get_objects(), tensors"]
    rows = []
    for way, seconds in rounds.items():
        held, named = found[way]
        rows.append(
            (
                way,
                measure.estimate(seconds).text(1e-3),
                f"{min(seconds) * 1e3:,.1f} to {max(seconds) * 1e3:,.1f}",
                measure.ratio(seconds, base).text(digits=2),
                f"{held:,}",
                f"{named:,}",
            )
        )
    first = scan(namespace, most_seconds=math.inf)
    measure.report(
        f"## {name}: {first.objects:,} objects looked at, {len(gc.get_objects()):,} in the process",
        measure.machine("torch", "pytorch_memlab"),
        (
            "way",
            "CPU ms, median (95 %)",
            "fastest to slowest",
            "times a walk",
            "bytes held",
            "named",
        ),
        rows,
        notes=[f"first in the list: {first.rows[0].path}, {first.rows[0].bytes:,} B", ""],
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    compare("a notebook of a million objects", many())
    compare("a million objects that lead to a tensor", entangled())
    compare("a training loop's notebook", trained())
