"""Blocks of training that take turns, off, on, off: how long one is, what it took, and a way's row.

Imported by the scripts in the folder above.
"""

import os
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch

from common import measure
from common.ways import Way

BLOCK_SECONDS = 0.3
"""Three intervals of the poller: what slows a machine down for seconds is in the blocks beside it, too."""

SETTLE_SECONDS = 0.15
"""Untimed, before a block: the first ticks of a watch find cold caches, and a long run has them once."""

ALLOWED = 1.0
"""Per cent that a watched run may take longer."""

GPU_CORES = 4
"""For the process, where there are more than twice as many: a thread that moves about loses its caches."""

LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}

SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}


def keep_to_some_cores(*, on_gpu: bool) -> None:
    """Train on a GPU from a few cores, and on the CPU on all but one.

    With a thread on every core, whoever else runs stalls all of them for seconds.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not on_gpu:
        torch.set_num_threads(max(1, len(cores) - 1))
    elif len(cores) > 2 * GPU_CORES:
        os.sched_setaffinity(0, cores[-GPU_CORES:])


@dataclass(frozen=True, slots=True)
class Block:
    """What a block took: seconds, CPU seconds of the process, and the samples that came in it."""

    wall: float
    cpu: float
    samples: int


def train(way: Way, step: Callable[[Way], object], steps: int) -> Block:
    """Train some steps one way, and some before that untimed."""
    with way.block() as session:
        settled = time.perf_counter() + SETTLE_SECONDS
        step(way)
        while time.perf_counter() < settled:
            step(way)
        finish()
        before = session.timeline.samples if session is not None else 0
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step(way)
        finish()
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        after = session.timeline.samples if session is not None else 0
    return Block(wall, cpu, after - before)


def finish() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def row_of(name: str, triples: list[tuple[Block, Block, Block]]) -> list[str]:
    """Return a way's row of the table."""
    took = np.array([[(block.wall, block.cpu) for block in triple] for triple in triples])
    before, on, after = took.transpose(1, 0, 2)
    wall, cpu = 100 * (2 * on / (before + after) - 1).T
    slower = measure.trimmed(wall)
    verdict = "undecided"
    if slower.high <= ALLOWED:
        verdict = "yes"
    elif slower.low > ALLOWED:
        verdict = "no"
    samples = sum(block.samples for _, block, _ in triples) / on[:, 0].sum()
    return [
        name,
        str(len(triples)),
        slower.text(digits=2),
        verdict,
        measure.trimmed(cpu).text(digits=2),
        f"{samples:.1f}",
    ]


def report(
    title: str,
    machine: str,
    found: dict[str, list[tuple[Block, Block, Block]]],
    notes: list[str],
    json_to: Path | None,
) -> None:
    """Print a table with a row for each way."""
    measure.report(
        f"{title} (mean of the middle 60 % and 95 % interval)",
        machine,
        [
            "way",
            "pairs",
            "% slower than off",
            f"at most {ALLOWED:g} %",
            "% more CPU time",
            "samples/s",
        ],
        [row_of(name, triples) for name, triples in found.items()],
        notes=notes,
        raw={
            name: [[astuple(one) for one in three] for three in triples]
            for name, triples in found.items()
        },
        json_to=json_to,
    )
