"""What watching takes of the steps of a real ``Trainer.train()``, chart included, told apart step by step.

On shared machines speed changes by more than a per cent from second to second, so blocks of training that
take turns (`slowdown.py`) need hours to decide. Here neighbouring steps of one training are compared.
Of every three, in random order, one is measured as usual, without phases; one is not, as if nothing was
watched; and one has the raw calls alone without which no exact peak of a step is known: statistics, a reset
and statistics where it begins, statistics where it ends. Results are means of the middle 60 % of the
differences from the step that is not measured, and their bootstrap intervals.

What the poller's thread takes is its CPU time before that, while all steps are measured: it takes the
interpreter from the training for as long at most. Ticks, entering steps and feeding a chart are in it.

bert-large's shape on a GPU; on the CPU a small BERT beside invented counters of a GPU, so that an edge reads
as much. ``--layers`` makes shorter steps.
"""

from __future__ import annotations

import gc
import math
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import measure
from common.blocks import ALLOWED, LARGE, SMALL, keep_to_some_cores
from common.gpu_stand_in import give_torch_a_gpu, let_a_trainer_train, restart_with_nvml_stub
from common.ways import watched_with_chart
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hfmem_widget.drivers.trainer import MemoryCallback, callback_of
from hfmem_widget.drivers.training import run as runs
from hfmem_widget.drivers.training.model_hooks import _Hook as OurHook

SETTLE_STEPS = 60
OFF, RAW, ON = range(3)

Raw = tuple[Callable[[int], object], Callable[[int], object]]


class Turns(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Stands in for our own callback, and tells it of every third step or so."""

    def __init__(self, ours: MemoryCallback, raw: Raw, seconds: float) -> None:
        self._ours, self._seconds = ours, seconds
        self._statistics, self._reset = raw
        self._random = np.random.default_rng(0)
        self._turns: list[int] = []
        self._way, self._last = ON, 0.0
        self._polled_from = (0.0, 0.0)
        self._compares_from = self._deadline = math.inf
        self._compares = False
        self.polled = 0.0
        self.took: list[tuple[int, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a step in the way whose turn it is."""
        if not self._turns:
            self._compares = time.perf_counter() > self._compares_from
            ways = [OFF, RAW, ON]
            self._turns = self._random.permutation(ways).tolist() if self._compares else [ON]
        self._way = way = self._turns.pop()
        if way == ON:
            self._ours.on_step_begin(args, state, control, **more)
        else:
            # What the quick way out of our patches takes is left in: it is a microsecond or two.
            runs.quiet[threading.get_ident()] = [1]
        if way == RAW:
            self._statistics(0)
            self._reset(0)
            self._statistics(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End it, and take the time since the last one ended."""
        if self._way == ON:
            self._ours.on_step_end(args, state, control, **more)
        elif self._way == RAW:
            self._statistics(0)
        now = time.perf_counter()
        if state.global_step == SETTLE_STEPS:
            self._polled_from = now, cpu_of_poller()
            self._compares_from = now + self._seconds / 4
            self._deadline = now + self._seconds
        if self._compares:
            self.took.append((self._way, now - self._last))
        elif self._compares_from < math.inf:
            since, cpu = self._polled_from
            self.polled = (cpu_of_poller() - cpu) / max(now - since, 1e-3)
        if now > self._deadline and not self._turns:
            control.should_training_stop = True
        self._last = time.perf_counter()

    def on_pre_optimizer_step(self, *args: Any, **more: Any) -> None:
        """Tell it of a step that is measured."""
        if self._way == ON:
            self._ours.on_pre_optimizer_step(*args, **more)

    def on_optimizer_step(self, *args: Any, **more: Any) -> None:
        """Tell it of a step that is measured."""
        if self._way == ON:
            self._ours.on_optimizer_step(*args, **more)

    def rest_hooks(self, model: torch.nn.Module) -> None:
        """Have our hooks on a model do nothing where a step is not measured."""
        for hook in (*model._forward_pre_hooks.values(), *model._forward_hooks.values()):  # noqa: SLF001
            if isinstance(hook, OurHook):
                hook._rests = lambda: self._way != ON  # noqa: SLF001


def cpu_of_poller() -> float:
    """Return the CPU seconds of the poller's thread."""
    for thread in threading.enumerate():
        if thread.name == "hfmem-poller" and thread.ident is not None:
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


class Begin(TrainerCallback):  # type: ignore[misc]
    """Puts the stand-in in our callback's place once a training has begun."""

    def __init__(self, raw: Raw, seconds: float) -> None:
        self._raw, self._seconds = raw, seconds
        self.trainer: Any = None
        self.turns: Turns | None = None

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        """Do it once; our hooks are on the model by now."""
        callbacks = self.trainer.callback_handler.callbacks
        ours = callback_of(self.trainer)
        if self.turns is None and ours is not None:
            self.turns = Turns(ours, self._raw, self._seconds)
            callbacks[callbacks.index(ours)] = self.turns
            self.turns.rest_hooks(self.trainer.model)
            assert ours._run is not None  # noqa: SLF001
            # It would take what lies between two steps that are measured for a part of the first: it rests.
            ours._run.governor.how, ours._run.governor.wants_all = "bare", True  # noqa: SLF001


def train(arguments: Any, folder: str, *, on_gpu: bool) -> tuple[Turns, str]:
    """Train for some seconds, and return what the steps took, and what the governor says."""
    keep_to_some_cores(on_gpu=on_gpu)
    torch.manual_seed(0)
    shape = LARGE if on_gpu else SMALL
    shape = shape | {"num_hidden_layers": arguments.layers or shape["num_hidden_layers"]}
    model = BertForSequenceClassification(BertConfig(**shape))
    data = [
        {"input_ids": torch.randint(1000, 30000, (arguments.tokens,)), "labels": 0}
        for _ in range(arguments.batch)
    ] * 100_000
    given = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=arguments.batch,
        learning_rate=0.0,  # then every step does the same arithmetic
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=not on_gpu,
        bf16=on_gpu,
    )
    # Before they are surrounded.
    raw: Raw = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats  # noqa: SLF001
    with watched_with_chart() as session:
        begin = Begin(raw, arguments.seconds)
        begin.trainer = trainer = Trainer(model, given, train_dataset=data, callbacks=[begin])
        trainer.remove_callback(PrinterCallback)
        gc.collect()
        gc.freeze()
        gc.disable()
        trainer.train()
        limited = session.polling.limited
    assert begin.turns is not None
    return begin.turns, limited


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch")
    parser.add_argument("--tokens", type=int, default=128, help="in a sequence, at most 512")
    parser.add_argument("--layers", type=int, help="of the model; fewer make shorter steps")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    title = "Steps of a Trainer"
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        restart_with_nvml_stub()
        give_torch_a_gpu(torch)
        let_a_trainer_train(torch)
        title += "; NO GPU: invented counters"
    with tempfile.TemporaryDirectory() as folder:
        turns, limited = train(arguments, folder, on_gpu=on_gpu)
    took = turns.took
    by_way = np.array([[way, seconds] for way, seconds in took]).reshape(-1, 3, 2)
    in_order = np.take_along_axis(by_way[..., 1], by_way[..., 0].argsort(axis=1), axis=1)
    off, raw, on = in_order.T
    length = float(np.median(off))
    more = {
        "raw calls alone": raw - off,
        "hfmem_widget, on the thread that trains": on - off,
        "beyond the raw calls": on - raw,
    }
    rows = []
    for name, seconds in more.items():
        share = measure.trimmed(100 * seconds / length)
        rows.append([name, measure.trimmed(seconds).text(1e-6, 0), share.text(digits=2)])
    polled = 100 * turns.polled
    every = float(np.mean([seconds for _, seconds in took]))
    rows.append(["the poller's thread, CPU", f"{1e4 * polled * every:.0f}", f"{polled:.2f}"])
    both = measure.trimmed(100 * (on - off) / length)
    rows.append(["both", "", f"{both.middle + polled:.2f} (to {both.high + polled:.2f})"])
    measure.report(
        f"{title} of {1e3 * length:.1f} ms, {len(off)} triples (mean of the middle 60 %, 95 % interval)",
        measure.machine("torch", "transformers", "accelerate"),
        ["what", "µs a step", f"% of it (goal: {ALLOWED:g})"],
        rows,
        notes=[limited] if limited else [],
        raw={"seconds": in_order.tolist(), "polled": turns.polled},
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
