"""Steps that wait are entered together, and nobody can tell."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.session import Peak, Span, StepBatch
from hfmem_widget.session.model import same
from tests.unit.monitor.test_parts_of_spans import MIB, Card

KEY = "cuda:0/allocated"


class Training(Card):
    """Steps on a fake GPU, with tensors that are counted, and what else happens to a session."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [self.allocator.alloc(2 * MIB)]
        self.marker = self.monitor.marker(self.session)
        self.cell = self.monitor.open_span(self.session, "cell").id
        self.around = [self.monitor.open_span(self.session, "train").id]
        self.heard: list[Span] = []
        self.monitor.recorder(self.session).on_step(self.hear)
        self.highest: list[float] = []

    def hear(self, steps: StepBatch) -> None:
        """Take in steps that have ended."""
        self.heard += [steps.span(at) for at in range(len(steps))]

    def step(self, within: list[str], *, numbered: bool, is_looked_at: bool = False) -> None:
        """Make a step by its edges alone, in which something happens, and somebody may look."""
        self.bench.clock.advance(0.25)
        span_id = self.marker.begin("step")
        assert span_id is not None
        if is_looked_at:
            self.monitor.catch_up()
        self.highest.append(float(self.allocator.allocated))
        for action in within:
            self.happen(action)
            self.highest[-1] = max(self.highest[-1], float(self.allocator.allocated))
        self.bench.clock.advance(0.25)
        counts = {"tokens": 8.0, "largest_batch": 8.0} if numbered else {}
        assert self.marker.end(span_id, counts)

    def happen(self, action: str) -> None:
        """Do what has a name."""
        getattr(self, action)()

    def alloc(self) -> None:
        """Allocate a block."""
        self.blocks.append(self.allocator.alloc(MIB * (1 + len(self.blocks))))

    def free(self) -> None:
        """Free a block, if there is one."""
        if self.blocks:
            self.allocator.free(self.blocks.pop(0))

    def spike(self) -> None:
        """Allocate, and free at once."""
        block = self.allocator.alloc(64 * MIB)
        if self.highest:
            self.highest[-1] = max(self.highest[-1], float(self.allocator.allocated))
        self.allocator.free(block)

    def hold(self) -> None:
        """Find more weights."""
        self.counted.weights += MIB
        self.counted.at_edge("cell", begins=True)

    def reset(self) -> None:
        """Reset the peak, as a user does."""
        self.allocator.user_reset(0)

    def race(self) -> None:
        """Have another thread allocate while the counter is reset."""

        def once() -> None:
            self.allocator.before_reset = lambda: None
            self.allocator.free(self.allocator.alloc(512))

        self.allocator.before_reset = once

    def tick(self) -> None:
        """Let the poller come by."""
        self.bench.tickers[-1].step()

    def evaluate(self) -> None:
        """Begin what makes activations of its own, or end it."""
        if len(self.around) == 1:
            self.around.append(self.monitor.open_span(self.session, "evaluate").id)
        else:
            self.monitor.close_span(self.session, self.around.pop())

    def phases(self) -> None:
        """Make a step with a part."""
        step = self.monitor.open_span(self.session, "step", "step").id
        self.spike()
        forward = self.monitor.open_span(self.session, "forward", "forward").id
        self.alloc()
        self.monitor.close_span(self.session, forward)
        self.monitor.close_span(self.session, step)


WITHIN = st.lists(st.sampled_from(["alloc", "free", "spike", "hold", "reset"]), max_size=4)
BETWEEN = st.lists(
    st.sampled_from(["alloc", "free", "hold", "reset", "race", "tick", "evaluate", "phases"]),
    max_size=2,
)


STEPS = st.lists(st.tuples(WITHIN, BETWEEN, st.booleans()), max_size=10)


def trained(steps: list[Any], *, looks_within: bool = False, looks_after: bool = False) -> Training:
    """Return a training of some steps, in which somebody may look within each of them, or after it."""
    training = Training()
    for within, between, numbered in steps:
        training.step(within, numbered=numbered, is_looked_at=looks_within)
        if looks_after:
            training.monitor.catch_up()
        for action in between:
            training.happen(action)
    training.monitor.catch_up()
    training.monitor.shutdown()
    return training


@settings(max_examples=60)
@given(STEPS)
def test_steps_that_waited_are_as_if_each_was_entered_at_once(steps: list[Any]) -> None:
    """Samples, spans, peaks, phases, the table of steps, and what is told of them.

    Also as if their edges were entered one by one, but for a sample where each begins.
    """
    together, at_once = trained(steps), trained(steps, looks_after=True)
    edge_by_edge = trained(steps, looks_within=True)
    made, expected = together.session, edge_by_edge.session

    assert made == at_once.session
    assert same(together.heard, at_once.heard)
    assert same(made.spans, expected.spans)
    assert same(made.phases(together.cell), expected.phases(edge_by_edge.cell))
    assert made.steps == expected.steps


def test_the_peaks_of_steps_that_waited_are_their_own() -> None:
    """Each to the byte, and numbered in order; nothing else is in the table."""
    training = Training()
    for size in (3, 9, 5):
        training.step([*["alloc"] * size, "spike", *["free"] * size], numbered=True)
        training.happen("alloc")
    spans = [span for span in training.session.spans if span.kind == "step"]

    assert [span.counts["step"] for span in spans] == [1, 2, 3]
    assert [span.peaks[KEY] for span in spans] == [Peak(high, "exact") for high in training.highest]
    assert {type(span.peaks[KEY].value) for span in spans} == {float}
    assert [group.devices["cuda:0"].peak for group in training.session.steps] == [
        span.peaks[KEY].value for span in spans
    ]


def test_a_raced_reset_makes_bounds_of_those_steps_alone() -> None:
    """The step before and those after it are exact."""
    training = Training()
    for action in ("spike", "race", "spike"):
        training.step(["spike"], numbered=False)
        training.happen(action)
    training.step(["spike"], numbered=False)
    steps = [span for span in training.session.spans if span.kind == "step"]

    assert [span.peaks[KEY].certainty for span in steps] == [
        "exact", "exact", "at least", "exact",
    ]  # fmt: skip


def test_steps_longer_than_the_pace_leave_gaps() -> None:
    """Nothing was sampled within them, as their only samples are at their ends."""
    training = Training()
    training.bench.clock.advance(2.0)
    training.step([], numbered=False)
    training.step([], numbered=False)
    training.monitor.catch_up()

    assert training.session.timeline.gaps == [(0.0, 2.5), (2.5, 3.0)]


def test_a_series_that_appears_while_steps_wait_has_no_value_in_them() -> None:
    """Its column is there for the next."""
    training = Training()
    training.step([], numbered=False)
    training.counted.source.count({"cuda:1": {"weights": 1.0}})
    training.step([], numbered=False)
    training.monitor.catch_up()
    training.monitor.sampler.poll()
    training.monitor.catch_up()
    training.step([], numbered=False)
    first, *_, last = [span for span in training.session.spans if span.kind == "step"]
    value = training.session.value

    assert value(first.before, "cuda:1/weights") != value(first.before, "cuda:1/weights")
    assert value(last.before, "cuda:1/weights") == 1.0
