"""How much longer a training run takes while it is watched at the default rate, paired, with an A/A control.

One process trains one model. Blocks of steps are timed in the order off, on, on, off, so that drift
cancels; a pair's ratio is (on + on) / (off + off). For the control "on" is off as well: its
interval says what this machine can tell apart. A watch is opened and closed outside the timed block
(bench/startup.py has that), and is quiet, or feeds a publisher whose messages are packed as JSON
and thrown away, as there is no page here. Against it: the memory tracker that transformers' Trainer
runs with skip_memory_metrics=False.

bert-large's shape in bfloat16 on a GPU, a small BERT on the CPU, with random weights and tokens,
and AdamW. On the CPU one core is left free. ipyexperiments is left out: its measuring is bound to
the cells of an IPython shell.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec

import measure
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers.trainer_utils import TrainerMemoryTracker

import hfmem_widget
from hfmem_widget.view.protocol import Buffers, Message
from hfmem_widget.view.publisher import Publisher

BLOCK_SECONDS = 0.3
TOKENS = 128
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}

CONTROL = "control: off against off"
TRACKER = "Trainer's skip_memory_metrics=False"
Seconds = tuple[float, float]
Condition = Callable[[], AbstractContextManager[object]]


@contextmanager
def watched_with_chart() -> Iterator[None]:
    """Watch, and make and pack every message that a chart would get."""
    with hfmem_widget.watch("bench", quiet=True) as session:
        session.subscribe(Publisher(session, _pack))
        yield


def _pack(message: Message, _buffers: Buffers) -> None:
    json.dumps(message)


class Tracker(AbstractContextManager[None]):
    """The Trainer's own memory tracker, around a block."""

    def __enter__(self) -> None:
        self.tracker = TrainerMemoryTracker(skip_memory_metrics=False)
        self.train()

    def __exit__(self, *_: object) -> None:
        self.evaluate()

    def train(self) -> None:
        """Start; the tracker knows the stage by the name of the method that calls it."""
        self.tracker.start()

    def evaluate(self) -> None:
        """Stop without making metrics."""
        self.tracker.peak_monitoring = False


CONDITIONS: dict[str, Condition] = {
    CONTROL: nullcontext,
    "hfmem_widget.watch": lambda: hfmem_widget.watch("bench", quiet=True),
    "hfmem_widget.watch, feeding a chart": watched_with_chart,
    TRACKER: Tracker,
}


class Training:
    """A model, its optimizer and a batch."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        if not self.on_gpu:
            # With a thread on every core, whoever else runs stalls all of them for seconds.
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
        torch.manual_seed(0)
        self.model = BertForSequenceClassification(BertConfig(**(LARGE if self.on_gpu else SMALL)))
        if self.on_gpu:
            self.model.to(torch.bfloat16)
        self.model.to(self.device)
        # At a rate of 0 every step does the same arithmetic: once a batch is learnt, gradients become
        # denormal, which CPUs compute many times slower.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        ids = torch.randint(1000, 30000, (4, TOKENS), device=self.device)
        self.batch = {
            "input_ids": ids,
            "labels": torch.zeros(4, dtype=torch.long, device=self.device),
        }
        self.steps = 1
        quickest = min(self.block(nullcontext)[0] for _ in range(20))
        self.steps = max(1, round(BLOCK_SECONDS / quickest))

    def block(self, condition: Condition) -> Seconds:
        """Train some steps under a condition; return their seconds, and the process' CPU seconds."""
        with condition():
            self._step()  # the tracker has emptied the allocator's cache
            self._finish()
            started, cpu_started = time.perf_counter(), time.process_time()
            for _ in range(self.steps):
                self._step()
            self._finish()
            return time.perf_counter() - started, time.process_time() - cpu_started

    def pair(self, condition: Condition) -> Seconds:
        """Return how many times as long the steps take, and the CPU time, from four blocks."""
        order = (nullcontext, condition, condition, nullcontext)
        before, on, on_again, after = np.array([self.block(one) for one in order])
        wall, cpu = (on + on_again) / (before + after)
        return float(wall), float(cpu)

    def _step(self) -> None:
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _finish(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="of each, at most")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    training = Training()
    ways = {name: partial(training.pair, condition) for name, condition in CONDITIONS.items()}
    # The tracker's cost is so large that a few pairs tell it, and so long that many would take minutes.
    few = {TRACKER: ways.pop(TRACKER)}
    ratios = measure.interleave(ways, arguments.pairs, within=100)
    notes = []
    if find_spec("psutil"):
        ratios |= measure.interleave(few, arguments.pairs // 6, within=20)
    else:
        notes.append(f"{TRACKER}: does nothing without psutil, not measured.")
    rows = []
    for name, pairs in ratios.items():
        wall, cpu = (measure.estimate(one).text(digits=2) for one in 100 * (np.array(pairs).T - 1))
        rows.append([name, str(len(pairs)), wall, cpu])
    where = torch.cuda.get_device_name(0) if training.on_gpu else "CPU"
    measure.report(
        "Slowdown of training at the default rate (median and 95 % interval)",
        f"{measure.machine('torch', 'transformers')}, {where}; blocks of {training.steps} steps",
        ["way", "pairs", "% slower than off", "% more CPU time"],
        rows,
        notes=notes,
        raw=ratios,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
