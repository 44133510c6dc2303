"""What following operators costs on the CPU (`%%memwatch --stacks`), beside what it says of itself.

Two trainings: small tensors, where Python is all there is, and larger ones, where arithmetic takes its time.
The same steps are run with and without, in turn. On a GPU the allocator records instead:
``pytest tests/gpu/test_stacks.py -s`` prints that.

    python bench/stacks.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from common import measure

from hfmem_widget.sources.dispatch_tracker import OperatorTracker

ROUNDS = 15
STEPS = 8
SIZES = {"64 wide, batch 8": (64, 8), "1024 wide, batch 64": (1024, 64)}


def training(width: int, batch: int) -> Callable[[], None]:
    """Return a function that runs some steps of a training."""
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.ones(batch, width)

    def steps() -> None:
        for _ in range(STEPS):
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    steps()
    return steps


def seconds(steps: Callable[[], None]) -> tuple[float, float]:
    """Return how long the steps took, of this process' own time: other processes do not count."""
    began = time.process_time()
    steps()
    return time.process_time() - began, 0.0


def followed(steps: Callable[[], None]) -> tuple[float, float]:
    """Return the same with their operators followed, and what that says it has cost."""
    tracker = OperatorTracker()
    tracker.begin()
    took, _ = seconds(steps)
    found = tracker.end()
    return took, found.seconds if found is not None else 0.0


def main() -> None:
    """Print a line for each training."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, size in SIZES.items():
        steps = training(*size)
        ways = {
            "plain": lambda one=steps: seconds(one),
            "followed": lambda one=steps: followed(one),
        }
        found = measure.interleave(ways, ROUNDS)
        pairs = list(zip(found["plain"], found["followed"], strict=True))
        slower = measure.estimate([after[0] / before[0] for before, after in pairs])
        extra = measure.estimate([(after[0] - before[0]) / STEPS for before, after in pairs])
        said = measure.estimate([after[1] / STEPS for _, after in pairs])
        print(
            f"{name}: {slower.text(digits=2)} times the time; a step has {extra.text(1e-3, 2)} ms more, "
            f"and says {said.text(1e-3, 2)} ms"
        )


if __name__ == "__main__":
    main()
