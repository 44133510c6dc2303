"""An out-of-memory error: the figures of the allocator, of the error's text and of the session."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from hfmem_widget.analysis.parts import known_of
from hfmem_widget.features.oom.errors import (
    BESIDE_THE_ALLOCATOR,
    ON_THE_HOST,
    Origin,
    OutOfMemoryText,
)
from hfmem_widget.features.oom.observer import Blocks
from hfmem_widget.session import Anatomy, Contents, Device, Finding, Sample, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.heap.model import Holder

Cause = Literal[
    "another model", "leak", "graphs", "kv cache", "training", "long rows", "fragmentation", "limit", "huge",
    "others", "machine", "page cache", "full", "unknown",
]  # fmt: skip

DRIVER_KEEPS = 0.02
"""The most that the driver keeps for itself, as a share of what a device has for programs."""

NAMES: dict[Cause, str] = {
    "another model": "another model",
    "leak": "leak",
    "graphs": "graphs kept",
    "kv cache": "KV cache",
    "training": "training does not fit",
    "long rows": "a long batch",
    "fragmentation": "fragmentation",
    "limit": "memory limit",
    "huge": "oversized request",
    "others": "other processes",
    "machine": "the rest of the machine",
    "page cache": "page cache",
    "full": "memory full",
    "unknown": "cause unknown",
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Settings that the session's models have in their own fields."""

    checkpointing: bool = False
    vocabulary: int = 0  # size of the logits' last axis; 0 if unknown
    quantized: bool = False


NEARLY_FULL = 0.05
"""The share of a limit left in which requests of Python's own objects are taken to have failed for it."""


@dataclass(frozen=True, slots=True)
class HostLimit:
    """The limit on what this process may map, and what it has mapped, in bytes; NaN if there is none."""

    limit: float = NOT_AVAILABLE
    used: float = NOT_AVAILABLE
    command: str = "ulimit -v"  # which sets it


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of a call of ``generate``; bytes."""

    rows: int
    length: int  # requested tokens of each row, prompt included
    held: float
    whole: float  # its size at that length
    layers: int = 0  # layers with a part of it already


@dataclass(frozen=True, slots=True)
class OtherModels:
    """Models of the same classes as those in use, that nothing uses."""

    what: str  # in words
    at: str  # the names that hold them
    bytes: int  # with their gradients and states


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations on the device while the error was alive; bytes."""

    freed: int = 0  # by `%memholders --free errors`: nothing but errors holds it
    kept: Holder | None = None  # the name that holds most through the graphs of several tensors
    other: OtherModels | None = None
    gradients: int = 0  # missing gradients of the weights in use
    states: int = 0  # missing states of their optimizers
    optimizers: tuple[str, ...] = ()
    cache: Cache | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended the code, as it was at that moment."""

    error_text: OutOfMemoryText
    sample: Sample  # the session's last one
    calls: tuple[str, ...] = ()  # the functions that ran, innermost first
    model: ModelFacts = field(default_factory=ModelFacts)
    host: HostLimit = field(default_factory=HostLimit)
    seen: Seen = field(default_factory=Seen)


@dataclass(frozen=True, slots=True)
class Incident:
    """An out-of-memory error and the state of memory at that instant. Bytes; NaN if unknown."""

    device: Device
    origin: Origin  # the library or allocator whose request failed
    asked: float = NOT_AVAILABLE  # in one piece
    total: float = NOT_AVAILABLE  # of the device
    free: float = NOT_AVAILABLE  # on the device
    allowed: float = NOT_AVAILABLE  # the limit of this process; NaN without one
    allocated: float = NOT_AVAILABLE  # by PyTorch's allocator, as is `reserved`
    reserved: float = NOT_AVAILABLE
    others: float = NOT_AVAILABLE  # used by other processes
    processes: tuple[tuple[int, float], ...] = ()  # those whose ids are known, with their bytes
    preemptive: bool = False  # whether a limit kept the allocator from even asking the driver
    blocks: Blocks | None = None
    anatomy: Anatomy | None = None
    path: tuple[Span, ...] = ()  # the open spans, outermost first
    calls: tuple[str, ...] = ()  # the functions that ran, innermost first
    contents: Contents = field(default_factory=Contents)
    model: ModelFacts = field(default_factory=ModelFacts)
    host: HostLimit = field(default_factory=HostLimit)
    capability: tuple[int, ...] = ()
    autocast: bool | None = None
    growth: Finding | None = None  # the leak that was found on the device
    grown: float = 0.0  # allocated since the innermost evaluation began; 0 outside of one
    lengths: tuple[float, ...] = ()  # the steps' shortest and longest sequence, if known
    usual: tuple[float, ...] = ()  # the same of the other steps alone
    seen: Seen = field(default_factory=Seen)

    @property
    def on_the_host(self) -> bool:
        """Whether the host ran out of memory, and not a GPU."""
        return self.origin in ON_THE_HOST or self.device.key == "cpu"

    @property
    def place(self) -> str:
        """The device that ran out of memory, in words."""
        return "this machine" if self.on_the_host else self.device.key or "a GPU"

    @property
    def beside_the_allocator(self) -> bool:
        """Whether the request came from a library, which cannot use PyTorch's cache."""
        return self.origin in BESIDE_THE_ALLOCATOR

    @property
    def ceiling(self) -> float:
        """Bytes that this process could use if it were alone."""
        return known_of(self.allowed, self.total)

    @property
    def capacity(self) -> float:
        """The device's capacity as on all cards: with the driver's reserve."""
        kept = self.device.total - self.total
        # More is not the driver's: this process has a share of the device, such as an instance of MIG.
        is_a_share = kept > DRIVER_KEEPS * self.total
        return self.total if is_a_share else known_of(self.device.total, self.total)

    @property
    def is_beyond(self) -> bool:
        """Whether the request is larger than the device."""
        return self.asked > self.total > 0

    @property
    def met_a_limit(self) -> bool:
        """Whether the request failed because of a limit on what this process may map.

        Nothing else refuses a request that the machine has room for; less may be mapped by now.
        """
        if not self.on_the_host or self.is_beyond or math.isnan(self.host.limit):
            return False
        return self.asked <= self.free or self.is_over_limit

    @property
    def is_over_limit(self) -> bool:
        """Whether the request does not fit beside what was mapped when the code had failed."""
        left = self.host.limit - self.host.used
        # Where the size is not known, it is one of many small ones that filled it.
        return left < known_of(self.asked, NEARLY_FULL * self.host.limit)

    @property
    def limit(self) -> float:
        """Bytes that this process may use, if that is less than the capacity; else NaN."""
        return self.host.limit if self.met_a_limit else self.allowed

    @property
    def cache(self) -> float:
        """Bytes that PyTorch has reserved beyond its tensors."""
        return max(0.0, self.reserved - self.allocated) if self.reserved > 0 else self.reserved

    @property
    def slack(self) -> float:
        """The part of the cache that could have served the request in one piece."""
        return self.cache if self.blocks is None else known_of(self.blocks.free, self.cache)

    @property
    def largest_free(self) -> float:
        """The largest piece of `slack`."""
        return NOT_AVAILABLE if self.blocks is None else self.blocks.largest_free

    @property
    def room(self) -> float:
        """Bytes that this process could still get, in any pieces; NaN if unknown."""
        left = known_of(self.allowed - self.reserved, self.free)
        if self.on_the_host:  # of whose heap the free pieces serve small requests
            limited = min(self.host.limit - self.host.used, self.asked)
            return max(0.0, limited if self.met_a_limit else self.free)
        return self.slack + max(0.0, min(self.free, left))

    @property
    def room_for_cache(self) -> float:
        """Bytes available to the KV cache, its present size included: temporaries make way for it."""
        held = self.seen.cache.held if self.seen.cache else 0.0
        # A part of the cache that was not counted yet is among the activations.
        temporary = self.part("activations") - max(0.0, held - self.part("kv_cache"))
        return self.room + held + max(0.0, temporary)

    @property
    def known_growth(self) -> float:
        """Growth of the leak; 0 if unknown."""
        grown = self.growth.evidence.get("grown") if self.growth is not None else None
        return float(grown) if isinstance(grown, int | float) else 0.0

    def part(self, name: str) -> float:
        """Return the bytes of a part; 0 if unknown."""
        return known_of(self.anatomy.bytes(name), 0.0) if self.anatomy is not None else 0.0

    def count(self, name: str) -> float:
        """Return the count of a name such as ``tokens`` in the innermost open span with one; else NaN."""
        counts = (span.counts[name] for span in reversed(self.path) if name in span.counts)
        return next(counts, NOT_AVAILABLE)

    @property
    def batch_tokens(self) -> float:
        """Tokens of the largest batch, with padding; a step that accumulates gradients has several."""
        return known_of(self.count("largest_batch"), self.count("tokens"))

    @property
    def batch_samples(self) -> float:
        """Samples of such a batch."""
        samples, tokens = self.count("samples"), self.count("tokens")
        if tokens > 0 and samples > 0:
            return round(samples * self.batch_tokens / tokens)
        return samples

    def within(self, *kinds: str) -> Span | None:
        """Return the innermost open span of these kinds."""
        return next((span for span in reversed(self.path) if span.kind in kinds), None)


@dataclass(frozen=True, slots=True)
class OomDiagnosis:
    """Why memory ran out: the cause, and a sentence with its figures; a guess unless `is_sure`."""

    cause: Cause
    sentence: str
    is_sure: bool = True

    @property
    def name(self) -> str:
        """The cause in a few words."""
        return NAMES[self.cause] if self.is_sure else f"probably {NAMES[self.cause]}"


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change."""

    action: str  # with its setting
    reason: str  # why it applies here
    saving: str = ""  # its expected saving in words; empty if unknown
    bytes: float = 0.0  # roughly the same in bytes, as the order
    is_tried: bool = False  # whether dry runs try it, if there are any: their figures replace these

    @property
    def because(self) -> str:
        """The reason, with a capital."""
        return self.reason[:1].upper() + self.reason[1:]

    def sentence(self) -> str:
        """Return action, reason and saving as plain text."""
        saves = f" It could save {self.saving}." if self.saving else ""
        return f"{self.action}. {self.because}.{saves}"
