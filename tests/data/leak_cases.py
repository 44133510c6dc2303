"""Loops that leak and loops that do not, as people write them."""

from __future__ import annotations

import copy
import functools
import gc
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
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


class Loop:
    """A small model, its optimizer and its batches."""

    def __init__(self, mirror: Mirror | None = None, *, seed: int = 0, spans: bool = True) -> None:
        torch.manual_seed(seed)
        self._mirror = mirror
        self._spans = spans
        self.chance = random.Random(seed)
        self.model = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.Tanh()
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters())

    def steps(
        self, count: int, rows: Callable[[int], int] = lambda _: BATCH
    ) -> Iterator[torch.Tensor]:
        """Yield a batch for each step, within its span."""
        for step in range(count):
            with span("step", tokens=rows(step)) if self._spans else nullcontext():
                yield torch.randn(rows(step), WIDTH)

    def workspace(self) -> None:
        """Let cuBLAS take a workspace, where there is a GPU."""
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


@dataclass(frozen=True)
class Case:
    """One loop."""

    name: str
    leaks: bool  # something in it keeps ever more memory
    run: Callable[[Loop], object]  # returns what outlives it
    what: str = "a step"  # the finding should call it


CASES: list[Case] = []


def leak(
    name: str, what: str = "a step"
) -> Callable[[Callable[[Loop], object]], Callable[[Loop], object]]:
    """Enter a loop that leaks."""

    def enter(run: Callable[[Loop], object]) -> Callable[[Loop], object]:
        CASES.append(Case(name, leaks=True, run=run, what=what))
        return run

    return enter


def no_leak(name: str) -> Callable[[Callable[[Loop], object]], Callable[[Loop], object]]:
    """Enter a loop that does not leak."""

    def enter(run: Callable[[Loop], object]) -> Callable[[Loop], object]:
        CASES.append(Case(name, leaks=False, run=run))
        return run

    return enter


def evaluate(loop: Loop, batches: int = 3) -> list[torch.Tensor]:
    """Return the outputs of an evaluation, which is a span of its own."""
    with span("evaluate"), torch.no_grad():
        return [loop.model(torch.randn(2 * BATCH, WIDTH)) for _ in range(batches)]


def train(loop: Loop, steps: int, keep: Callable[[torch.Tensor], object] | None = None) -> object:
    """Train, and keep something of each step."""
    kept = []
    for batch in loop.steps(steps):
        loop.train(batch)
        if keep is not None:
            kept.append(keep(batch))
    return kept


def train_on(loop: Loop, steps: int, rows: Callable[[int], int]) -> object:
    """Train on batches of any size, and keep the last output."""
    output = None
    for batch in loop.steps(steps, rows):
        output = loop.model(batch)
        loop.update(output.square().mean())
    return output


@leak("a list of losses with their graphs")
def losses_with_graphs(loop: Loop) -> object:
    losses = []
    for batch in loop.steps(80, lambda _: LARGE):
        loss = loop.loss(batch)
        losses.append(loss + loop.loss(batch))
        loop.update(loss)
    return losses


@leak("a running total of losses")
def total_of_losses(loop: Loop) -> object:
    total: Any = 0
    for batch in loop.steps(80, lambda _: LARGE):
        loss = loop.loss(batch)
        total = total + (loop.model(batch) - batch).abs().mean()
        loop.update(loss)
    return total


@leak("a cache by batch that never lets go")
def growing_cache(loop: Loop) -> object:
    return train(loop, 90, lambda batch: loop.model[1](loop.model[0](batch)).detach())


@leak("hooks that capture activations")
def hooks(loop: Loop) -> object:
    captured: list[torch.Tensor] = []
    loop.model[1].register_forward_hook(lambda _m, _i, output: captured.append(output.detach()))
    for batch in loop.steps(90):
        loop.train(batch)
    return captured


@leak("a hook registered anew at every step")
def hooks_registered_again(loop: Loop) -> object:
    for batch in loop.steps(60):
        kept = torch.zeros(256, 1024)
        loop.model[0].register_forward_hook(lambda _m, _i, output, kept=kept: output + kept[0, 0])
        loop.train(batch)
    return loop.model


@leak("a global list of batches")
def list_of_batches(loop: Loop) -> object:
    seen = []
    for batch in loop.steps(100, lambda _: 1024):
        seen.append(batch)
        loop.train(batch)
    return seen


@leak("parameter groups that are added again")
def parameter_groups(loop: Loop) -> object:
    for batch in loop.steps(60):
        fresh = nn.Parameter(torch.zeros(100, 1024))
        loop.optimizer.add_param_group({"params": [fresh]})
        fresh.grad = torch.ones_like(fresh)
        loop.train(batch)
    return loop.optimizer


@leak("past keys and values of all conversations")
def past_key_values(loop: Loop) -> object:
    past: list[torch.Tensor] = []
    with torch.no_grad():
        for batch in loop.steps(80):
            past += [loop.model[0](batch), loop.model[0](batch)]
    return past


@leak("a chain of exceptions")
def exceptions(loop: Loop) -> object:
    def check(batch: torch.Tensor, before: BaseException | None) -> None:
        hidden = loop.model[0](batch)
        raise ValueError(hidden.shape) from before

    last: BaseException | None = None
    for batch in loop.steps(80, lambda _: LARGE):
        try:
            check(batch, last)
        except ValueError as error:
            last = error
        loop.train(batch)
    return last


@leak("closures over activations")
def closures(loop: Loop) -> object:
    later = []
    for batch in loop.steps(90, lambda _: LARGE):
        hidden = loop.model[0](batch)
        later.append(lambda hidden=hidden: hidden.mean())
        loop.train(batch)
    return later


@leak("a callback that stores logits")
def callback(loop: Loop) -> object:
    class Recorder:
        def __init__(self) -> None:
            self.history: list[dict[str, Any]] = []

        def on_step_end(self, **logs: Any) -> None:
            self.history.append(logs)

    recorder = Recorder()
    for batch in loop.steps(90, lambda _: 1024):
        output = loop.model(batch)
        loop.update(output.square().mean())
        recorder.on_step_end(logits=output.detach())
    return recorder


@leak("checks that are kept every tenth step")
def every_tenth(loop: Loop) -> object:
    kept = []
    for step, batch in enumerate(loop.steps(150)):
        loop.train(batch)
        if step % 10 == 9:
            kept.append(torch.randn(4 * MIB // 4))
    return kept


@leak("0.1 MiB a step among batches of any size")
def slow_in_noise(loop: Loop) -> object:
    kept = []
    last: list[torch.Tensor] = []
    for batch in loop.steps(400):
        loop.train(batch)
        last = [torch.zeros(loop.chance.randrange(2 * MIB)) for _ in range(2)]
        kept.append(torch.randn(MIB // 40))
    return kept, last


@leak("outputs of every evaluation", "an evaluation")
def in_evaluations(loop: Loop) -> object:
    outputs: list[torch.Tensor] = []
    for step, batch in enumerate(loop.steps(96)):
        loop.train(batch)
        if step % 8 == 7:
            outputs += evaluate(loop, 48)
    return outputs


@leak("a leak that begins after a third of the run")
def begins_late(loop: Loop) -> object:
    kept = []
    for step, batch in enumerate(loop.steps(150)):
        loop.train(batch)
        if step >= 50:
            kept.append(loop.model[0](batch))
    return kept


@leak("a list of losses while batches get longer")
def among_longer_batches(loop: Loop) -> object:
    kept = []
    for batch in loop.steps(100, lambda step: 32 * (1 + step // 10)):
        output = loop.model(batch)
        loop.update(output.square().mean())
        kept.append(torch.randn(MIB // 8))
    return kept


@leak("snapshots of the weights")
def snapshots(loop: Loop) -> object:
    return train(loop, 70, lambda _: copy.deepcopy(loop.model.state_dict()))


@no_leak("warm-up alone")
def warm_up(loop: Loop) -> object:
    return train(loop, 60)


@no_leak("a short run, the warm-up most of it")
def short_warm_up(loop: Loop) -> object:
    return train(loop, 12)


@no_leak("batches of any length")
def variable_lengths(loop: Loop) -> object:
    return train_on(loop, 100, lambda _: loop.chance.randrange(16, 1024))


@no_leak("a curriculum: batches in buckets of rising length")
def curriculum(loop: Loop) -> object:
    return train_on(loop, 120, lambda step: 128 * (1 + step // 12))


@no_leak("batches sorted by length")
def sorted_lengths(loop: Loop) -> object:
    lengths = sorted(loop.chance.randrange(16, 1500) for _ in range(100))
    return train_on(loop, 100, lengths.__getitem__)


@no_leak("workspaces of cuBLAS")
def workspaces(loop: Loop) -> object:
    for step, batch in enumerate(loop.steps(80)):
        loop.train(batch)
        if step in {0, 11, 40}:
            loop.workspace()
    return loop


@no_leak("the allocator's rounding")
def rounding(loop: Loop) -> object:
    kept: list[torch.Tensor] = []
    for batch in loop.steps(100, lambda _: loop.chance.randrange(60, 68)):
        loop.train(batch)
        kept = [torch.zeros(loop.chance.randrange(1, 2000)) for _ in range(40)]
    return kept


@no_leak("an evaluation in between")
def evaluations(loop: Loop) -> object:
    for step, batch in enumerate(loop.steps(90)):
        loop.train(batch)
        if step % 15 == 14:
            evaluate(loop)
    return loop


@no_leak("gradient accumulation")
def accumulation(loop: Loop) -> object:
    for step, batch in enumerate(loop.steps(90)):
        loop.loss(batch).backward()
        if step % 8 == 7:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    return loop


@no_leak("cycles that only the collector frees")
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


@no_leak("an average of the weights from step 100 on")
def moving_average(loop: Loop) -> object:
    average = None
    for step, batch in enumerate(loop.steps(150)):
        loop.train(batch)
        if step == 100:
            average = copy.deepcopy(loop.model)
    return average


@no_leak("another optimizer from the middle on")
def other_optimizer(loop: Loop) -> object:
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)
    for step, batch in enumerate(loop.steps(100)):
        if step == 50:
            loop.optimizer = torch.optim.AdamW(loop.model.parameters())
        loop.train(batch)
    return loop


@no_leak("a cache that fills and is full")
def full_cache(loop: Loop) -> object:
    cache: dict[int, torch.Tensor] = {}
    for batch in loop.steps(160):
        loop.train(batch)
        cache[loop.chance.randrange(16)] = torch.zeros(4 * MIB)
    return cache


@no_leak("an LRU cache")
def lru(loop: Loop) -> object:
    @functools.lru_cache(maxsize=24)
    def mask(size: int) -> torch.Tensor:
        return torch.ones(size, 1024)

    for batch in loop.steps(160):
        loop.train(batch)
        mask(loop.chance.randrange(200, 400))
    return mask


@no_leak("batches fetched ahead")
def fetched_ahead(loop: Loop) -> object:
    ahead: deque[torch.Tensor] = deque(maxlen=12)
    for batch in loop.steps(90):
        ahead.append(torch.randn(loop.chance.randrange(200, 800), WIDTH))
        loop.train(batch)
    return ahead


@no_leak("checkpoints, each made and written")
def checkpoints(loop: Loop) -> object:
    for step, batch in enumerate(loop.steps(90)):
        loop.train(batch)
        if step % 20 == 19:
            with span("save"):
                state = copy.deepcopy(loop.model.state_dict())
                del state
    return loop


@no_leak("metrics that are cleared after each epoch")
def cleared_by_epoch(loop: Loop) -> object:
    outputs: list[torch.Tensor] = []
    for step, batch in enumerate(loop.steps(125)):
        loop.train(batch)
        outputs.append(torch.zeros(MIB // 4))
        if step % 25 == 24:
            outputs.clear()
    return outputs


@no_leak("a window over the last losses")
def window_of_losses(loop: Loop) -> object:
    recent: deque[torch.Tensor] = deque(maxlen=20)
    for batch in loop.steps(120):
        loss = loop.loss(batch)
        recent.append(loop.loss(batch))
        loop.update(loss)
    return recent


@no_leak("three models, loaded one after another")
def three_models(loop: Loop) -> object:
    models = []
    for step, batch in enumerate(loop.steps(120)):
        loop.train(batch)
        if step % 35 == 20:
            models.append(nn.Parameter(torch.zeros(16, MIB)))
    return models


@no_leak("numbers of losses, kept")
def numbers(loop: Loop) -> object:
    return [loop.train(batch) for batch in loop.steps(120)]
