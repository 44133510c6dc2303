"""How much longer a training run takes while it is watched at the default rate, paired, with an A/A control.

One process trains one model. Blocks of steps are timed in the order off, on, on, off, so that drift cancels;
a pair's ratio is (on + on) / (off + off). For the control "on" is off as well: its interval says what this machine
can tell apart. A watch is opened and closed outside the timed block (bench/startup.py has that), and is quiet, or
feeds a publisher whose messages are packed as JSON and thrown away, as there is no page here.
Against it: the memory tracker that transformers' Trainer runs with skip_memory_metrics=False.

bert-large's shape in bfloat16 on a GPU, a small BERT on the CPU, with random weights and tokens, and AdamW.
ipyexperiments is left out: its measuring is bound to the cells of an IPython shell.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import measure
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers.trainer_utils import TrainerMemoryTracker

import hfmem_widget
from hfmem_widget.view.publisher import Publisher

BLOCK_SECONDS = 0.8
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
Condition = Callable[[], AbstractContextManager[object]]


@contextmanager
def watched_with_chart() -> Iterator[None]:
    """Watch, and make and pack every message that a chart would get."""
    with hfmem_widget.watch("bench", quiet=True) as session:
        publisher = Publisher(session, lambda message, _buffers: json.dumps(message) and None)
        session.subscribe(publisher)
        yield


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
    "Trainer's skip_memory_metrics=False": Tracker,
}


class Training:
    """A model, its optimizer and a batch."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        torch.manual_seed(0)
        self.model = BertForSequenceClassification(BertConfig(**(LARGE if self.on_gpu else SMALL)))
        if self.on_gpu:
            self.model.to(torch.bfloat16)
        self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        ids = torch.randint(1000, 30000, (4, TOKENS), device=self.device)
        self.batch = {"input_ids": ids, "labels": torch.zeros(4, dtype=torch.long, device=self.device)}
        self.steps = 10
        for _ in range(3):
            self.block(nullcontext)
        self.steps = max(1, round(self.steps * BLOCK_SECONDS / self.block(nullcontext)))

    def block(self, condition: Condition) -> float:
        """Train some steps under a condition, and return their seconds."""
        with condition():
            self._finish()
            started = time.perf_counter()
            for _ in range(self.steps):
                self.model(**self.batch).loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            self._finish()
            return time.perf_counter() - started

    def pair(self, condition: Condition) -> float:
        """Return how many times as long the steps take, from four blocks."""
        seconds = [self.block(one) for one in (nullcontext, condition, condition, nullcontext)]
        return (seconds[1] + seconds[2]) / (seconds[0] + seconds[3])

    def _finish(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--pairs", type=int, default=12, help="of each condition; 12 take under 3 minutes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    training = Training()
    ways = {
        name: lambda condition=condition: training.pair(condition)
        for name, condition in CONDITIONS.items()
    }
    ratios = measure.interleave(ways, arguments.pairs)
    rows = [
        [name, str(len(values)), measure.estimate(100 * (np.array(values) - 1)).text(digits=2)]
        for name, values in ratios.items()
    ]
    where = torch.cuda.get_device_name(0) if training.on_gpu else "CPU"
    measure.report(
        "Slowdown of training at the default rate (median and 95 % interval)",
        f"{measure.machine('torch', 'transformers')}, {where}; blocks of {training.steps} steps",
        ["way", "pairs", "% slower than off"],
        rows,
        raw=ratios,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
