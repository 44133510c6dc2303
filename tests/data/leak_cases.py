"""Loops as people write them, with and without leaks."""

import copy
import functools
import gc
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hfmem_widget import span
from tests.data.leak_mirror import Mirror

CRIES: Mapping[str, frozenset[str]] = {
    "mean": frozenset({
        "a list of losses with their graphs", "a running total of losses",
        "a hook registered anew at every step", "parameter groups that are added again",
        "a chain of exceptions", "closures over activations",
        "a cache that fills and is full", "three models, loaded one after another",
    }),
    "any": frozenset({
        "a list of losses with their graphs", "a running total of losses",
        "a hook registered anew at every step", "parameter groups that are added again",
        "a chain of exceptions", "closures over activations",
        "checks that are kept every tenth step", "0.1 MiB a step among batches of any size",
        "outputs of every evaluation",
        "workspaces of cuBLAS", "cycles that only the collector frees",
        "another optimizer from the middle on", "a cache that fills and is full", "an LRU cache",
        "metrics that are cleared after each epoch", "three models, loaded one after another",
    }),
}  # fmt: skip
"""What "more than 1 MB an iteration" calls a leak, by whether it is the mean or any iteration."""

WIDTH, HIDDEN, BATCH, LARGE = 128, 640, 128, 400
MIB = 2**20

Rows = int | Callable[[int], int]
"""How many rows the batch of a step has."""


class Loop:
    """A small model, its optimizer and its batches."""

    def __init__(self, mirror: Mirror | None = None) -> None:
        torch.manual_seed(0)
        self._mirror = mirror
        self.chance = random.Random(0)
        self.model = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.Tanh()
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters())

    def steps(self, count: int, rows: Rows = BATCH) -> Iterator[torch.Tensor]:
        """Yield a batch for each step, within its span."""
        for step in range(count):
            size = rows if isinstance(rows, int) else rows(step)
            with span("step", tokens=size):
                yield torch.randn(size, WIDTH)

    def workspace(self) -> None:
        """Make cuBLAS allocate a workspace, if there is a GPU."""
        if self._mirror is not None:
            self._mirror.workspace(8 * MIB + 8192)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch).square().mean()

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, batch: torch.Tensor) -> float:
        loss = self.loss(batch)
        self.update(loss)
        return float(loss)


def train(
    loop: Loop,
    steps: int,
    keep: Callable[[int, torch.Tensor], object] = lambda _step, _batch: None,
    rows: Rows = BATCH,
) -> object:
    """Train, and return the kept values of each step."""
    kept = []
    for step, batch in enumerate(loop.steps(steps, rows)):
        loop.train(batch)
        kept.append(keep(step, batch))
    return kept


def evaluate(loop: Loop, batches: int = 3) -> list[torch.Tensor]:
    """Return the outputs of an evaluation, which is a span of its own."""
    with span("evaluate"), torch.no_grad():
        return [loop.model(torch.randn(2 * BATCH, WIDTH)) for _ in range(batches)]


def train_on(loop: Loop, steps: int, rows: Rows) -> object:
    """Train on batches of any size, and keep the last output."""
    output = None
    for batch in loop.steps(steps, rows):
        output = loop.model(batch)
        loop.update(output.square().mean())
    return output


def losses_with_graphs(loop: Loop) -> object:
    losses = []
    for batch in loop.steps(80, LARGE):
        loss = loop.loss(batch)
        losses.append(loss + loop.loss(batch))
        loop.update(loss)
    return losses


def total_of_losses(loop: Loop) -> object:
    total: Any = 0
    for batch in loop.steps(80, LARGE):
        loss = loop.loss(batch)
        total = total + (loop.model(batch) - batch).abs().mean()
        loop.update(loss)
    return total


def hooks_registered_again(loop: Loop) -> object:
    for batch in loop.steps(60):
        kept = torch.zeros(256, 1024)
        loop.model[0].register_forward_hook(lambda _m, _i, output, kept=kept: output + kept[0, 0])
        loop.train(batch)
    return loop.model


def parameter_groups(loop: Loop) -> object:
    for batch in loop.steps(60):
        fresh = nn.Parameter(torch.zeros(100, 1024))
        loop.optimizer.add_param_group({"params": [fresh]})
        fresh.grad = torch.ones_like(fresh)
        loop.train(batch)
    return loop.optimizer


def past_key_values(loop: Loop) -> object:
    past: list[torch.Tensor] = []
    with torch.no_grad():
        for batch in loop.steps(80):
            past += [loop.model[0](batch), loop.model[0](batch)]
    return past


def exceptions(loop: Loop) -> object:
    def check(batch: torch.Tensor, before: BaseException | None) -> None:
        hidden = loop.model[0](batch)
        raise ValueError(hidden.shape) from before

    last: BaseException | None = None
    for batch in loop.steps(80, LARGE):
        try:
            check(batch, last)
        except ValueError as error:
            last = error
        loop.train(batch)
    return last


def slow_in_noise(loop: Loop) -> object:
    kept = []
    last: list[torch.Tensor] = []
    for batch in loop.steps(400):
        loop.train(batch)
        last = [torch.zeros(loop.chance.randrange(2 * MIB)) for _ in range(2)]
        kept.append(torch.randn(MIB // 40))
    return kept, last


def rounding(loop: Loop) -> object:
    kept: list[torch.Tensor] = []
    for batch in loop.steps(100, lambda _: loop.chance.randrange(60, 68)):
        loop.train(batch)
        kept = [torch.zeros(loop.chance.randrange(1, 2000)) for _ in range(40)]
    return kept


def accumulation(loop: Loop) -> object:
    for step, batch in enumerate(loop.steps(90)):
        loop.loss(batch).backward()
        if step % 8 == 7:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    return loop


def cycles(loop: Loop) -> object:
    gc.disable()
    try:
        for step, batch in enumerate(loop.steps(100)):
            loop.train(batch)
            node: dict[str, Any] = {"tensor": torch.zeros(MIB // 4)}
            node["self"] = node
            if step % 12 == 11:
                gc.collect()
    finally:
        gc.enable()
    return loop


def other_optimizer(loop: Loop) -> object:
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)
    for step, batch in enumerate(loop.steps(100)):
        if step == 50:
            loop.optimizer = torch.optim.AdamW(loop.model.parameters())
        loop.train(batch)
    return loop


def lru(loop: Loop) -> object:
    @functools.lru_cache(maxsize=24)
    def mask(size: int) -> torch.Tensor:
        return torch.ones(size, 1024)

    for batch in loop.steps(160):
        loop.train(batch)
        mask(loop.chance.randrange(200, 400))
    return mask


def checkpoints(loop: Loop) -> object:
    for step, batch in enumerate(loop.steps(90)):
        loop.train(batch)
        if step % 20 == 19:
            with span("save"):
                state = copy.deepcopy(loop.model.state_dict())
                del state
    return loop


def cleared_by_epoch(loop: Loop) -> object:
    outputs: list[torch.Tensor] = []
    for step, batch in enumerate(loop.steps(125)):
        loop.train(batch)
        outputs.append(torch.zeros(MIB // 4))
        if step % 25 == 24:
            outputs.clear()
    return outputs


def window_of_losses(loop: Loop) -> object:
    recent: deque[torch.Tensor] = deque(maxlen=20)
    for batch in loop.steps(120):
        loss = loop.loss(batch)
        recent.append(loop.loss(batch))
        loop.update(loss)
    return recent


def hooks(loop: Loop) -> object:
    captured: list[torch.Tensor] = []
    loop.model[1].register_forward_hook(lambda _m, _i, output: captured.append(output.detach()))
    train(loop, 90)
    return captured


def full_cache(loop: Loop) -> object:
    cache: dict[int, torch.Tensor] = {}
    train(loop, 160, lambda *_: cache.update({loop.chance.randrange(16): torch.zeros(4 * MIB)}))
    return cache


def fetched_ahead(loop: Loop) -> object:
    ahead: deque[torch.Tensor] = deque(maxlen=12)
    train(loop, 90, lambda *_: ahead.append(torch.randn(loop.chance.randrange(200, 800), WIDTH)))
    return ahead


def sorted_lengths(loop: Loop) -> object:
    lengths = sorted(loop.chance.randrange(16, 1500) for _ in range(100))
    return train_on(loop, 100, lengths.__getitem__)


@dataclass(frozen=True)
class Case:
    name: str
    leaks: bool  # something in it keeps ever more memory
    run: Callable[[Loop], object]  # returns what outlives it
    what: str = "a step"  # the finding should call it


LEAKS: dict[str, Callable[[Loop], object]] = {
    "a list of losses with their graphs": losses_with_graphs,
    "a running total of losses": total_of_losses,
    "a cache by batch that never lets go": lambda loop: train(
        loop, 90, lambda _, batch: loop.model[1](loop.model[0](batch)).detach()
    ),
    "hooks that capture activations": hooks,
    "a hook registered anew at every step": hooks_registered_again,
    "a global list of batches": lambda loop: train(loop, 100, lambda _, batch: batch, rows=1024),
    "parameter groups that are added again": parameter_groups,
    "past keys and values of all conversations": past_key_values,
    "a chain of exceptions": exceptions,
    "closures over activations": lambda loop: train(
        loop, 90, lambda _, batch: loop.model[0](batch).mean, rows=LARGE
    ),
    "a callback that stores logits": lambda loop: train(
        loop, 90, lambda _, batch: {"logits": loop.model(batch).detach()}, rows=1024
    ),
    "checks that are kept every tenth step": lambda loop: train(
        loop, 150, lambda step, _: torch.randn(MIB) if step % 10 == 9 else None
    ),
    "0.1 MiB a step among batches of any size": slow_in_noise,
    "outputs of every evaluation": lambda loop: train(
        loop, 96, lambda step, _: evaluate(loop, 48) if step % 8 == 7 else None
    ),
    "a leak that begins after a third of the run": lambda loop: train(
        loop, 150, lambda step, batch: loop.model[0](batch) if step >= 50 else None
    ),
    "a list of losses while batches get longer": lambda loop: train(
        loop, 100, lambda *_: torch.randn(MIB // 8), rows=lambda step: 32 * (1 + step // 10)
    ),
    "snapshots of the weights": lambda loop: train(
        loop, 70, lambda *_: copy.deepcopy(loop.model.state_dict())
    ),
}
STILL: dict[str, Callable[[Loop], object]] = {
    "warm-up alone": lambda loop: train(loop, 60),
    "a short run, the warm-up most of it": lambda loop: train(loop, 12),
    "batches of any length": lambda loop: train_on(
        loop, 100, lambda _: loop.chance.randrange(16, 1024)
    ),
    "a curriculum: batches in buckets of rising length": lambda loop: train_on(
        loop, 120, lambda step: 128 * (1 + step // 12)
    ),
    "batches sorted by length": sorted_lengths,
    "workspaces of cuBLAS": lambda loop: train(
        loop, 80, lambda step, _: loop.workspace() if step in {0, 11, 40} else None
    ),
    "the allocator's rounding": rounding,
    "an evaluation in between": lambda loop: train(
        loop, 90, lambda step, _: evaluate(loop).clear() if step % 15 == 14 else None
    ),
    "gradient accumulation": accumulation,
    "cycles that only the collector frees": cycles,
    "an average of the weights from step 100 on": lambda loop: train(
        loop, 150, lambda step, _: copy.deepcopy(loop.model) if step == 100 else None
    ),
    "another optimizer from the middle on": other_optimizer,
    "a cache that fills and is full": full_cache,
    "an LRU cache": lru,
    "batches fetched ahead": fetched_ahead,
    "checkpoints, each made and written": checkpoints,
    "metrics that are cleared after each epoch": cleared_by_epoch,
    "a window over the last losses": window_of_losses,
    "three models, loaded one after another": lambda loop: train(
        loop, 120, lambda step, _: nn.Parameter(torch.zeros(16, MIB)) if step % 35 == 20 else None
    ),
    "numbers of losses, kept": lambda loop: [loop.train(batch) for batch in loop.steps(120)],
}
WHAT = {"outputs of every evaluation": "an evaluation"}

CASES = [
    *(Case(name, True, run, WHAT.get(name, "a step")) for name, run in LEAKS.items()),
    *(Case(name, False, run) for name, run in STILL.items()),
]
