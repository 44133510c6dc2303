"""A source with scripted readings, and a span around a block."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.session import Device, Series, Session, SpanKind
from hfmem_widget.sources.allocator import Instant
from hfmem_widget.sources.source import Source


class FakeSource(Source):
    """A `Source` whose readings are set by hand: NaN by default.

    `read` raises `failure` while that is set; `meanwhile` happens at each reading. `at` returns what is
    `known`, of whatever instant.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        series: Sequence[Series],
        values: Sequence[float] | None = None,
        *,
        name: str = "fake",
        blocks: bool = False,
        secondary: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.blocks = blocks
        self.secondary = secondary
        self.devices: tuple[Device, ...] = tuple(devices)
        self.series: tuple[Series, ...] = tuple(series)
        self.values = list(values) if values is not None else [math.nan] * len(self.series)
        self.failure: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.known: Sequence[float] | None = None
        self.reads = 0
        self.closed = False

    def read(self, now: float) -> Sequence[float]:
        """Return the readings that were set, or raise the failure."""
        self.reads += 1
        self.meanwhile()
        if self.failure is not None:
            raise self.failure
        return tuple(self.values)

    def at(self, instant: Instant) -> Sequence[float] | None:
        """Return the known values without a reading."""
        return self.known

    def close(self) -> None:
        self.closed = True


@contextmanager
def spanned(monitor: Monitor, session: Session, kind: SpanKind, label: str = "") -> Iterator[None]:
    """Keep a span open for a block that ends without an error."""
    span = monitor.open_span(session, kind, label)
    yield
    monitor.close_span(session, span.id)
