"""How much longer a training run takes while it is watched at the default rate, against an A/A control.

One process trains one model on one batch. Short blocks of steps take turns: off, on, off, on, ..., each
way once a round, each round in another order. A block is held against the mean of the two beside it, which
are off, so that drift cancels; what is reported is the mean of the middle 60 % of these differences and
its bootstrap interval. For the control "on" is off as well: its interval says what this machine can tell
apart.

A watch is opened and closed outside the timed block (bench/startup.py has that), and is quiet, or feeds a
publisher whose messages are packed as JSON and thrown away, as there is no page here. As a block is hardly
longer than the time between two samples, it is reported beside how many came in a second of timed blocks.
Garbage is collected between blocks only. Against it: the memory tracker that transformers' Trainer runs
with skip_memory_metrics=False.

bert-large's shape in bfloat16 on a GPU, a small BERT on the CPU, with random weights and tokens, and AdamW.
With the default batch a GPU waits for Python, which is where we could be felt; with --batch 64 Python waits
for the GPU. On the CPU one core is left free. ipyexperiments is left out: its measuring is bound to the
cells of an IPython shell.
"""

from __future__ import annotations

import gc
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass
from importlib.util import find_spec

import measure
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers.trainer_utils import TrainerMemoryTracker

import hfmem_widget
from hfmem_widget.monitor import shared_monitor
from hfmem_widget.session import Session, SpanKind
from hfmem_widget.view.protocol import Buffers, Message
from hfmem_widget.view.publisher import Publisher

BLOCK_SECONDS = 0.1
"""One interval of the poller, so that a block has one tick in it wherever it begins."""

ALLOWED = 1.0
"""Per cent that a watched run may take longer."""

GPU_CORES = 4
"""For the process, where there are more than twice as many: a thread that moves about loses its caches."""

TOKENS = 128
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

CONTROL = "control: off against off"
TRACKER = "Trainer's skip_memory_metrics=False"

NextPhase = Callable[[SpanKind], object]
"""Called within a step where its forward part ends, and where its backward part does."""


@dataclass(frozen=True, slots=True)
class Way:
    """Something that a training run may be under.

    Attributes
    ----------
    block : callable
        Returns what to keep open around a block, untimed; entering it gives the session, if there is one.
    step : callable
        Returns what to keep open around each step, timed; entering it gives a `NextPhase`.
    """

    block: Callable[[], AbstractContextManager[Session | None]]
    step: Callable[[], AbstractContextManager[NextPhase]] = lambda: nullcontext(lambda _kind: None)


def watched() -> AbstractContextManager[Session]:
    """Watch, and show nothing."""
    return hfmem_widget.watch("bench", quiet=True)


@contextmanager
def watched_with_chart() -> Iterator[Session]:
    """Watch, and make and pack every message that a chart would get."""
    with watched() as session:
        session.subscribe(Publisher(session, _pack))
        yield session


@contextmanager
def step_in_spans() -> Iterator[NextPhase]:
    """Give a step and each of its parts a span in the session that is being watched."""
    monitor = shared_monitor()
    session = monitor.current
    assert session is not None
    with monitor.span(session, "step", "step"):
        part = monitor.open_span(session, "forward", "forward").id

        def next_phase(kind: SpanKind) -> None:
            nonlocal part
            part = monitor.turn(session, part, kind, kind).id

        yield next_phase
        monitor.close_span(session, part)


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


OFF = Way(nullcontext)
WAYS: dict[str, Way] = {
    CONTROL: OFF,
    "hfmem_widget.watch": Way(watched),
    "hfmem_widget.watch, feeding a chart": Way(watched_with_chart),
    "hfmem_widget.watch, with six edges a step": Way(watched, step_in_spans),
}
"""Where another arm belongs: anything that can be kept open around a block, or around each of its steps."""

SLOW_WAYS: dict[str, Way] = {TRACKER: Way(Tracker)}
"""What costs so much that a few pairs tell it, and so long that many would take minutes."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a block took: seconds, CPU seconds of the process, and the samples that came in it."""

    wall: float
    cpu: float
    samples: int


class Training:
    """A model, its optimizer and a batch of so many sequences."""

    def __init__(self, batch: int) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        cores = sorted(os.sched_getaffinity(0))
        if not self.on_gpu:
            # With a thread on every core, whoever else runs stalls all of them for seconds.
            torch.set_num_threads(max(1, len(cores) - 1))
        elif len(cores) > 2 * GPU_CORES:
            os.sched_setaffinity(0, cores[-GPU_CORES:])
        torch.manual_seed(0)
        self.model = BertForSequenceClassification(BertConfig(**(LARGE if self.on_gpu else SMALL)))
        if self.on_gpu:
            self.model.to(torch.bfloat16)
        self.model.to(self.device)
        # At a rate of 0 every step does the same arithmetic: once a batch is learnt, gradients become
        # denormal, which CPUs compute many times slower.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        ids = torch.randint(1000, 30000, (batch, TOKENS), device=self.device)
        self.batch = {
            "input_ids": ids,
            "labels": torch.zeros(batch, dtype=torch.long, device=self.device),
        }
        self.steps = 1
        warm = [self.block(OFF).wall for _ in range(40)]
        self.steps = max(2, round(BLOCK_SECONDS / float(np.median(warm[20:]))))

    def block(self, way: Way) -> Block:
        """Train some steps, the first of them untimed."""
        with way.block() as session:
            self._step(way)  # the tracker has emptied the allocator's cache
            self._finish()
            before = session.timeline.samples if session is not None else 0
            started, cpu_started = time.perf_counter(), time.process_time()
            for _ in range(self.steps):
                self._step(way)
            self._finish()
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
            after = session.timeline.samples if session is not None else 0
        return Block(wall, cpu, after - before)

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

    def _finish(self) -> None:
        if self.on_gpu:
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


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--pairs", type=int, default=400, help="of each way, at most")
    parser.add_argument("--seconds", type=float, default=180.0, help="after which no round begins")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch")
    parser.add_argument("--only", default="", metavar="TEXT", help="ways whose name has this in it")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    training = Training(arguments.batch)
    ways = {name: way for name, way in WAYS.items() if arguments.only in name or name == CONTROL}
    with watched():  # what is imported and opened once
        pass
    gc.collect()
    gc.freeze()
    gc.disable()
    found = training.compare(ways, arguments.pairs, 0.9 * arguments.seconds)
    notes = []
    if arguments.only not in TRACKER:
        notes.append(f"Only what has {arguments.only!r} in its name.")
    elif find_spec("psutil"):
        found |= training.compare(SLOW_WAYS, arguments.pairs // 6, 0.1 * arguments.seconds)
    else:
        notes.append(f"{TRACKER}: does nothing without psutil, not measured.")
    step = 1e3 * float(np.median([before.wall for before, _, _ in found[CONTROL]])) / training.steps
    where = torch.cuda.get_device_name(0) if training.on_gpu else "CPU"
    measure.report(
        "Slowdown of training at the default rate (mean of the middle 60 % and 95 % interval)",
        f"{measure.machine('torch', 'transformers')}, {where}; "
        f"blocks of {training.steps} steps of {step:.1f} ms",
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
            name: [[astuple(one) for one in three] for three in all_]
            for name, all_ in found.items()
        },
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
