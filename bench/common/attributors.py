"""Tools that attribute the memory of a training step, each around a step of one training.

Imported by `anatomy_peers.py`, which says what is taken from each.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from common.blocks import LARGE
from common.replayed import Truth, truth_of
from common.ways import NextPhase, step_in_spans, watched

NONE = "nothing"
WITH_SPANS = "hfmem_widget, with spans"
PLAIN = "hfmem_widget, plain loop"
MEM_TRACKER = "MemTracker (torch.distributed)"
PROFILER = "torch.profiler, memory categories"
ESTIMATE = "accelerate estimate-memory"
STORMLOG = "stormlog, tensor index"

SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 4000,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tool reports, in bytes; NaN where it claims nothing.

    Attributes
    ----------
    weights, gradients, optimizer : float
        Of the step as a whole.
    activations : float
        At the peak, with temporaries.
    """

    weights: float = math.nan
    gradients: float = math.nan
    optimizer: float = math.nan
    activations: float = math.nan


@dataclass(frozen=True, slots=True)
class Look:
    """A step under a tool: what it reports, the seconds of the step, and what else is worth a sentence."""

    figures: Figures
    seconds: float
    note: str = ""


Nothing = Callable[[], object]


class Training:
    """A BERT, its optimizer with states, and a batch."""

    def __init__(self, device: torch.device, *, small: bool) -> None:
        torch.manual_seed(0)
        shape, tokens = (SMALL, 128) if small else (LARGE, 512)
        self.config = BertConfig(**shape)
        self.device = device
        self.model = BertForSequenceClassification(self.config).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, fused=True)
        self.batch = {
            "input_ids": torch.randint(1000, self.config.vocab_size, (4, tokens), device=device),
            "labels": torch.zeros(4, dtype=torch.long, device=device),
        }
        for _ in range(3):
            self.step()
            self.clear()

    @property
    def key(self) -> str:
        """What sessions and profilers call the device."""
        return "cpu" if self.device.type == "cpu" else "cuda:0"

    def step(
        self, next_phase: NextPhase = lambda _: None, before_step: Nothing = lambda: None
    ) -> None:
        """Forward, backward, and the optimizer's step; the gradients stay."""
        loss = self.model(**self.batch).loss
        next_phase("backward")
        loss.backward()
        before_step()
        next_phase("optimizer")
        self.optimizer.step()

    def clear(self) -> None:
        """Free the gradients."""
        self.optimizer.zero_grad()

    def truth(self) -> Truth:
        """Return what a step really has in memory."""
        found = truth_of(self.step, self.model, self.optimizer, self.batch.values())
        self.clear()
        return found

    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Time a block; the list gets the seconds."""
        took: list[float] = []
        self._finish()
        started = time.perf_counter()
        yield took
        self._finish()
        took.append(time.perf_counter() - started)

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def under_nothing(training: Training) -> Look:
    """Make a step by itself."""
    with training.timed() as took:
        training.step()
    return Look(Figures(), took[0])


def under_us(training: Training, *, spans: bool) -> Look:
    """Watch a step, and one before it."""

    def step() -> None:
        with step_in_spans() if spans else nullcontext(lambda _: None) as next_phase:
            training.step(next_phase)

    with watched() as session:
        step()
        training.clear()
        with training.timed() as took:
            step()
    anatomy = session.anatomy("peak", training.key)
    note = " ".join([f"peak {anatomy.certainty}.", *anatomy.notes])
    figures = Figures(
        session.latest(f"{training.key}/weights"),
        session.latest(f"{training.key}/gradients"),
        session.latest(f"{training.key}/optimizer"),
        anatomy.bytes("activations"),
    )
    return Look(figures, took[0], note)


def under_mem_tracker(training: Training) -> Look:
    """Track a step."""
    from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType

    tracker = MemTracker()
    tracker.track_external(training.model, training.optimizer, *training.batch.values())
    before: dict[object, int] = {}

    def take() -> None:
        before.update(tracker.get_tracker_snapshot("current")[training.batch["labels"].device])

    with tracker, training.timed() as took:
        training.step(before_step=take)
    peak = tracker.get_tracker_snapshot("peak")[training.batch["labels"].device]
    figures = Figures(
        before[_MemRefType.PARAM],
        before[_MemRefType.GRAD],
        before[_MemRefType.OPT],
        peak[_MemRefType.ACT] + peak[_MemRefType.TEMP],
    )
    return Look(figures, took[0])


def under_profiler(training: Training) -> Look:
    """Profile a step with no more than its categories need, and sort its memory into them."""
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX, Category, MemoryProfileTimeline

    with (
        profile(
            activities=[ProfilerActivity.CPU],
            profile_memory=True,
            record_shapes=True,
            with_stack=True,
        ) as profiler,
        training.timed() as took,
    ):
        training.step()
    began = time.perf_counter()
    timeline = MemoryProfileTimeline(profiler._memory_profile())  # noqa: SLF001  (no public one)
    _, sizes = timeline._coalesce_timeline(training.key)  # noqa: SLF001
    sorting = time.perf_counter() - began
    # The first column is a zero that its plot stacks upon.
    by_time = np.array(sizes)[:, 1:]
    peak = by_time[by_time.sum(axis=1).argmax()]
    highest = by_time.max(axis=0)
    at = _CATEGORY_TO_INDEX
    figures = Figures(
        highest[at[Category.PARAMETER]],
        highest[at[Category.GRADIENT]],
        highest[at[Category.OPTIMIZER_STATE]],
        sum(
            peak[at[one]]
            for one in (Category.ACTIVATION, Category.TEMPORARY, Category.AUTOGRAD_DETAIL)
        ),
    )
    note = (
        f"{peak[at[None]]:,} bytes at its peak have no category; "
        f"{sorting:.1f} s more to sort its events."
    )
    return Look(figures, took[0], note)


def under_stormlog(training: Training) -> Look:
    """Have live tensors found and named in the middle of a step."""
    from stormlog.cuda_native_debug import build_cuda_tensor_attribution_index

    found: dict[str, object] = {}

    def take() -> None:
        found.update(build_cuda_tensor_attribution_index(training.device))

    with training.timed() as took:
        training.step(before_step=take)
    weights = {name for name, _ in training.model.named_parameters()}
    states = {key for state in training.optimizer.state.values() for key in state}
    sums = {"weights": 0, "optimizer": 0}
    entries = found["attributed_storage_pointers"]
    assert isinstance(entries, list)
    for entry in entries:
        names = set(entry["names"])
        kind = "weights" if names & weights else "optimizer" if names & states else ""
        if kind:
            sums[kind] += max(one["size_bytes"] for one in entry["tensors"])
    return Look(Figures(weights=sums["weights"], optimizer=sums["optimizer"]), took[0])


def estimated(training: Training) -> Look:
    """Estimate from the configuration."""
    from accelerate import init_empty_weights
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with init_empty_weights():
        model = BertForSequenceClassification(training.config)
    total, _ = calculate_maximum_sizes(model)
    usage = estimate_training_usage(total, "float32")
    note = f"its one figure, for Adam, is {max(usage.values()):,} bytes."
    return Look(Figures(usage["model"], usage["gradients"], usage["optimizer"]), math.nan, note)


Way = Callable[[Training], Look]


def ways_here(*, on_gpu: bool) -> tuple[dict[str, Way], list[str]]:
    """Return the tools that can be used here, and a line for each that cannot."""
    ways: dict[str, Way] = {
        NONE: under_nothing,
        WITH_SPANS: lambda training: under_us(training, spans=True),
        PLAIN: lambda training: under_us(training, spans=False),
        MEM_TRACKER: under_mem_tracker,
        PROFILER: under_profiler,
    }
    left_out = []
    if find_spec("accelerate"):
        ways[ESTIMATE] = estimated
    else:
        left_out.append(f"{ESTIMATE}: not installed.")
    if not find_spec("stormlog"):
        left_out.append(f"{STORMLOG}: not installed.")
    elif not on_gpu:
        left_out.append(f"{STORMLOG}: needs a GPU.")
    else:
        ways[STORMLOG] = under_stormlog
    return ways, left_out
