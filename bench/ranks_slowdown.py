"""How much longer the steps of a Trainer on several GPUs take while its ranks are followed.

torchrun starts the ranks below a watch, which reads what they write as a notebook's kernel does. They train
the same model again and again, followed and not, by turns and each round in another order. What is compared
is the mean time of a step of rank 0 once a training runs smoothly; every step waits for the slowest rank.
Without two GPUs two processes of the CPU train a small model.

    python bench/ranks_slowdown.py [--rounds 8] [--batch 32]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import measure
from common.blocks import LARGE
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import hfmem_widget
from hfmem_widget.drivers import follow

FIRST, LAST = 5, 45
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ALONE, FOLLOWED = "alone", "followed"


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences of 128 tokens."""

    def __len__(self) -> int:
        """Return more than any training here needs."""
        return 1 << 20

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        """Return one of them."""
        return {"input_ids": torch.arange(128) + at % 512, "labels": torch.tensor(at % 2)}


class Clock(TrainerCallback):
    """Takes the time between two steps."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def on_step_end(self, *args: Any, **_: Any) -> None:
        """Note when a step has ended, on the GPU too."""
        step = args[1].global_step
        if step in {FIRST, LAST}:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.at[step] = time.perf_counter()


def train(model: torch.nn.Module, arguments: TrainingArguments, way: str) -> float:
    """Train, followed or not, and return the seconds of a step."""
    if way == FOLLOWED:
        follow.begin(os.environ["HFMEM_RUN"])
    else:
        follow.end()
    clock = Clock()
    Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[clock]).train()
    return (clock.at[LAST] - clock.at[FIRST]) / (LAST - FIRST)


def be_a_rank(output: Path, batch: int, rounds: int) -> None:
    """Train by turns as one rank; the first writes what it has measured."""
    on_gpu = torch.cuda.is_available()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=f"{output}.out",
        max_steps=LAST,
        per_device_train_batch_size=batch,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        ddp_backend=None if on_gpu else "gloo",
        ddp_find_unused_parameters=False,
        dataloader_num_workers=2 if on_gpu else 0,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    model = BertForSequenceClassification(BertConfig(**(LARGE if on_gpu else SMALL)))
    train(model, arguments, ALONE)
    ways = {way: partial(train, model, arguments, way) for way in (ALONE, FOLLOWED)}
    found = measure.interleave(ways, rounds)
    if os.environ["RANK"] == "0":
        output.write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


def launched(world: int, batch: int, rounds: int) -> measure.Rounds:
    """Return what rank 0 has measured."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    options = ["--batch", str(batch), "--rounds", str(rounds)]
    with tempfile.TemporaryDirectory() as folder, hfmem_widget.watch(quiet=True) as session:
        output = Path(folder) / "found"
        rank = [__file__, "--rank", str(output), *options]
        subprocess.run([sys.executable, *torchrun, *rank], check=True)
        found: measure.Rounds = json.loads(output.read_text("utf-8"))
    seen = len(session.run.ranks)
    if seen != world:
        message = f"{seen} of {world} ranks were followed"
        raise RuntimeError(message)
    return found


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="sequences of a rank")
    parser.add_argument("--rank", type=Path, help="for this script itself")
    arguments = parser.parse_args()
    if arguments.rank is not None:
        be_a_rank(arguments.rank, arguments.batch, arguments.rounds)
        return
    gpus = torch.cuda.device_count()
    world = max(gpus, 2)
    found = launched(world, arguments.batch, arguments.rounds)
    alone = found[ALONE]
    rows = [
        [
            name,
            measure.estimate(values).text(1e-3, 2),
            measure.ratio(values, alone).text(digits=4),
        ]
        for name, values in found.items()
    ]
    measure.report(
        f"A step of a Trainer on {world} {'GPUs' if gpus > 1 else 'CPU processes'}",
        measure.machine("torch", "transformers"),
        ["ranks", "ms a step (median, 95 % interval)", "times as long"],
        rows,
        raw=found,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
