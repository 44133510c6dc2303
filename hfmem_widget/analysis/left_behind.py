"""Memory that a span left on each device, beyond that of known models and optimizers."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfmem_widget.analysis.facts import active_devices
from hfmem_widget.analysis.parts import known_of
from hfmem_widget.session import HELD, Session, Span
from hfmem_widget.text import MIB

LEAST = 64 * MIB  # bytes from which a search for names is worth it
LEAST_SHARE = 0.01  # of the device, from which we search unasked

EXPECTED = tuple(metric for metric in HELD if metric != "kv_cache")
"""What stays after a training; a KV cache is of use only while tokens are generated."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Bytes that a span left on a device, beyond known weights, gradients and optimizer states."""

    device: str
    before: float  # allocated and not attributed when the span began
    after: float  # and when it ended
    total: float  # the device's capacity
    attributed: Mapping[str, float]  # when it ended, by metric
    more: float = 0.0  # growth of the attributed memory; negative if it shrank

    @property
    def allocated(self) -> float:
        """All that was allocated when it ended."""
        return self.after + sum(self.attributed.values())

    @property
    def bytes(self) -> float:
        """Growth of the memory that is not attributed."""
        return self.after - self.before

    @property
    def net(self) -> float:
        """Growth of all allocated memory."""
        return self.bytes + self.more

    @property
    def is_much(self) -> bool:
        """Whether it is worth a search."""
        share = LEAST_SHARE * self.total if math.isfinite(self.total) else 0.0
        return self.bytes >= max(LEAST, share)


def left_behind(session: Session, span: Span) -> Iterator[LeftBehind]:
    """Yield the memory that a span left on each device in use."""
    if span.after is None:
        return
    for device in active_devices(session, span):
        keys = {metric: f"{device.key}/{metric}" for metric in ("allocated", *EXPECTED)}
        before, after = (
            {metric: known_of(session.value(sample, key), 0.0) for metric, key in keys.items()}
            for sample in (span.before, span.after)
        )
        then, now = (held.pop("allocated") - sum(held.values()) for held in (before, after))
        more = sum(after.values()) - sum(before.values())
        yield LeftBehind(device.key, then, now, device.total, after, more)
