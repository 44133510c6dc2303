"""The sampler makes one row of all sources, and reads each GPU no more often than is needed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import FINE_SHARE, Sampler
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Device, Peak, Series, SpanKind
from hfmem_widget.sources.allocator import Instant
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.source import FakeSource
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.scenes import FakeClock
from tests.unit.monitor.conftest import Bench

INSTANT = Instant(None, {})
"""Any instant: a `FakeSource` has its `known` figures at each."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


KNOWN = {"cuda:0/allocated": 10.0, "cuda:0/reserved": 20.0}


@pytest.fixture
def torch() -> FakeSource:
    devices = [Device("cuda:0", "NVIDIA H200")]
    series = [Series("cuda:0", "allocated"), Series("cuda:0", "reserved")]
    return FakeSource(devices, series, [1.0, 2.0], name="torch")


@pytest.fixture
def host() -> FakeSource:
    return FakeSource(
        [Device("cpu", "CPU")], [Series("cpu", "allocated")], [3.0], name="host", secondary=True
    )


@pytest.fixture
def sampler(torch: FakeSource, host: FakeSource, clock: FakeClock) -> Sampler:
    sampler = Sampler([torch, host], clock=clock)
    sampler.poll()
    return sampler


def test_known_values_are_not_read_again(sampler: Sampler, torch: FakeSource) -> None:
    """Values that were just read are in the row, and their source is not read."""
    reads, torch.known = torch.reads, [10.0, 20.0]

    assert sampler.edge(INSTANT) == {**KNOWN, "cpu/allocated": 3.0}
    assert sampler.poll(INSTANT) == {**KNOWN, "cpu/allocated": 3.0}
    assert torch.reads == reads


def test_reading_brings_a_new_device(torch: FakeSource, host: FakeSource, clock: FakeClock) -> None:
    """CUDA may come up between two readings: the source then reads, and the known values stand."""
    sampler, torch.known = Sampler([torch, host], clock=clock), [10.0, 20.0]

    assert sampler.edge(INSTANT) == {**KNOWN, "cpu/allocated": 3.0}
    assert torch.reads == 1


def test_series_stay_when_an_earlier_source_grows(torch: FakeSource, host: FakeSource) -> None:
    """New series come at the end, whichever source they are from."""
    later, torch.series, torch.values = torch.series, (), []
    sampler = Sampler([torch, host])
    before = sampler.poll()
    torch.series, torch.values = later, [1.0, 2.0]

    assert before == {"cpu/allocated": 3.0}
    assert sampler.poll() == {"cuda:0/allocated": 1.0, "cuda:0/reserved": 2.0, "cpu/allocated": 3.0}
    assert [each.key for each in sampler.series] == ["cpu/allocated", *KNOWN]


def test_an_edge_reads_the_host_anew(sampler: Sampler, torch: FakeSource, host: FakeSource) -> None:
    """At a cell's edge the host's figures are of that instant, however shortly before they were read."""
    torch.known, host.values = [1.0, 2.0], [4.0]

    assert sampler.edge(INSTANT)["cpu/allocated"] == 4.0


def test_beside_a_gpu_the_edges_of_steps_leave_the_host_to_the_poller(
    sampler: Sampler, torch: FakeSource, host: FakeSource, clock: FakeClock
) -> None:
    """There the host is read only where the poller has not done it for a second."""
    torch.known, host.values = [1.0, 2.0], [4.0]
    clock.advance(0.9)
    values = sampler.edge(INSTANT, is_fine=True)
    clock.advance(0.2)

    assert values["cpu/allocated"] == 3.0
    assert sampler.edge(INSTANT, is_fine=True)["cpu/allocated"] == 4.0


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [1, 2, 3]), (1e-4, [1, 1, 2])])
def test_without_a_gpu_fine_edges_are_read_as_often_as_reading_is_cheap(
    host: FakeSource, clock: FakeClock, seconds: float, expected: list[int]
) -> None:
    """A reading that takes long is not made again before it is a small part of the time."""
    sampler = Sampler([host], clock=clock)
    sampler.poll()
    host.meanwhile = lambda: clock.advance(seconds)
    before, reads = host.reads, []
    for passed in (1.0, 0.9 * seconds / FINE_SHARE, 0.2 * seconds / FINE_SHARE):
        clock.advance(passed)
        sampler.edge(share=0.005)
        reads.append(host.reads - before)

    assert reads == expected


def test_missing_values_shift_no_others(sampler: Sampler, torch: FakeSource) -> None:
    """A source that returns fewer values than it has series has those at the beginning."""
    torch.values = [7.0]

    assert sampler.poll() == {"cuda:0/allocated": 7.0, "cpu/allocated": 3.0}


def test_the_host_is_read_at_every_fifth_tick_while_cuda_is_up(
    sampler: Sampler, host: FakeSource, torch: FakeSource, clock: FakeClock
) -> None:
    """Beside a GPU the host's figures change more rarely; the GPU's are read at every tick."""
    hosts, gpus = host.reads, torch.reads
    for _ in range(10):
        clock.advance(0.1)
        sampler.poll()

    assert (host.reads - hosts, torch.reads - gpus) == (2, 10)


def test_without_a_gpu_the_host_is_read_at_every_tick(host: FakeSource, clock: FakeClock) -> None:
    """Where CUDA is not up, the host is what is watched."""
    sampler = Sampler([FakeSource([], [], name="torch"), host], clock=clock)
    for _ in range(10):
        clock.advance(0.1)
        sampler.poll()

    assert host.reads == 10


GPUS = 3
PAGE = 512


@dataclass
class Truth:
    """What a span would have to say of each GPU."""

    before: list[int]
    highest: list[int]
    after: list[int] = field(default_factory=list)


class Run:
    """A watched cell whose GPUs are all in use, or in which CUDA is not up yet: they are used one by one."""

    def __init__(self, *, is_up: bool = False) -> None:
        bench = self.bench = Bench()
        self.gpus = FakeAllocator(GPUS, initialized=is_up)
        self.now = (
            [self.gpus.alloc(PAGE, gpu) and PAGE for gpu in range(GPUS)] if is_up else [0] * GPUS
        )
        self.users = [*self.now]
        self.torch = FakeTorch(self.gpus)
        allocator = CudaAllocator({"torch": self.torch})
        sampler = Sampler([AllocatorSource(allocator), bench.host], clock=bench.clock)
        self.monitor = bench.monitor_of(sampler, PeakLedger(allocator))
        self.session = self.monitor.begin(WatchOptions(interval=60.0))
        self.cell = self.monitor.open_span(self.session, "cell").id
        self.blocks: list[tuple[int, int, int]] = []
        self.open: list[int] = []
        self.truth: dict[int, Truth] = {}

    def alloc(self, gpu: int, pages: int) -> None:
        """Allocate on a GPU, which opens it."""
        self.gpus.initialized = True
        self.blocks.append((self.gpus.alloc(PAGE * pages, gpu), gpu, PAGE * pages))
        self.now[gpu] += PAGE * pages
        self.users[gpu] = max(self.users[gpu], self.now[gpu])
        for each in self.open:
            truth = self.truth[each]
            truth.highest = [*map(max, truth.highest, self.now)]

    def free(self) -> None:
        if self.blocks:
            block, gpu, size = self.blocks.pop(0)
            self.gpus.free(block)
            self.now[gpu] -= size

    def begin(self, kind: SpanKind) -> None:
        self._began(self.monitor.open_span(self.session, kind, kind).id)

    def turn(self) -> None:
        """End the innermost, and begin its neighbour."""
        if self.open:
            closing = self.open.pop()
            self.truth[closing].after = [*self.now]
            self._began(self.monitor.turn(self.session, closing, "backward", "backward").id)

    def end(self) -> None:
        if self.open:
            closing = self.open.pop()
            self.truth[closing].after = [*self.now]
            self.monitor.close_span(self.session, closing)

    def tick(self) -> None:
        self.bench.tickers[-1].step()

    def reset(self, gpu: int) -> None:
        if self.gpus.initialized:
            self.torch._C._cuda_resetPeakMemoryStats(gpu)
            self.users[gpu] = self.now[gpu]

    def look(self, gpu: int) -> None:
        assert {span.id for span in self.session.open_spans} == {self.cell, *self.open}
        if self.gpus.initialized:
            peaks = self.torch._C._cuda_memoryStats(gpu)["allocated_bytes"]["all"]
            assert peaks["peak"] == self.users[gpu]

    def _began(self, span_id: int) -> None:
        self.open.append(span_id)
        self.truth[span_id] = Truth([*self.now], [*self.now])


ACTIONS = st.one_of(
    st.tuples(st.just("alloc"), st.integers(0, GPUS - 1), st.integers(1, 30)),
    st.tuples(st.just("free")),
    st.tuples(st.just("begin"), st.sampled_from(["step", "forward", "block"])),
    st.tuples(st.sampled_from(["turn", "end", "tick"])),
    st.tuples(st.sampled_from(["reset", "look"]), st.integers(0, GPUS - 1)),
)


@settings(max_examples=250)
@given(st.lists(ACTIONS, max_size=50), st.booleans())
def test_each_gpu_has_its_own_figures(actions: list[tuple[str, ...]], is_up: bool) -> None:
    """Edges and peaks are exact, the user's too; where CUDA comes up meanwhile, a peak may be a bound."""
    run = Run(is_up=is_up)
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
            for sample, values in ((span.before, truth.before), (span.after, truth.after)):
                reading = run.session.value(sample, key)
                assert reading == values[gpu] or (math.isnan(reading) and values[gpu] == 0)
            peak = span.peaks.get(key)
            if peak is None:
                assert truth.highest[gpu] == 0
            else:
                assert peak.value <= truth.highest[gpu]
                is_exact = is_up or peak.certainty == "exact"
                assert not is_exact or peak == Peak(truth.highest[gpu], "exact")


def test_where_all_was_freed_an_edge_says_so() -> None:
    """An edge after everything was freed has 0 bytes, not the last tick's reading."""
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
    reading = [run.session.value(step.after, "cuda:0/allocated") for step in steps if step.after]
    assert reading == [0.0, 0.0]


class Machine:
    """A watched cell that sees eight GPUs and uses the last, and how often their counters are touched."""

    def __init__(self) -> None:
        self.fake = FakeAllocator(devices=8)
        self.fake.alloc(1 << 20, device=7)
        self.bench = Bench()
        sampler = Sampler([AllocatorSource(self.fake)], clock=self.bench.clock)
        self.monitor = self.bench.monitor_of(sampler, PeakLedger(self.fake))
        self.session = self.monitor.begin(WatchOptions())
        self.monitor.open_span(self.session, "cell")

    def counted(self, action: Callable[[], object]) -> tuple[int, int]:
        """Return how many readings and resets something takes."""
        self.fake.calls.clear()
        action()
        return self.fake.calls["stats"], self.fake.calls["reset_peak"]


@pytest.mark.parametrize("kind", ["forward", "step", "block"])
def test_a_beginning_reads_the_gpu_in_use_twice_and_an_end_once(kind: SpanKind) -> None:
    """Opening and turning read the counters twice, closing once; a sample of that instant reads none."""
    machine = Machine()
    monitor, session = machine.monitor, machine.session
    edges = (
        lambda: monitor.open_span(session, kind),
        lambda: monitor.turn(session, session.open_spans[-1].id, kind),
        lambda: monitor.close_span(session, session.open_spans[-1].id),
    )

    assert [machine.counted(edge) for edge in edges] == [(2, 1), (2, 1), (1, 0)]


def test_a_tick_reads_each_device_in_use_once_and_resets_none() -> None:
    """A tick reads each device in use once, for its sample and for the peaks of open spans."""
    machine = Machine()

    assert {machine.counted(lambda: machine.bench.pass_time(0.1)) for _ in range(12)} == {(1, 0)}


def test_a_device_is_read_as_soon_as_it_is_used() -> None:
    """A device that is first used within a span has its exact peak there."""
    machine = Machine()
    span = machine.monitor.open_span(machine.session, "step").id
    machine.fake.free(machine.fake.alloc(3 << 20, device=2))
    machine.monitor.close_span(machine.session, span)
    peaks = machine.session.span(span).peaks

    assert peaks["cuda:2/allocated"] == Peak(3 << 20, "exact")
    assert peaks["cuda:7/allocated"] == Peak(1 << 20, "exact")
