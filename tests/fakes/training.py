"""A training on a fake GPU, step by step, and the peaks that its spans must have by a trace."""

import math
from dataclasses import dataclass, field
from typing import Literal

from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session, Span
from tests.fakes.source import spanned
from tests.unit.monitor.conftest import Bench

KEY = "cuda:0/allocated"
PAGE = 512
OF_A_READING = 1e-4
"""Seconds that pass from one look at the clock to the next: an event takes as much."""

SHAPE = {"samples": 2.0, "longest": 8.0, "tokens": 16.0}


@dataclass
class Training:
    """A training on a fake GPU, on a clock that advances at every look."""

    phases: Literal["auto", "all"] = "auto"
    accumulates: bool = False
    steps: Literal["auto", "each"] = "auto"
    of_a_reading: float = OF_A_READING
    bench: Bench = field(default_factory=Bench)
    blocks: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench.allocator.alloc(PAGE)
        monitor = self.bench.monitor
        self.origin = self.bench.clock()
        options = WatchOptions(interval=60.0, phases=self.phases, steps=self.steps)
        self.session: Session = monitor.begin(options)
        monitor.open_span(self.session, "cell")
        batches = 8 if self.accumulates else 1
        self.run = TrainingRun(monitor, self.session, batches=batches, clock=self.clock)
        self.run.train_begins("train", {})
        self.backward, self.optimizer = self.run.backward_begins, self.run.optimizer_begins
        self.optimizer_ended, self.step_ended = self.run.optimizer_ended, self.run.step_ended
        self.log = self.run.take_figures
        self.number = 0
        self.allocated = PAGE
        self.trace = [(-math.inf, PAGE)]

    def clock(self) -> float:
        self.bench.clock.advance(self.of_a_reading)
        return self.bench.clock()

    def act(self, action: str) -> None:
        """Do one of the things of which a step, or the time between two steps, consists."""
        name, *figure = action.split()
        getattr(self, name)(*map(float, figure))

    def step(self) -> None:
        self.number += 1
        self.run.step_begins(self.number)

    def forward(self) -> None:
        self.run.forward_begins(SHAPE)
        self.run.forward_ended()

    def backward_ended(self) -> None:
        self.run.backward_ended("done")

    def alloc(self, pages: float) -> None:
        self.blocks.append((self.bench.allocator.alloc(PAGE * int(pages)), PAGE * int(pages)))
        self.traced(self.blocks[-1][1])

    def free(self, at: int = 0) -> None:
        if self.blocks:
            block, size = self.blocks.pop(at)
            self.bench.allocator.free(block)
            self.traced(-size)

    def traced(self, change: int) -> None:
        """Keep a trace of the allocated bytes from now on; nothing else happens meanwhile."""
        self.bench.clock.advance(1e-6)
        self.allocated += change
        self.trace.append((self.bench.clock() - self.origin, self.allocated))
        self.bench.clock.advance(1e-6)

    def replayed(self, span: Span) -> float:
        """Return the highest allocated bytes in a span by the trace."""
        stop = span.start + span.duration
        before = [size for time, size in self.trace if time <= span.start][-1]
        return max([before, *(size for time, size in self.trace if span.start < time <= stop)])

    def comes_and_goes(self, pages: float) -> None:
        self.alloc(pages)
        self.free(-1)

    def short_steps(self) -> None:
        """Make steps until some share a span, and the first such span has ended."""
        for _ in range(200):
            self.one_step(1e-4)
            if self.run.in_group:
                return
        raise AssertionError

    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    def tick(self) -> None:
        self.bench.tickers[0].step()

    def look(self) -> None:
        assert self.session.spans

    def reset(self) -> None:
        self.bench.allocator.user_reset(0)

    def evaluate(self, pages: float) -> None:
        with self.run.aside("evaluate", "evaluate"):
            self.comes_and_goes(pages)

    def epoch(self) -> None:
        self.run.epoch_ended()
        self.run.epoch_begins("epoch 2")

    def block(self, pages: float) -> None:
        with spanned(self.bench.monitor, self.session, "block", "generate"):
            self.comes_and_goes(pages)

    def by_hand(self, pages: float) -> None:
        with spanned(self.bench.monitor, self.session, "forward", "mine"):
            self.comes_and_goes(pages)

    def one_step(self, seconds: float, pages: int = 3) -> None:
        """Make a step that rises by some pages in its backward pass."""
        for action in (
            *("step", "forward", "backward", f"alloc {pages}", "free", "backward_ended"),
            *("optimizer", "optimizer_ended", f"wait {seconds}", "step_ended"),
        ):
            self.act(action)

    def ends(self) -> Session:
        self.run.ended()
        self.bench.monitor.end(self.session)
        return self.session


def of_kind(session: Session, kind: str) -> list[Span]:
    return [span for span in session.spans if span.kind == kind]
