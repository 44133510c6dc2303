"""Of several GPUs, those that this process uses are read, and each figure is the GPU's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import SpanKind
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.monitor.conftest import Bench

GPUS = 3
PAGE = 512


@dataclass
class Truth:
    """What a span would have to say of each GPU."""

    before: list[int]
    highest: list[int]
    after: list[int] = field(default_factory=list)


class Run:
    """A watched cell in which CUDA is not up yet; its GPUs are used one by one."""

    def __init__(self) -> None:
        bench = self.bench = Bench()
        self.gpus = FakeAllocator(GPUS, initialized=False)
        self.torch = FakeTorch(self.gpus)
        allocator = CudaAllocator({"torch": self.torch})
        self.monitor = Monitor(
            Sampler([AllocatorSource(allocator), bench.host], clock=bench.clock),
            PeakLedger(allocator),
            clock=bench.clock,
            wall=bench.wall,
            cpu=bench.cpu,
            make_ticker=bench.make_ticker,
        )
        self.session = self.monitor.begin(WatchOptions(interval=60.0))
        self.cell = self.monitor.open_span(self.session, "cell").id
        self.now = [0] * GPUS
        self.blocks: list[tuple[int, int, int]] = []
        self.open: list[int] = []
        self.truth: dict[int, Truth] = {}

    def alloc(self, gpu: int, pages: int) -> None:
        """Allocate on a GPU, which opens it."""
        self.gpus.initialized = True
        self.blocks.append((self.gpus.alloc(PAGE * pages, gpu), gpu, PAGE * pages))
        self.now[gpu] += PAGE * pages
        for each in self.open:
            truth = self.truth[each]
            truth.highest = [*map(max, truth.highest, self.now)]

    def free(self) -> None:
        """Free what was allocated last."""
        if self.blocks:
            block, gpu, size = self.blocks.pop()
            self.gpus.free(block)
            self.now[gpu] -= size

    def begin(self, kind: SpanKind) -> None:
        """Open a span."""
        self._began(self.monitor.open_span(self.session, kind, kind).id)

    def turn(self) -> None:
        """End the innermost, and begin its neighbour."""
        if self.open:
            closing = self.open.pop()
            self.truth[closing].after = [*self.now]
            self._began(self.monitor.turn(self.session, closing, "backward", "backward").id)

    def end(self) -> None:
        """End the innermost."""
        if self.open:
            self.truth[self.open[-1]].after = [*self.now]
            self.monitor.close_span(self.session, self.open[-1])
            self.open.pop()

    def tick(self) -> None:
        """Have the poller tick."""
        self.bench.tickers[-1].step()

    def reset(self, gpu: int) -> None:
        """Have the user reset the peaks of a GPU."""
        if self.gpus.initialized:
            self.torch._C._cuda_resetPeakMemoryStats(gpu)

    def _began(self, span_id: int) -> None:
        self.open.append(span_id)
        self.truth[span_id] = Truth([*self.now], [*self.now])


ACTIONS = st.one_of(
    st.tuples(st.just("alloc"), st.integers(0, GPUS - 1), st.integers(1, 30)),
    st.tuples(st.just("free")),
    st.tuples(st.just("begin"), st.sampled_from(["step", "forward", "block"])),
    st.tuples(st.sampled_from(["turn", "end", "tick"])),
    st.tuples(st.just("reset"), st.integers(0, GPUS - 1)),
)


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=40))
def test_whatever_gpus_are_used_and_when_each_has_its_own_figures(
    actions: list[tuple[str, ...]],
) -> None:
    """Edges and exact peaks are those of the GPU, to the byte; a bound is no higher than the truth."""
    run = Run()
    for name, *arguments in actions:
        run.bench.clock.advance(0.001)
        getattr(run, name)(*arguments)
    while run.open:
        run.end()
    run.monitor.end(run.session)

    for span in run.session.spans:
        if span.id == run.cell:
            continue
        truth = run.truth[span.id]
        assert span.after is not None
        for gpu in range(GPUS):
            key = f"cuda:{gpu}/allocated"
            for sample, known in ((span.before, truth.before), (span.after, truth.after)):
                told = run.session.value(sample, key)
                assert told == known[gpu] or (math.isnan(told) and known[gpu] == 0)
            peak = span.peaks.get(key)
            if peak is None:
                assert truth.highest[gpu] == 0
            else:
                assert peak.value <= truth.highest[gpu]
                assert peak.certainty != "exact" or peak.value == truth.highest[gpu]


def test_where_all_was_freed_an_edge_says_so() -> None:
    """It does not say what the last tick has read."""
    run = Run()
    run.alloc(0, 8)
    run.tick()
    run.free()
    run.gpus.empty_cache()
    for _ in range(2):  # the peak of what was there before is reset once
        run.bench.clock.advance(0.01)
        run.begin("step")
        run.end()

    steps = [span for span in run.session.spans if span.kind == "step"]
    told = [run.session.value(step.after, "cuda:0/allocated") for step in steps if step.after]
    assert told == [0.0, 0.0]
