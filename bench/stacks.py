"""What `%%memwatch --stacks` costs, beside what it says of itself: the same steps with and without, in turn.

On a GPU the allocator records: BERT of six layers of bert-large's width, four sequences of 128 tokens. On the
CPU operators are followed: small tensors, where Python is all there is, and larger ones, where arithmetic
takes its time.

On a GPU also what a history without stacks costs, as a ring that would always be on: the same steps, not
watched, with and without it, and without it twice, as a control.

    python bench/stacks.py
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import measure
from transformers import BertConfig, BertForSequenceClassification

import hfmem_widget
from hfmem_widget.features.stacks.dispatch_tracker import OperatorTracker

ROUNDS = 15
RING_ROUNDS = 250
RING_EVENTS = 20_000
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


def on_the_cpu() -> None:
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
        report(name, found["plain"], found["followed"])


def report(
    name: str, plain: list[tuple[float, float]], followed: list[tuple[float, float]]
) -> None:
    """Print how much longer the steps of each round took, and what they say of it."""
    pairs = list(zip(plain, followed, strict=True))
    slower = measure.estimate([after[0] / before[0] for before, after in pairs])
    extra = measure.estimate([(after[0] - before[0]) / STEPS for before, after in pairs])
    shown = measure.estimate([after[1] / STEPS for _, after in pairs])
    base = measure.estimate([before[0] / STEPS for before, _ in pairs])
    print(
        f"{name}, {base.text(1e-3, 1)} ms a step: {slower.text(digits=2)} times the time; a step has "
        f"{extra.text(1e-3, 2)} ms more, and says {shown.text(1e-3, 2)} ms"
    )


def steps_on_the_gpu() -> Callable[[], float]:
    """Return a function that runs some steps of a training, and returns the seconds until all are done."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=6, num_attention_heads=16, intermediate_size=4096
    )
    model = BertForSequenceClassification(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {
        "input_ids": torch.randint(1000, 30000, (4, 128), device="cuda"),
        "labels": torch.zeros(4, dtype=torch.long, device="cuda"),
    }

    def steps() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return steps


def on_the_gpu(steps: Callable[[], float]) -> None:
    """Print a line for a training, and how long its history took to read."""
    reading, entries = [], []

    def watched(*, stacks: bool) -> tuple[float, float]:
        with hfmem_widget.watch(stacks=stacks, quiet=True) as session:
            took = steps()
        if session.stacks is None:
            return took, 0.0
        reading.append(session.stacks.recording.snapshot)
        entries.append(session.stacks.peaks[0].entries)
        return took, session.stacks.recording.seconds

    for _ in range(3):
        watched(stacks=False)
    found = measure.interleave(
        {"plain": lambda: watched(stacks=False), "recorded": lambda: watched(stacks=True)}, ROUNDS
    )
    report(torch.cuda.get_device_name(0), found["plain"], found["recorded"])
    print(f"{entries[-1]:,} entries read in {measure.estimate(reading).text(1e-3)} ms")


def as_a_ring(steps: Callable[[], float]) -> None:
    """Print what a history without stacks costs, and what the same steps differ by without one."""
    record: Any = torch.cuda.memory._record_memory_history  # noqa: SLF001

    def beside(*, ring: bool) -> tuple[float, float]:
        if ring:
            record("all", context=None, max_entries=RING_EVENTS)
        began = time.thread_time()
        took = steps()
        busy = time.thread_time() - began
        if ring:
            record(enabled=None)
        return took, busy

    ways = {"plain": False, "control": False, "ring": True}
    found = measure.interleave(
        {name: partial(beside, ring=ring) for name, ring in ways.items()}, RING_ROUNDS
    )
    for name in ("control", "ring"):
        for column, what in enumerate(("time", "CPU time")):
            pairs = zip(found[name], found["plain"], strict=True)
            more = [100 * (a[column] / b[column] - 1) for a, b in pairs]
            print(f"{name}, without stacks: {measure.trimmed(more).text(digits=2)} % more {what}")


def main() -> None:
    """Measure and print."""
    print(measure.machine("torch", "transformers"))
    if torch.cuda.is_available():
        steps = steps_on_the_gpu()
        on_the_gpu(steps)
        as_a_ring(steps)
    else:
        on_the_cpu()


if __name__ == "__main__":
    main()
