"""What spans and samples say of what the memory is for."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.monitor.watched import Unexplained
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Sample, Session, SpanKind
from hfmem_widget.sources.counters import AllocatorSource, TensorSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.data.recorders import recorder_of
from tests.fakes.source import spanned
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.monitor.conftest import Bench

MIB = 1 << 20


class Counted(Attribution):
    """Counts what a test says is there."""

    def __init__(self, source: TensorSource) -> None:
        super().__init__(source, Subjects(dict))
        self.weights = self.gradients = 0.0
        self.knows_model = True
        self.edges: list[tuple[str, bool]] = []
        self.fault: Exception | None = None

    def at_edge(self, kind: SpanKind, *, begins: bool) -> None:
        self.edges.append((kind, begins))
        if self.fault is not None:
            raise self.fault
        if self.knows_model:
            self.source.count({"cuda:0": {"weights": self.weights, "gradients": self.gradients}})


class Card:
    """A monitor of one fake GPU."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.allocator = FakeAllocator()
        self.counted = Counted(TensorSource())
        entry_points = CudaAllocator({"torch": FakeTorch(self.allocator)})
        sources = [AllocatorSource(entry_points), self.counted.source]
        sampler = Sampler(sources, clock=self.bench.clock)
        self.monitor = self.bench.monitor_of(sampler, PeakLedger(entry_points), self.counted)
        self.session = self.monitor.begin(WatchOptions())

    def span(self, kind: SpanKind, label: str = "") -> AbstractContextManager[None]:
        return spanned(self.monitor, self.session, kind, label)

    def read(self, sample: Sample | None, metric: str) -> float:
        assert sample is not None
        return self.session.value(sample, f"cuda:0/{metric}")


@pytest.fixture
def card() -> Iterator[Card]:
    card = Card()
    card.counted.weights = 3 * MIB
    yield card
    card.monitor.shutdown()


def edges_of(session: Session, kind: str) -> list[tuple[Sample, Sample]]:
    return [
        (span.before, span.after)
        for span in session.spans
        if span.kind == kind and span.after is not None
    ]


def test_an_edge_has_the_counts_of_its_instant(card: Card) -> None:
    """The gradients of a step's edge are those of that instant, not of the tick that enters it."""
    with card.span("train"):
        card.allocator.alloc(10 * MIB)
        with card.span("step"):
            card.counted.gradients = 2 * MIB
            with card.span("optimizer"):
                card.counted.gradients = 1 * MIB
            card.counted.gradients = 0.0

    ((before, after),) = edges_of(card.session, "optimizer")
    assert card.read(before, "gradients") == 2 * MIB
    assert card.read(after, "gradients") == 1 * MIB


def test_bytes_unexplained_before_a_step_are_not_activations(card: Card) -> None:
    """Within a step the unexplained bytes are those of its beginning; outside there is no figure."""
    with card.span("train"):
        card.allocator.alloc(10 * MIB)
        with card.span("step"):
            card.allocator.alloc(5 * MIB)
            card.bench.pass_time(0.1)
            card.bench.pass_time(0.1)
            sample = card.session.last_sample

    (after_step,) = [after for _, after in edges_of(card.session, "step")]
    assert card.read(sample, "unattributed") == 7 * MIB
    assert card.read(sample, "allocated") == 15 * MIB
    assert card.read(after_step, "unattributed") == 7 * MIB
    assert math.isnan(card.read(card.session.last_sample, "unattributed"))


def test_a_part_of_a_step_does_not_begin_anew(card: Card) -> None:
    """What the forward pass made is an activation throughout the step."""
    with card.span("train"):
        card.allocator.alloc(10 * MIB)
        with card.span("step"):
            forward = card.monitor.open_span(card.session, "forward")
            card.allocator.alloc(5 * MIB)
            card.monitor.turn(card.session, forward.id, "backward")

    ((before, _),) = edges_of(card.session, "backward")
    assert card.read(before, "unattributed") == 7 * MIB


@pytest.mark.parametrize("labels", [("generate", "cell"), ("cell", "generate")])
def test_a_users_label_does_not_hide_a_generation(card: Card, labels: tuple[str, str]) -> None:
    """A watch or a span that is called `generate` is no generation."""
    card.allocator.alloc(3 * MIB)
    card.counted.knows_model = False
    for label in labels:
        card.monitor.open_span(card.session, "block", label)
    card.counted.knows_model, card.counted.weights = True, 3.0 * MIB
    with card.span("block", "generate"):
        card.allocator.alloc(5 * MIB)
        card.bench.pass_time(0.1)
        card.bench.pass_time(0.1)
        assert card.session.latest("cuda:0/unattributed") == 0.0


def test_steps_without_spans_begin_with_an_optimizers_step(card: Card) -> None:
    """Without spans, what comes after an optimizer's step is an activation of the next."""
    with card.span("cell"):
        card.allocator.alloc(10 * MIB)
        card.monitor.optimizer_stepped()
        card.allocator.alloc(5 * MIB)
        card.bench.pass_time(0.1)
        assert card.read(card.session.last_sample, "unattributed") == 7 * MIB


def test_a_fault_in_counting_costs_the_counting_only(card: Card) -> None:
    """Peaks and spans are as before, and one note says what is missing."""
    card.counted.fault = ZeroDivisionError("whatever")
    card.allocator.alloc(10 * MIB)
    with card.span("cell"):
        for _ in range(3):
            with card.span("block"):
                pass

    assert card.session.spans[0].peaks["cuda:0/allocated"].value == 10 * MIB
    assert len([note for note in card.session.notes if "ZeroDivisionError" in note]) == 1


def memory_before(card: Card) -> list[float]:
    column = card.session.index("cuda:0/before")
    assert column is not None
    return [float(value) / MIB for value in card.session.timeline.high[:, column]]


def test_memory_from_before_the_watch_is_shown_throughout(card: Card) -> None:
    """It never counts as unexplained, neither within steps nor outside."""
    card.allocator.alloc(10 * MIB)
    with card.span("cell"):
        card.allocator.alloc(5 * MIB)
        with card.span("step"):
            card.bench.pass_time(0.1)
            assert card.read(card.session.last_sample, "unattributed") == 5 * MIB

    assert set(memory_before(card)) == {7}


def test_freed_memory_from_before_the_watch_does_not_come_back(card: Card) -> None:
    """Later allocations are new, whatever their size."""
    block = card.allocator.alloc(10 * MIB)
    with card.span("cell"):
        card.allocator.free(block)
        for size in (4, 9):
            card.allocator.alloc(size * MIB)
            with card.span("step"):
                pass

    assert memory_before(card)[-1] == 1
    bases = [card.read(before, "unattributed") for before, _ in edges_of(card.session, "step")]
    assert bases == [0, 9 * MIB]


def test_a_sample_shows_freed_memory_from_before_the_watch(card: Card) -> None:
    """Memory from before the watch is never more than was in use at any sample since."""
    card.allocator.alloc(4 * MIB)
    block = card.allocator.alloc(20 * MIB)
    with card.span("cell"):
        card.allocator.free(block)
        card.bench.pass_time(0.1)
        card.allocator.alloc(30 * MIB)
        card.bench.pass_time(0.1)
        assert memory_before(card)[0] == 21
        assert memory_before(card)[-1] == 4


def test_weights_that_are_found_later_were_there_before_and_are_weights_now(card: Card) -> None:
    """Weights that are found later were there before; other allocations since are not taken for them."""
    card.counted.weights = 0.0
    card.allocator.alloc(10 * MIB)
    with card.span("cell"):
        card.counted.weights = 8 * MIB
        with card.span("train"):
            card.allocator.alloc(5 * MIB)

    assert memory_before(card)[0] == 10
    assert memory_before(card)[-1] == 2


def test_nothing_was_there_before_on_a_device_that_came_up_later(card: Card) -> None:
    """On a device that comes up later, all allocations are of the watch."""
    with card.span("cell"):
        card.allocator.alloc(10 * MIB)

    assert not any(value > 0 for value in memory_before(card))


def test_a_single_reading_has_no_memory_from_before(card: Card) -> None:
    """A single reading has no memory from before."""
    card.allocator.alloc(10 * MIB)
    session = card.monitor.begin(WatchOptions(), is_one_reading=True)
    with spanned(card.monitor, session, "cell"):
        pass

    assert session.index("cuda:0/before") is None


def test_a_tensor_that_is_written_later_is_not_new_memory() -> None:
    """A holder's bytes count from the beginning, although their pages come when they are written."""
    metrics = ("allocated", "weights", "untouched", "before", "unattributed")
    unexplained = Unexplained()
    unexplained.adopt(
        recorder_of((math.nan,) * len(metrics), keys=("cpu",), metrics=metrics).session
    )
    unexplained.fill({"cpu/allocated": 100.0, "cpu/weights": 64.0, "cpu/untouched": 60.0})
    unexplained.rebase({"cpu/allocated": 160.0, "cpu/weights": 64.0, "cpu/untouched": 0.0})

    assert unexplained.bases == {"cpu/unattributed": 0.0}
