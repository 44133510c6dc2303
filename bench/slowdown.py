"""How much longer a training run takes while it is watched at the default rate, against an A/A control.

One process trains one model on one batch. Blocks of 0.3 s take turns: off, on, off, on, ..., each way once
a round, each round in another order. A block is held against the mean of the two beside it, which
are off, so that drift cancels; what is reported is the mean of the middle 60 % of these differences and
its bootstrap interval. For the control "on" is off as well: its interval says what this machine can tell
apart.

A watch is opened and closed outside the timed block, and what comes in its first 0.15 s is untimed, too: a
long run has that once (bench/startup.py has what they take). It is quiet, or feeds a publisher whose messages
are packed as JSON and thrown away, as there is no page here. How many samples came in a second is reported
beside it.
Garbage is collected between blocks only. Against it: the memory tracker that transformers' Trainer runs
with skip_memory_metrics=False; and, where they are installed, TraceML, stormlog, what Lightning's
DeviceStatsMonitor reads at both ends of a step, and what ipyexperiments does beside every cell.

bert-large's shape on a GPU, a small BERT on the CPU, with random weights and tokens, and AdamW.
With the default batch a GPU waits for Python, which is where we could be felt; with --batch 64 Python waits
for the GPU. On the CPU one core is left free.
"""

import gc
import re
import time
import warnings
from importlib.util import find_spec

import numpy as np
import torch
from common import measure
from common.blocks import BLOCK_SECONDS, LARGE, SMALL, Block, keep_to_some_cores, report, train
from common.ways import CONTROL, OFF, SLOW_WAYS, Way, watched, ways_for
from transformers import BertConfig, BertForSequenceClassification

from hfmem_widget.drivers.training import loop


class Training:
    """A model of so many layers, its optimizer and a batch of so many sequences of so many tokens."""

    def __init__(self, batch: int, tokens: int, dtype: torch.dtype, layers: int | None) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        keep_to_some_cores(on_gpu=self.on_gpu)
        torch.manual_seed(0)
        shape = LARGE if self.on_gpu else SMALL
        shape = shape | {"num_hidden_layers": layers or shape["num_hidden_layers"]}
        self.model = BertForSequenceClassification(BertConfig(**shape))
        if self.on_gpu:
            self.model.to(dtype)
        self.model.to(self.device)
        # At a rate of 0 every step does the same arithmetic: once a batch is learnt, gradients become
        # denormal, which CPUs compute many times slower.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        ids = torch.randint(1000, 30000, (batch, tokens), device=self.device)
        self.batch = {
            "input_ids": ids,
            "labels": torch.zeros(batch, dtype=torch.long, device=self.device),
        }
        self.steps = 1
        self.block(OFF)
        warm = [self.block(OFF).wall for _ in range(9)]
        self.steps = max(2, round(BLOCK_SECONDS / float(np.median(warm))))

    def block(self, way: Way) -> Block:
        """Train a block."""
        return train(way, self._step, self.steps)

    def compare(
        self, ways: dict[str, Way], pairs: int, within: float
    ) -> dict[str, list[tuple[Block, Block, Block]]]:
        """Return the blocks of every way, each with what was off before and after it."""
        deadline = time.monotonic() + within
        order = np.random.default_rng(0)
        found: dict[str, list[tuple[Block, Block, Block]]] = {name: [] for name in ways}
        before = self.block(OFF)
        for done in range(pairs):
            if done >= 3 and time.monotonic() > deadline:
                break
            for name in order.permutation(list(ways)):
                on = self.block(ways[str(name)])
                after = self.block(OFF)
                found[str(name)].append((before, on, after))
                before = after
            gc.collect()
        return found

    def _step(self, way: Way) -> None:
        with way.step() as next_phase:
            loss = self.model(**self.batch).loss
            next_phase("backward")
            loss.backward()
            next_phase("optimizer")
            self.optimizer.step()
            self.optimizer.zero_grad()


def wanted(name: str, only: str) -> bool:
    """Return whether a way is asked for; TraceML, which stays in the process, only by name."""
    return any(re.search(text, name) for text in only.split(",")) and (
        "TraceML" in only or "TraceML" not in name
    )


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--pairs", type=int, default=400, help="of each way, at most")
    parser.add_argument("--seconds", type=float, default=180.0, help="after which no round begins")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch")
    parser.add_argument("--tokens", type=int, default=128, help="in a sequence, at most 512")
    parser.add_argument("--layers", type=int, help="of the model; fewer make shorter steps")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument(
        "--only", default="", metavar="PATTERNS", help="ways with one of these, between commas"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    # A block is a part of a long run, in which what a loop may take beyond its share was used up at once.
    loop.ALLOWANCE = 0.0
    dtype = getattr(torch, arguments.dtype)
    training = Training(arguments.batch, arguments.tokens, dtype, arguments.layers)
    ways = {
        name: way
        for name, way in ways_for(training.model).items()
        if name == CONTROL or wanted(name, arguments.only)
    }
    with watched():  # what is imported and opened once
        pass
    gc.collect()
    gc.freeze()
    gc.disable()
    found = training.compare(ways, arguments.pairs, 0.9 * arguments.seconds)
    slow = {name: way for name, way in SLOW_WAYS.items() if wanted(name, arguments.only)}
    if find_spec("psutil"):
        found |= training.compare(slow, max(3, arguments.pairs // 6), 0.1 * arguments.seconds)
    notes = [f"Only what has {arguments.only!r} in its name."] if arguments.only else []
    notes += [f"{name}: not measured." for name in SLOW_WAYS if name not in found]
    step = 1e3 * float(np.median([before.wall for before, _, _ in found[CONTROL]])) / training.steps
    where = torch.cuda.get_device_name(0) if training.on_gpu else "CPU"
    report(
        "Slowdown of training at the default rate",
        f"{measure.machine('torch', 'transformers')}, {where}; "
        f"batch {arguments.batch} of {arguments.tokens} tokens; "
        f"blocks of {training.steps} steps of {step:.1f} ms",
        found,
        notes,
        arguments.json,
    )


if __name__ == "__main__":
    main()
