"""Short blocks of training that take turns, off, on, off: how long one is, what it took, and a way's row.

Imported by the scripts in the folder above.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common import measure

BLOCK_SECONDS = 0.1
"""One interval of the poller, so that a block has one tick in it wherever it begins."""

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


@dataclass(frozen=True, slots=True)
class Block:
    """What a block took: seconds, CPU seconds of the process, and the samples that came in it."""

    wall: float
    cpu: float
    samples: int


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
