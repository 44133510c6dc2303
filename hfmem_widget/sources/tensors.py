"""The bytes of models' and optimizers' tensors as series.

`monitor.attribution` counts them on the user's thread, at the edges of steps: training changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hfmem_widget.session import HELD, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.series import USUAL
from hfmem_widget.sources.allocator import Instant
from hfmem_widget.sources.source import Source

Held = Mapping[str, float]
"""Bytes by `HELD` metric."""


class TensorSource(Source):
    """The bytes of weights, buffers, gradients and optimizer states on every device that has any."""

    name = "tensors"

    def __init__(self) -> None:
        super().__init__()
        self.latest: Sequence[float] = ()
        """The values of `series`; a new sequence at each count, so that those of an instant can be kept."""
        self.counted: Mapping[str, Held] = {}
        """The newest count, by device key."""
        self.before_reading: Callable[[], None] = lambda: None
        """Removes freed tensors from the count; called on any thread."""

    def count(self, held: Mapping[str, Held]) -> None:
        """Replace the count; a known device that is missing in it has no such tensors now."""
        if held == self.counted:
            return
        described = {(series.device, series.metric) for series in self.series}
        self.counted = {**{key: {} for key in self.counted}, **held}
        # The series come first: a reader in between finds too few values, never too many.
        self.series += tuple(
            Series(key, metric)
            for key, parts in held.items()
            for metric in (*HELD, "unattributed")
            if (metric not in HELD or metric in USUAL or metric in parts)
            and (key, metric) not in described
        )
        # A session computes the unattributed bytes: it knows when its steps began.
        self.latest = tuple(
            self.counted[series.device].get(series.metric, 0.0)
            if series.metric in HELD
            else NOT_AVAILABLE
            for series in self.series
        )

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes; `now` is not needed."""
        self.before_reading()
        return self._padded(self.latest)

    def at(self, instant: Instant) -> Sequence[float] | None:
        """Return the count of an instant."""
        return instant.held
