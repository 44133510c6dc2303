"""What it costs to count what the memory is for: one pass, and a training step.

Two models: one of Llama's shape (1.2 billion parameters in 146 tensors; with --small less than a million,
in as many), and a chain of 10,000 small tensors (with --small, its training has 2,000). Both are trained with
AdamW, fused.

A pass is what is done at an edge: all of it (look for models and optimizers, then count weights, buffers,
gradients and states) or the gradients alone. A naive loop over the same tensors stands against it, once by
what tensors say of themselves (wrong where they share, or stand for more than they keep), once by their
storages. The share of the time that counting may take is lifted for this.

A step is timed as bench/slowdown.py does it: a block of steps is held against the mean of the two beside
it. What is beside is either not watched at all, with none of our hooks in torch, or is watched without
counting. For the control both are not watched. The steps have spans, or are a plain loop in which an
optimizer's own hooks say where one ends. As differences of a few tenths of a per cent drown in that, the time
within counting is also taken by itself, in one long watch.
"""

import gc
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple

import numpy as np
import torch
from common import measure
from common.blocks import ALLOWED, Block, finish, row_of
from common.loops import FEWER_TENSORS, TENSORS, Loop, chain, described, device_for, llama
from common.ways import CONTROL, Way, step_in_spans, watched

from hfmem_widget.drivers.optimizers import leave_optimizers
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.session import Session, SpanKind
from hfmem_widget.sources.counters import TensorSource

AGAINST_OFF = "against no watch"
AGAINST_BLIND = "against a watch that does not count"

Pass = Callable[[], object]
Make = Callable[[], Loop]


class Blind(Attribution):
    """Counts nothing."""

    def at_edge(self, kind: SpanKind, *, begins: bool) -> None:
        """Look at nothing."""

    def optimizer_steps(self, optimizer: object) -> None:
        """Look at nothing."""

    def optimizer_stepped(self) -> None:
        """Look at nothing."""

    def gradients_cleared(self) -> None:
        """Look at nothing."""


class Clocked(Attribution):
    """Counts, and takes the time."""

    def __init__(self, source: TensorSource) -> None:
        super().__init__(source)
        self.took: list[float] = []

    def at_edge(self, kind: SpanKind, *, begins: bool) -> None:
        """Count, and take the time."""
        with self._clocked():
            super().at_edge(kind, begins=begins)

    def optimizer_steps(self, optimizer: object) -> None:
        """Count, and take the time."""
        with self._clocked():
            super().optimizer_steps(optimizer)

    def optimizer_stepped(self) -> None:
        """Count, and take the time."""
        with self._clocked():
            super().optimizer_stepped()

    def gradients_cleared(self) -> None:
        """Look, and take the time."""
        with self._clocked():
            super().gradients_cleared()

    @contextmanager
    def _clocked(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.took.append(time.perf_counter() - started)


@contextmanager
def attributed_by(attribution: Attribution) -> Iterator[None]:
    """Let another count than the one that does."""
    edges = shared_monitor()._edges  # noqa: SLF001  (there is no other need for another)
    usual, edges.attribution = edges.attribution, attribution
    try:
        yield
    finally:
        edges.attribution = usual


@contextmanager
def unwatched() -> Iterator[None]:
    """Take our hooks out of torch; the next watch puts them back."""
    leave_optimizers()
    yield


@contextmanager
def watched_blindly() -> Iterator[Session]:
    """Watch all but what the memory is for."""
    with attributed_by(Blind(shared_monitor().attribution.source)), watched() as session:
        leave_optimizers()
        yield session


OFF = Way(unwatched)
BLIND = Way(watched_blindly, step_in_spans)
PAIRS: dict[str, tuple[Way, Way]] = {
    CONTROL: (OFF, OFF),
    f"watch, steps with spans, {AGAINST_BLIND}": (Way(watched, step_in_spans), BLIND),
    f"watch, steps with spans, {AGAINST_OFF}": (Way(watched, step_in_spans), OFF),
    f"watch, plain loop, {AGAINST_BLIND}": (Way(watched), Way(watched_blindly)),
}
"""What is timed, and what it is held against."""


def passes(loop: Loop) -> dict[str, dict[str, Pass]]:
    """Return the ways of one full pass and of one over the gradients, the naive one first."""
    # By a clock that stands still, no pass takes too much of the time to be made.
    attribution = Attribution(subjects=Subjects(dict), clock=lambda: 0.0)
    attribution.follow(loop.model, loop.optimizer)
    parameters = list(loop.model.parameters())

    def states() -> Iterator[torch.Tensor]:
        return (one for state in loop.optimizer.state.values() for one in state.values())

    def gradients() -> Iterator[torch.Tensor]:
        return (one.grad for one in parameters if one.grad is not None)

    def all_tensors() -> Iterator[torch.Tensor]:
        yield from loop.model.parameters()
        yield from loop.model.buffers()
        yield from gradients()
        yield from states()

    return {
        "everything": {
            "naive: the sum of `nbytes`": lambda: sum_of_nbytes(all_tensors()),
            "naive: each storage once": lambda: sum_of_storages(all_tensors()),
            "hfmem_widget": lambda: attribution.at_edge("cell", begins=True),
        },
        "gradients": {
            "naive: the sum of `nbytes`": lambda: sum_of_nbytes(gradients()),
            "naive: each storage once": lambda: sum_of_storages(gradients()),
            "hfmem_widget": lambda: attribution.optimizer_steps(loop.optimizer),
        },
    }


def sum_of_nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return what tensors say that they come to."""
    return sum(one.nbytes for one in tensors)


def sum_of_storages(tensors: Iterable[torch.Tensor]) -> int:
    """Return what tensors keep, each storage once."""
    storages = (one.untyped_storage() for one in tensors)
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def microseconds(one: Pass) -> float:
    """Return how long a pass takes."""
    started = time.perf_counter()
    one()
    return 1e6 * (time.perf_counter() - started)


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect garbage only where it is asked for."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.collect()


def pass_rows(name: str, loop: Loop, within: float) -> tuple[list[list[str]], measure.Rounds]:
    """Measure the passes over a model; return the rows of the table, and all that was measured."""
    loop.keep_gradients()
    finish()
    name = described(name, loop)
    rows, raw = [], {}
    kinds = passes(loop)
    for kind, ways in kinds.items():
        for warm in ways.values():
            warm()
        timed = {way: lambda one=one: microseconds(one) for way, one in ways.items()}
        found = measure.interleave(timed, 300, within=within / len(kinds))
        base = found[next(iter(found))]
        for way, took in found.items():
            digits = 1 if np.median(took) < 1000 else 0
            rows.append(
                [
                    name,
                    kind,
                    way,
                    measure.estimate(took).text(digits=digits),
                    "1" if took is base else measure.ratio(took, base).text(digits=2),
                ]
            )
            raw[f"{name}, {kind}, {way}"] = took
    return rows, raw


def step_rows(
    name: str, loop: Loop, rounds: int, within: float
) -> tuple[list[list[str]], dict[str, list[list[tuple[float, float, int]]]]]:
    """Measure the pairs on a model; return the rows of the table, and all that was measured."""

    def compare(way: Way, base: Way) -> tuple[Block, Block, Block]:
        triple = loop.triple(way, base)
        gc.collect()
        return triple

    loop.fit_blocks()
    pairs = {pair: lambda ways=ways: compare(*ways) for pair, ways in PAIRS.items()}
    found = measure.interleave(pairs, rounds, within=within)
    step = 1e3 * float(np.median([before.wall for before, _, _ in found[CONTROL]])) / loop.steps
    name = described(name, loop)
    about = f"{name}: {loop.steps} steps of {step:.1f} ms"
    rows = [[about, *row_of(pair, triples)] for pair, triples in found.items()]
    raw = {
        f"{name}, {pair}": [[astuple(block) for block in triple] for triple in triples]
        for pair, triples in found.items()
    }
    return rows, raw


def share_row(name: str, loop: Loop, within: float) -> tuple[list[str], list[float]]:
    """Train in one watch for so many seconds; return the row of the table, and what counting took each time.

    The first two steps, at which everything is new, are left out.
    """
    clocked = Clocked(shared_monitor().attribution.source)
    way = Way(watched, step_in_spans)
    with attributed_by(clocked), watched():
        loop.step(way)
        loop.step(way)
        finish()
        clocked.took.clear()
        started, steps = time.perf_counter(), 0
        while time.perf_counter() < started + within:
            loop.step(way)
            steps += 1
        finish()
        wall, took = time.perf_counter() - started, list(clocked.took)
    inside = sum(took)
    row = [
        described(name, loop),
        f"{steps:,}",
        f"{1e3 * wall / steps:,.1f}",
        f"{1e6 * inside / steps:,.0f}",
        f"{1e3 * max(took):,.2f}",
        f"{100 * inside / wall:.2f}",
    ]
    return row, took


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--small", action="store_true", help="small tensors, on the CPU")
    parser.add_argument(
        "--llama",
        action="store_true",
        help="its training alone, on 4 x 512 tokens: the GPU is busy",
    )
    parser.add_argument("--pairs", type=int, default=300, help="of each way, at most")
    parser.add_argument(
        "--seconds", type=float, help="for all measuring; default 190, with --small 60"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    small = arguments.small or not torch.cuda.is_available()
    seconds = arguments.seconds or (60.0 if small else 190.0)
    device = device_for(small=small)
    torch.manual_seed(0)
    with watched():  # what is imported and opened once
        pass
    passed: list[list[str]] = []
    stepped: list[list[str]] = []
    shares: list[list[str]] = []
    raw: dict[str, object] = {}
    to_pass: dict[str, Make] = {
        "Llama's shape": lambda: llama(device, small=small),
        "chain": lambda: chain(device, TENSORS),
    }
    to_train = to_pass | {"chain": lambda: chain(device, FEWER_TENSORS if small else TENSORS)}
    if arguments.llama:
        to_pass = {}
        to_train = {"Llama's shape": lambda: llama(device, small=small, sequences=4, tokens=512)}
    for name, make in to_pass.items():
        with garbage_kept():
            rows, took = pass_rows(name, make(), 0.06 * seconds)
        passed += rows
        raw |= took
    for name, make in to_train.items():
        with garbage_kept():
            loop = make()
            rows, blocks = step_rows(name, loop, arguments.pairs, 0.72 * seconds / len(to_train))
            row, inside = share_row(name, loop, 0.06 * seconds)
            del loop
        stepped += rows
        shares.append(row)
        raw |= blocks
        raw[f"{name}, seconds within counting"] = inside
    where = torch.cuda.get_device_name(0) if device.type == "cuda" else "CPU"
    circumstances = f"{measure.machine('torch', 'transformers')}, {where}"
    measure.report(
        "One pass of counting (median and 95 % interval)",
        circumstances,
        ["model", "what", "way", "µs", "x the first"],
        passed,
    )
    print()
    measure.report(
        "Time within counting, in one watch whose steps have spans",
        circumstances,
        ["model", "steps", "ms a step", "µs counting a step", "longest, ms", "% of the time"],
        shares,
    )
    print()
    measure.report(
        "Slowdown of training (mean of the middle 60 % and 95 % interval)",
        circumstances,
        [
            "model, block",
            "way",
            "pairs",
            "% slower",
            f"at most {ALLOWED:g} %",
            "% more CPU time",
            "samples/s",
        ],
        stepped,
        raw=raw,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
