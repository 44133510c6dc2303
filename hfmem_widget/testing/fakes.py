"""A clock and a source that do what they are told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hfmem_widget.session import Device, Series
from hfmem_widget.sources.allocator import Instant


class FakeClock:
    """Seconds that pass only when told to.

    Parameters
    ----------
    now : float
        Where it starts.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Let time pass and return the new time."""
        self.now += seconds
        return self.now


class FakeSource:
    """A `Source` whose readings are set by hand.

    Parameters
    ----------
    devices : sequence of Device
    series : sequence of Series
    values : sequence of float, optional
        What `read` returns until it is changed; NaN for every series where left out.
    name : str
    blocks, secondary : bool
        As in `Source`.

    Attributes
    ----------
    values : list of float
    failure : Exception or None
        Raised by `read` while set.
    known : sequence of float or None
        What `at` returns, of whatever instant.
    reads : int
        How often `read` was called.
    closed : bool
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
        self.name = name
        self.blocks = blocks
        self.secondary = secondary
        self.devices: tuple[Device, ...] = tuple(devices)
        self.series: tuple[Series, ...] = tuple(series)
        self.values = list(values) if values is not None else [math.nan] * len(self.series)
        self.notes: list[str] = []
        self.failure: Exception | None = None
        self.known: Sequence[float] | None = None
        self.reads = 0
        self.closed = False

    def read(self, now: float) -> Sequence[float]:  # noqa: ARG002  (as `Source` has it)
        """Return the values set, or raise the failure set."""
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return tuple(self.values)

    def at(self, instant: Instant) -> Sequence[float] | None:  # noqa: ARG002  (as `Source` has it)
        """Return what is known without reading."""
        return self.known

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True
