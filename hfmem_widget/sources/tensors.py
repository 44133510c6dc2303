"""The bytes of models' and optimizers' tensors as series: `monitor.attribution` counts them.

A training changes these tensors, so they are counted on the user's own thread, at edges of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfmem_widget.session import HELD, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Instant
from hfmem_widget.sources.source import BaseSource

Held = Mapping[str, float]
"""Bytes by `HELD` metric."""


class TensorSource(BaseSource):
    """The bytes of weights, buffers, gradients and optimizer states on every device that has any."""

    name = "tensors"

    def __init__(self) -> None:
        super().__init__()
        self.latest: Sequence[float] = ()
        """The values of `series`, never changed in place: what was true at an instant can be kept."""
        self.counted: Mapping[str, Held] = {}
        """What was counted last, by device key."""

    def count(self, held: Mapping[str, Held]) -> None:
        """Take over a new count; a device that is not in it has no such tensors any more."""
        if held == self.counted:
            return
        known = dict.fromkeys(series.device for series in self.series)
        new = [key for key in held if key not in known]
        self.counted = {key: held.get(key, {}) for key in (*known, *new)}
        values: list[float] = []
        for counted in self.counted.values():
            # A session fills in what is not attributed: it knows when its steps began.
            values += [*(counted.get(metric, 0.0) for metric in HELD), NOT_AVAILABLE]
        # The series come first: a reader in between finds too few values, never too many.
        self.series += tuple(
            Series(key, metric) for key in new for metric in (*HELD, "unattributed")
        )
        self.latest = tuple(values)

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series` in bytes; `now` is not needed."""
        return self._padded(self.latest)

    def at(self, instant: Instant) -> Sequence[float] | None:
        """Return what was counted then."""
        return instant.held
