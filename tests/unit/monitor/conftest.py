"""A monitor without hardware and without a thread, whose clock advances only on request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Device, Series, Session, Span, SpanKind
from tests.fakes.source import FakeSource
from tests.fakes.torch_cuda import FakeAllocator
from tests.scenes import FakeClock


class HandTicker(Ticker):
    """A ticker without a thread, which ticks on request."""

    def start(self) -> None:
        self.started = True

    @property
    def alive(self) -> bool:
        """True between start and stop."""
        return getattr(self, "started", False) and not self.stopping

    def tick_now(self, timeout: float) -> bool:
        self.step()
        return True


@dataclass
class Bench:
    """A monitor with its sources, clock and session."""

    clock: FakeClock = field(default_factory=FakeClock)
    wall: FakeClock = field(default_factory=lambda: FakeClock(1e9))
    cpu: FakeClock = field(default_factory=FakeClock)
    allocator: FakeAllocator = field(default_factory=FakeAllocator)
    host: FakeSource = field(
        default_factory=lambda: FakeSource(
            [Device("cpu", "CPU", total=1000.0)],
            [Series("cpu", "allocated"), Series("cpu", "reserved")],
            [10.0, 20.0],
            name="host",
        )
    )
    driver: FakeSource = field(
        default_factory=lambda: FakeSource(
            [Device("cuda:0", "NVIDIA H200", "GPU-1", total=5000.0)],
            [Series("cuda:0", "device_used")],
            [600.0],
            name="nvml",
            blocks=True,
        )
    )
    tickers: list[HandTicker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sampler = Sampler([self.driver, self.host], clock=self.clock)
        self.ledger = PeakLedger(self.allocator)
        self.monitor = self.monitor_of(self.sampler, self.ledger)

    def monitor_of(
        self, sampler: Sampler, ledger: PeakLedger, attribution: Attribution | None = None
    ) -> Monitor:
        """Return a monitor by the clocks of this bench, whose tickers are stepped by hand."""
        return Monitor(
            sampler,
            ledger,
            attribution=attribution,
            clock=self.clock,
            wall=self.wall,
            cpu=self.cpu,
            make_ticker=self.make_ticker,
        )

    def make_ticker(self, tick: Callable[[], object], interval: float) -> Ticker:
        """Return a ticker that is stepped by hand, and remember it."""
        self.tickers.append(HandTicker(tick, interval, clock=self.clock))
        return self.tickers[-1]

    def watch(self, kind: SpanKind = "cell", **options: Any) -> tuple[Session, Span]:
        """Begin to watch, and return the session and its first span, which is open."""
        session = self.monitor.begin(WatchOptions(**options))
        return session, self.monitor.open_span(session, kind)

    def pass_time(self, seconds: float) -> None:
        """Let time pass and one tick come at its end."""
        self.clock.advance(seconds)
        self.wall.advance(seconds)
        self.tickers[-1].step()


@pytest.fixture
def bench() -> Bench:
    return Bench()
