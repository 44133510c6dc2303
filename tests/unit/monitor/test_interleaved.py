"""Spans of steps, allocations, the user's own resets, ticks and threads, however they interleave."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.errors import WatchStateError
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Peak, Session, Span
from tests.unit.monitor.conftest import Bench

KEY = "cuda:0/allocated"
PAGE = 512


class Step:
    """A watched cell on a fake GPU that is in use, and what is true of it."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.monitor = self.bench.monitor
        self.gpu = self.bench.allocator
        self.gpu.alloc(PAGE)
        self.session: Session = self.monitor.begin(WatchOptions(interval=60.0))
        self.cell = self.monitor.open_span(self.session, "cell").id
        self.blocks: list[int] = []
        self.open: list[int] = []
        self.highest: dict[int, int] = {}
        self.users = self.gpu.allocated

    def begin(self) -> None:
        """Open a span within those that are open."""
        self.bench.clock.advance(0.001)
        self._opened(self.monitor.open_span(self.session, "forward", "forward").id)

    def end(self) -> None:
        """Close the innermost."""
        if self.open:
            self.bench.clock.advance(0.001)
            self.monitor.close_span(self.session, self.open.pop())

    def turn(self) -> None:
        """Go from the innermost to its neighbour."""
        if self.open:
            self.bench.clock.advance(0.001)
            closing = self.open.pop()
            self._opened(self.monitor.turn(self.session, closing, "backward").id)

    def alloc(self) -> None:
        """Allocate some blocks, of a size that differs from time to time."""
        self.blocks.append(self.gpu.alloc(PAGE * (1 + len(self.highest) + len(self.blocks))))
        for span_id in self.open:
            self.highest[span_id] = max(self.highest[span_id], self.gpu.allocated)
        self.users = max(self.users, self.gpu.allocated)

    def free(self) -> None:
        """Free a block."""
        if self.blocks:
            self.gpu.free(self.blocks.pop(0))

    def reset(self) -> None:
        """Reset the peak, as a user does."""
        self.gpu.user_reset(0)
        self.users = self.gpu.allocated

    def ask(self) -> None:
        """Read the peak, as a user does."""
        assert self.gpu.user_stats(0)["allocated_bytes"]["all"]["peak"] == self.users

    def look(self) -> None:
        """Read the spans."""
        assert {span.id for span in self.session.open_spans} == {self.cell, *self.open}

    def tick(self) -> None:
        """Let the poller come by."""
        self.bench.tickers[0].step()

    def _opened(self, span_id: int) -> None:
        self.open.append(span_id)
        self.highest[span_id] = self.gpu.allocated


ACTIONS = [*["begin", "end"] * 4, *["turn", "alloc", "free"] * 4, "reset", "ask", "look", "tick"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(ACTIONS), max_size=60))
def test_any_order_of_events_gives_exact_peaks(actions: list[str]) -> None:
    """Spans, allocations, the user's own resets and readings, and the poller, however they interleave."""
    step = Step()
    for action in actions:
        getattr(step, action)()
    while step.open:
        step.end()
    step.ask()
    known = {span.id: span.peaks[KEY] for span in step.session.spans[1:]}

    assert known == {one: Peak(high, "exact") for one, high in step.highest.items()}


def test_many_threads_lose_nothing() -> None:
    """Four threads make edges while a fifth reads: every span is entered, once."""
    step = Step()
    stop = threading.Event()

    def make() -> None:
        for _ in range(60):
            span = step.monitor.open_span(step.session, "forward", "")
            step.monitor.close_span(step.session, span.id)

    def read() -> None:
        while not stop.is_set():
            _ = step.session.spans

    reader = threading.Thread(target=read)
    makers = [threading.Thread(target=make) for _ in range(4)]
    for thread in (reader, *makers):
        thread.start()
    for thread in makers:
        thread.join()
    stop.set()
    reader.join()
    spans = step.session.spans

    assert len({span.id for span in spans}) == len(spans) == 241
    assert all(span.stop is not None for span in spans[1:])


def test_no_span_is_opened_while_its_session_is_ended() -> None:
    """A training on another thread would leave it open, and the poller running, for good."""
    step = Step()
    refused: list[WatchStateError] = []

    def next_step(_: Span) -> None:
        try:
            step.begin()
        except WatchStateError as error:
            refused.append(error)

    step.monitor.recorder(step.session).on_step(next_step)
    step.monitor.open_span(step.session, "step")
    step.monitor.end(step.session)

    assert len(refused) == 1
    assert not step.monitor.poller.alive
    assert not step.monitor.ledger.so_far()
