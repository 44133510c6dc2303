"""What watching takes of the steps of a real ``Trainer.train()``, chart included, told apart step by step.

On shared machines speed changes by more than a per cent from second to second, so blocks of training that
take turns (`slowdown.py`) need hours to decide. Here neighbouring steps of one training are compared.
First it is watched as usual for a quarter of the time, which says how many steps are measured with their
phases, and how many share a span. After that each of every five steps, in random order, goes by in another
way: as one that is not watched; as one within a span that steps share; as one with such a span for itself;
as one with phases; and with the raw calls alone without which no exact peak of *each* step is known:
statistics, a reset and statistics where it begins, statistics where it ends. Results are means of the middle
60 % of the differences from the step that is not watched, and their bootstrap intervals. What that comes to
follows from how often each was done before.

What the poller's thread takes is its CPU time in the first quarter: it takes the interpreter from the
training for as long at most. Ticks, entering steps and feeding a chart are in it.

bert-large's shape on a GPU; on the CPU a small BERT beside invented counters of a GPU, so that an edge reads
as much. ``--layers`` makes shorter steps.
"""

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
from hfmem_widget.drivers.training.model_hooks import _Hook as OurHook
from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.guard import seconds_of_an_event
from hfmem_widget.monitor.grouping import Grouping
from hfmem_widget.monitor.process import threads_in_group

SETTLE_STEPS = 60
OFF, RAW, WITHIN, GROUP, WHOLE, ON = range(6)

Raw = tuple[Callable[[int], object], Callable[[int], object]]


class Turns(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Stands in for our own callback, and passes events on to it as the way of a step wants it."""

    def __init__(self, ours: MemoryCallback, raw: Raw, seconds: float) -> None:
        self._ours, self._seconds = ours, seconds
        self._statistics, self._reset = raw
        self._random = np.random.default_rng(0)
        self._turns: list[int] = []
        self._last = self._last_cpu = 0.0
        self._from = (0.0, 0.0, 0.0, 0, 0, 0)
        self._compares_from = self._deadline = math.inf
        self.way = ON
        self.polled = self.watched_seconds = self.counted = 0.0
        self.spans = (0, 0, 0)
        self.took: list[tuple[int, float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)

    @property
    def run(self) -> TrainingRun:
        """The run of the training."""
        assert self._ours._run is not None  # noqa: SLF001
        return self._ours._run  # noqa: SLF001

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a step in the way whose turn it is."""
        if self.way >= WITHIN:
            self._ours.on_step_begin(args, state, control, **more)
        if self.way == RAW:
            self._statistics(0)
            self._reset(0)
            self._statistics(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End it, and take the time since the last one ended."""
        if self.way >= WITHIN:
            self._ours.on_step_end(args, state, control, **more)
        elif self.way == RAW:
            self._statistics(0)
        now, cpu = time.perf_counter(), time.thread_time()
        if self._compares_from < math.inf and self.way != ON:
            self.took.append((self.way, now - self._last, cpu - self._last_cpu))
        if state.global_step == SETTLE_STEPS:
            self._from = now, cpu_of_poller(), self.run.grouping.spent, *self._counted()
            self._compares_from = now + self._seconds / 4
            self._deadline = now + self._seconds
        if now > self._compares_from:
            self._next(state.global_step + 1, control)
        self._last, self._last_cpu = time.perf_counter(), time.thread_time()

    def _counted(self) -> tuple[int, int, int]:
        polling = self.run.grouping.polling
        return polling.steps, polling.groups, polling.steps_with_phases

    def _next(self, number: int, control: Any) -> None:
        """Get ready for the next step, outside of what is timed."""
        run = self.run
        if self.way == ON:
            run._end("step")  # noqa: SLF001
            since, cpu, spent, *counted = self._from
            self.watched_seconds = time.perf_counter() - since
            self.polled = (cpu_of_poller() - cpu) / self.watched_seconds
            self.counted = (run.grouping.spent - spent) / self.watched_seconds
            steps, groups, whole = np.subtract(self._counted(), counted).tolist()
            self.spans = steps, groups, whole
            run.grouping = Forced(run.grouping)
        elif self.way == WITHIN:
            run._end("step")  # noqa: SLF001
        threads_in_group.pop(threading.get_ident(), None)
        if not self._turns:
            control.should_training_stop = time.perf_counter() > self._deadline
            self._turns = self._random.permutation([OFF, RAW, WITHIN, GROUP, WHOLE]).tolist()
        self.way = way = self._turns.pop()
        assert isinstance(run.grouping, Forced)
        run.grouping.way = way
        if way == WITHIN:
            run.step_begins(number)
        elif way in {OFF, RAW}:
            # The quick way out of our patches stays in: a CPU machine took 10 µs for a step's first, which
            # finds cold caches, and 1 µs for one soon after it.
            threads_in_group[threading.get_ident()] = [1]

    def on_pre_optimizer_step(self, *args: Any, **more: Any) -> None:
        """Pass it on where the step is watched."""
        if self.way >= WITHIN:
            self._ours.on_pre_optimizer_step(*args, **more)

    def on_optimizer_step(self, *args: Any, **more: Any) -> None:
        """Pass it on where the step is watched."""
        if self.way >= WITHIN:
            self._ours.on_optimizer_step(*args, **more)

    def rest_hooks(self, model: torch.nn.Module) -> None:
        """Have our hooks on a model do nothing where a step is not watched."""
        for hook in (*model._forward_pre_hooks.values(), *model._forward_hooks.values()):  # noqa: SLF001
            if isinstance(hook, OurHook):
                hook._unless = lambda: self.way < WITHIN  # noqa: SLF001


class Forced(Grouping):
    """Measures each step in the way that it is told."""

    def __init__(self, usual: Grouping) -> None:
        super().__init__(usual.polling, usual._poller, usual._options)  # noqa: SLF001
        self.way = WHOLE

    def begins(self, now: float) -> None:
        """Begin a step by itself, or a group that lasts until it is ended."""
        super().begins(now)
        self.is_group = self.way != WHOLE
        self.until = math.inf if self.way == WITHIN else now


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


def train(arguments: Any, folder: str, *, on_gpu: bool) -> tuple[Turns, str]:
    """Train for some seconds, and return what the steps took, and what was measured."""
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
        limited = session.polling.limited or "phases on all"
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
    took = turns.took[: len(turns.took) // 5 * 5]
    by_way = np.array(took).reshape(-1, 5, 3)
    order = by_way[..., 0].argsort(axis=1)
    in_order = np.take_along_axis(by_way[..., 1], order, axis=1)
    off = in_order[:, 0]
    length = float(np.median(off))
    polled = 100 * turns.polled
    rows = []
    steps, groups, with_phases = turns.spans
    for clock, column in (("", 1), (", CPU", 2)):
        each = np.take_along_axis(by_way[..., column], order, axis=1)
        raw, within, group, whole = (each[:, way] - each[:, 0] for way in range(1, 5))
        more = {
            "raw calls alone": raw,
            "a step within a group": within,
            "a step that is a group": group,
            "a step with phases": whole,
        }
        for name, seconds in more.items():
            share = measure.trimmed(100 * seconds / length).text(digits=2)
            rows.append([f"{name}{clock}", measure.trimmed(seconds).text(1e-6, 0), share])
        # A group costs what a step that is one costs, once; its other steps cost what steps within one do.
        thread = (
            (steps - groups - with_phases) * np.clip(within, -length, length)
            + groups * group
            + with_phases * whole
        ) / turns.watched_seconds
        on_thread = measure.trimmed(100 * thread)
        rows.append([f"the thread that trains, so{clock}", "", on_thread.text(digits=2)])
        both = f"{on_thread.middle + polled:.2f} (to {on_thread.high + polled:.2f})"
        rows.append([f"both{clock}", "", both])
    rows.append(["the poller's thread, CPU", "", f"{polled:.2f}"])
    rows.append(["the guard of one event", f"{1e6 * seconds_of_an_event():.0f}", ""])
    rows.append(["what the package itself counts of that thread", "", f"{100 * turns.counted:.2f}"])
    limited = f"{steps} steps, {groups} groups, {with_phases} with phases; {limited}"
    measure.report(
        f"{title} of {1e3 * length:.1f} ms, {len(off)} quintuples (mean of the middle 60 %, 95 % interval)",
        measure.machine("torch", "transformers", "accelerate"),
        ["what", "µs a step", f"% of it (goal: {ALLOWED:g})"],
        rows,
        notes=[limited],
        raw={"seconds": in_order.tolist(), "polled": turns.polled},
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
