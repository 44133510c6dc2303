"""How often the allocator is read and reset: what a tick and an edge cost where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Peak
from hfmem_widget.sources.counters import AllocatorSource
from tests.fakes.torch_cuda import FakeAllocator
from tests.scenes import FakeClock
from tests.unit.monitor.conftest import HandTicker


class Machine:
    """A watched cell that sees eight GPUs and uses the last, and how often their counters are touched."""

    def __init__(self) -> None:
        self.fake = FakeAllocator(devices=8)
        self.fake.alloc(1 << 20, device=7)
        self.clock = FakeClock()
        self.monitor = Monitor(
            Sampler([AllocatorSource(self.fake)], clock=self.clock),
            PeakLedger(self.fake),
            clock=self.clock,
            wall=self.clock,
            make_ticker=self.make_ticker,
        )
        self.session = self.monitor.begin(WatchOptions())
        self.monitor.open_span(self.session, "cell")

    def make_ticker(self, tick: Callable[[], object], interval: float) -> HandTicker:
        self.ticker = HandTicker(tick, interval, clock=self.clock)
        return self.ticker

    def counted(self, action: Callable[[], object]) -> tuple[int, int]:
        """Return how many readings and resets something takes."""
        self.fake.calls.clear()
        action()
        return self.fake.calls["stats"], self.fake.calls["reset_peak"]

    def tick(self) -> None:
        """Let time pass, and a tick come at its end."""
        self.clock.advance(0.1)
        self.ticker.step()


@pytest.mark.parametrize("kind", ["forward", "step", "block"])
def test_a_beginning_reads_that_in_use_twice_and_an_end_once(kind: str) -> None:
    """To open, to turn and to close; a sample of that instant takes no further reading."""
    machine = Machine()
    monitor, session = machine.monitor, machine.session
    spans = [0]

    def edge(make: Callable[[], int]) -> tuple[int, int]:
        return machine.counted(lambda: spans.append(make()))

    made = [
        edge(lambda: monitor.open_span(session, kind).id),  # type: ignore[arg-type]
        edge(lambda: monitor.turn(session, spans[-1], kind).id),  # type: ignore[arg-type]
        edge(lambda: monitor.close_span(session, spans[-1]).id),
    ]

    assert made == [(2, 1), (2, 1), (1, 0)]


def test_a_tick_reads_each_device_in_use_once_and_resets_none() -> None:
    """Also where the peaks of open spans are looked at, from the same reading."""
    machine = Machine()

    assert [machine.counted(machine.tick) for _ in range(12)] == [(1, 0)] * 12


def test_a_device_is_read_as_soon_as_it_is_used() -> None:
    """One that is first used within a span has its exact peak there."""
    machine = Machine()
    span = machine.monitor.open_span(machine.session, "step").id
    machine.fake.free(machine.fake.alloc(3 << 20, device=2))
    machine.monitor.close_span(machine.session, span)
    peaks = machine.session.span(span).peaks

    assert peaks["cuda:2/allocated"] == Peak(3 << 20, "exact")
    assert peaks["cuda:7/allocated"] == Peak(1 << 20, "exact")
