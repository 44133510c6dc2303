"""How much longer a Trainer's steps take on several GPUs while its ranks are followed, with an A/A control.

torchrun starts the ranks below a watch, which reads what they write as a notebook's kernel does. They train
one model in one training. Short blocks of its steps take turns: off, on, off, on, ..., and all ranks turn at
the same step. A block is held against the mean of the two beside it, which are off, as in bench/slowdown.py;
for the control "on" is off as well. *On* is all that a followed rank has: its watch, the Trainer's phases,
the recording, and a line a second into the run's directory.

What is reported is the time of rank 0: every step waits for the slowest rank. A block begins and ends with a
synchronisation and lasts at least as long as the time between two lines. Turning is untimed, and so are
the first two steps of a block. Garbage is collected between rounds only.

bert-large's shape in float32 on GPUs, where each step is the GPU's. Without two GPUs two processes of the CPU
train a small model.

    python bench/ranks_slowdown.py [--seconds 200] [--batch 4] [--tokens 512]
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import measure
from common.blocks import LARGE, Block, finish, report
from common.ways import CONTROL, goes_on
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import hfmem_widget
from hfmem_widget.drivers import follow
from hfmem_widget.drivers.trainer import MemoryCallback
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.session import Session

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
FOLLOWED = "the ranks are followed"
BLOCK_SECONDS = 1.2
"""A little more than the time between two lines of a rank."""

WARM_STEPS, UNTIMED, LEAST = 20, 2, 3
TOKENS_ON_CPU = 64


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """So many sequences that no training here sees them all."""

    def __init__(self, tokens: int) -> None:
        self._ids = torch.arange(tokens)

    def __len__(self) -> int:
        """Return how many there are."""
        return 1 << 24

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        """Return one of them."""
        return {"input_ids": self._ids + at % 512, "labels": torch.tensor(at % 2)}


def of_first_rank(value: float) -> float:
    """Return what rank 0 says, on every rank."""
    values = [value]
    torch.distributed.broadcast_object_list(values)
    return values[0]


class Turns(TrainerCallback):
    """Has a training's steps followed in some blocks, and times each block.

    `trainer` has to be set to its trainer. What it has found is in `found`, and how many of the timed
    steps were followed, of how many, in `followed` and `wanted`.
    """

    def __init__(self, seconds: float) -> None:
        self.trainer: Any = None
        self.found: dict[str, list[tuple[Block, Block, Block]]] = {CONTROL: [], FOLLOWED: []}
        self.followed = self.wanted = 0
        self._seconds = seconds
        self._ours = MemoryCallback()
        self._grouping: Any = None
        self._given: dict[str, Any] = {}
        self._is_over = False
        self._turns = self._steps()

    def on_train_begin(self, *_: Any, **given: Any) -> None:
        """Begin with no rank followed."""
        self._given = given
        next(self._turns)

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Go on at each step."""
        next(self._turns)
        control.should_training_stop = self._is_over

    def _steps(self) -> Generator[None]:
        """Measure; yield where a step is to be trained."""
        deadline = time.monotonic() + self._seconds
        yield
        took = []
        for _ in range(WARM_STEPS):
            began = time.perf_counter()
            yield
            finish()
            took.append(time.perf_counter() - began)
        step = of_first_rank(float(np.median(took[WARM_STEPS // 2 :])))
        # What is imported and made once.
        yield from self._block(FOLLOWED, 2)
        gc.collect()
        gc.freeze()
        gc.disable()
        order = np.random.default_rng(0)
        many = max(2, round(BLOCK_SECONDS / step))
        before = yield from self._block(CONTROL, many)
        while len(self.found[FOLLOWED]) < LEAST or of_first_rank(time.monotonic() < deadline):
            for way in order.permutation(list(self.found)):
                on = yield from self._block(str(way), many)
                after = yield from self._block(CONTROL, many)
                self.found[str(way)].append((before, on, after))
                before = after
            gc.collect()
        self._is_over = True
        yield

    def _block(self, way: str, many: int) -> Generator[None, None, Block]:
        """Train some steps, the first untimed, followed or not; return what they took."""
        session = self._begin() if way == FOLLOWED else None
        for _ in range(UNTIMED):
            yield
        finish()
        samples = session.timeline.samples if session is not None else 0
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in range(many):
            yield
        finish()
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        if session is not None:
            samples = session.timeline.samples - samples
            self._end()
            self.followed += min(many, session.steps.count)
            self.wanted += many
        return Block(wall, cpu, samples)

    def _begin(self) -> Session:
        """Follow this rank, and its training, as if both had just begun."""
        follow.begin(os.environ["HFMEM_RUN"])
        session = shared_monitor().current
        assert session is not None
        trainer, ours = self.trainer, self._ours
        trainer.add_callback(ours)
        ours.begins(trainer, trainer.args, may_watch=False)
        # A block is a part of a long run: it may take what the one before has left.
        run: Any = ours._run  # noqa: SLF001
        run.grouping = self._grouping = self._grouping or run.grouping
        goes_on(run.grouping)
        ours.on_train_begin(trainer.args, trainer.state, trainer.control, **self._given)
        return session

    def _end(self) -> None:
        self._ours.ends(None)
        self.trainer.remove_callback(self._ours)
        follow.end()


def be_a_rank(output: Path, options: Any) -> None:
    """Train as one rank; the first writes what it has measured."""
    on_gpu = torch.cuda.is_available()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=f"{output}.out",
        max_steps=1 << 20,
        learning_rate=0.0,  # every step does the same arithmetic
        per_device_train_batch_size=options.batch,
        use_cpu=not on_gpu,
        ddp_backend=None if on_gpu else "gloo",
        ddp_find_unused_parameters=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    follow.end()  # it was begun by joining the group
    model = BertForSequenceClassification(BertConfig(**(LARGE if on_gpu else SMALL)))
    turns = Turns(options.seconds)
    rows = Rows(options.tokens if on_gpu else TOKENS_ON_CPU)
    turns.trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[turns])
    turns.trainer.train()
    if os.environ["RANK"] == "0":
        found = {
            way: [[astuple(one) for one in three] for three in triples]
            for way, triples in turns.found.items()
        }
        note = f"{turns.followed} of {turns.wanted} timed steps were followed."
        output.write_text(json.dumps([found, note]), encoding="utf-8")
    torch.distributed.destroy_process_group()


def launched(world: int, options: Any) -> tuple[dict[str, list[tuple[Block, Block, Block]]], str]:
    """Return what rank 0 has measured, and how many of its steps were followed."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    given = [f"--{name}={getattr(options, name)}" for name in ("seconds", "batch", "tokens")]
    with tempfile.TemporaryDirectory() as folder, hfmem_widget.watch(quiet=True) as session:
        output = Path(folder) / "found"
        rank = [__file__, "--rank", str(output), *given]
        subprocess.run([sys.executable, *torchrun, *rank], check=True)
        found, note = json.loads(output.read_text("utf-8"))
    seen = len(session.run.ranks)
    if seen != world:
        message = f"{seen} of {world} ranks were followed"
        raise RuntimeError(message)
    return {
        way: [(Block(*before), Block(*on), Block(*after)) for before, on, after in triples]
        for way, triples in found.items()
    }, note


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--seconds", type=float, default=200.0, help="after which no round begins")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank")
    parser.add_argument("--tokens", type=int, default=512, help="of a sequence, on a GPU")
    parser.add_argument("--rank", type=Path, help="for this script itself")
    options = parser.parse_args()
    if options.rank is not None:
        be_a_rank(options.rank, options)
        return
    gpus = torch.cuda.device_count()
    world = max(gpus, 2)
    found, note = launched(world, options)
    off = [before.wall for before, _, _ in found[CONTROL]]
    where = torch.cuda.get_device_name(0) if gpus > 1 else "CPU"
    report(
        f"Slowdown of a Trainer on {world} {'GPUs' if gpus > 1 else 'CPU processes'}",
        f"{measure.machine('torch', 'transformers')}, {where}; batch {options.batch}; "
        f"blocks of {np.median(off):.2f} s",
        found,
        [note],
        options.json,
    )


if __name__ == "__main__":
    main()
