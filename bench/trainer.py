"""How much longer a real ``Trainer.train()`` takes while it is watched, chart included, against a control.

`slowdown.py` trains by a loop of its own and tells what a Trainer's callbacks tell. This one has all that
a Trainer does beside that: its callbacks, accelerate's optimizer, the calls of its models. Short trainings
take turns, off, on, off, on, …; of each the first steps are untimed, in which the governor decides what it
measures. Each is held against the mean of the two beside it; the result is the mean of the middle 60 % of
these differences and its bootstrap interval.

bert-large's shape on a GPU; on the CPU a small BERT beside invented counters of a GPU, so that an edge reads
as much. ``--layers`` makes shorter steps.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import measure
from common.blocks import GPU_CORES, LARGE, Block, finish, report
from common.gpu_stand_in import give_torch_a_gpu, let_a_trainer_train, restart_with_nvml_stub
from common.ways import CONTROL, OFF, Way, watched, watched_with_chart
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
SETTLE_STEPS = 24
TIMED_SECONDS = 0.6
WAYS: dict[str, Way] = {
    CONTROL: OFF,
    "hfmem_widget, feeding a chart": Way(watched_with_chart),
    "hfmem_widget, all phases": Way(lambda: watched_with_chart("all")),
}


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Takes the time from the end of one step to the end of another."""

    def __init__(self) -> None:
        self.first = self.last = 0
        self.samples: Callable[[], int] = int
        self._began: tuple[float, float, int] = (0.0, 0.0, 0)
        self.took = Block(0.0, 0.0, 0)

    def on_step_end(self, _args: object, state: Any, _control: object, **_: object) -> None:
        """Begin after the last untimed step, and end after the last of all."""
        if state.global_step == self.first:
            finish()
            self._began = time.perf_counter(), time.process_time(), self.samples()
        elif state.global_step == self.last:
            finish()
            wall, cpu, samples = self._began
            self.took = Block(
                time.perf_counter() - wall, time.process_time() - cpu, self.samples() - samples
            )


class Training:
    """A model of so many layers and its data: so many sequences of so many tokens in a batch."""

    def __init__(
        self, batch: int, tokens: int, layers: int | None, folder: str, *, on_gpu: bool
    ) -> None:
        cores = sorted(os.sched_getaffinity(0))
        if not on_gpu:
            torch.set_num_threads(max(1, len(cores) - 1))
        elif len(cores) > 2 * GPU_CORES:
            os.sched_setaffinity(0, cores[-GPU_CORES:])
        torch.manual_seed(0)
        shape = LARGE if on_gpu else SMALL
        shape = shape | {"num_hidden_layers": layers or shape["num_hidden_layers"]}
        self._model = BertForSequenceClassification(BertConfig(**shape))
        self._data = [
            {"input_ids": torch.randint(1000, 30000, (tokens,)), "labels": 0} for _ in range(batch)
        ] * 1000
        # At a rate of 0 every step does the same arithmetic.
        self._arguments: dict[str, Any] = {
            "output_dir": folder,
            "per_device_train_batch_size": batch,
            "learning_rate": 0.0,
            "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": not on_gpu,
            "bf16": on_gpu,
        }
        self.steps = 10
        self.train(OFF)
        self.steps = max(4, round(TIMED_SECONDS / (self.train(OFF).wall / self.steps)))

    def train(self, way: Way) -> Block:
        """Train once, one way, and return what the timed steps took."""
        clock = Clock()
        clock.first, clock.last = SETTLE_STEPS, SETTLE_STEPS + self.steps
        arguments = TrainingArguments(max_steps=clock.last, **self._arguments)
        trainer = Trainer(self._model, arguments, train_dataset=self._data, callbacks=[clock])
        trainer.remove_callback(PrinterCallback)
        with way.block() as session:
            if session is not None:
                clock.samples = lambda: session.timeline.samples
            trainer.train()
        return clock.took


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="after which no round begins")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch")
    parser.add_argument("--tokens", type=int, default=128, help="in a sequence, at most 512")
    parser.add_argument("--layers", type=int, help="of the model; fewer make shorter steps")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    title = "A Trainer, watched"
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        restart_with_nvml_stub()
        give_torch_a_gpu(torch)
        let_a_trainer_train(torch)
        title += "; NO GPU: invented counters"
    with tempfile.TemporaryDirectory() as folder:
        training = Training(
            arguments.batch, arguments.tokens, arguments.layers, folder, on_gpu=on_gpu
        )
        with watched():  # what is imported and opened once
            pass
        gc.collect()
        gc.freeze()
        gc.disable()
        found: dict[str, list[tuple[Block, Block, Block]]] = {name: [] for name in WAYS}
        order = np.random.default_rng(0)
        deadline = time.monotonic() + arguments.seconds
        before = training.train(OFF)
        while time.monotonic() < deadline:
            for name in order.permutation(list(WAYS)):
                on = training.train(WAYS[str(name)])
                after = training.train(OFF)
                found[str(name)].append((before, on, after))
                before = after
                gc.collect()
    milliseconds = 1e3 * np.median([one.wall for three in found[CONTROL] for one in three])
    report(
        f"{title}, steps of {milliseconds / training.steps:.1f} ms, {training.steps} a block",
        measure.machine("torch", "transformers", "accelerate"),
        found,
        [],
        arguments.json,
    )


if __name__ == "__main__":
    main()
