"""An out-of-memory error: the figures of the allocator, of the error's text and of the session."""

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
"""The most that the driver keeps for itself, as a share of a device's memory for programs."""

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
    """The limit on this process' mapped memory, and its mapped memory, in bytes; NaN without a limit."""

    limit: float = NOT_AVAILABLE
    used: float = NOT_AVAILABLE
    command: str = "ulimit -v"  # that sets the limit


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of a call of ``generate``; bytes."""

    rows: int
    length: int  # requested tokens of each row, prompt included
    held: float
    whole: float  # its size at `length`
    layers: int = 0  # layers that have a part of it so far


@dataclass(frozen=True, slots=True)
class OtherModels:
    """Unused models of the same classes as those in use."""

    what: str  # in words
    at: str  # the names that hold them
    bytes: int  # with their gradients and states


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations on the device while the error was alive; bytes."""

    freed: int = 0  # by `%memholders --free errors`: held by errors only
    kept: Holder | None = None  # the name that holds most through the graphs of several tensors
    other: OtherModels | None = None
    gradients: int = 0  # missing gradients of the weights in use
    states: int = 0  # missing states of their optimizers
    optimizers: tuple[str, ...] = ()
    cache: Cache | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended the code, with the state of that moment."""

    error_text: OutOfMemoryText
    sample: Sample  # the session's last sample
    calls: tuple[str, ...] = ()  # the running functions, innermost first
    model: ModelFacts = field(default_factory=ModelFacts)
    host: HostLimit = field(default_factory=HostLimit)
    seen: Seen = field(default_factory=Seen)


@dataclass(frozen=True, slots=True)
class Incident:
    """An out-of-memory error and the state of memory at that instant. Bytes; NaN if unknown."""

    device: Device
    origin: Origin  # the library or allocator whose request failed
    asked: float = NOT_AVAILABLE  # requested in one piece
    total: float = NOT_AVAILABLE  # of the device
    free: float = NOT_AVAILABLE  # on the device
    allowed: float = NOT_AVAILABLE  # the limit of this process; NaN without one
    allocated: float = NOT_AVAILABLE  # by PyTorch's allocator, like `reserved`
    reserved: float = NOT_AVAILABLE
    others: float = NOT_AVAILABLE  # used by other processes
    processes: tuple[tuple[int, float], ...] = ()  # other processes with known ids, and their bytes
    preemptive: bool = False  # whether a limit stopped the request before it reached the driver
    blocks: Blocks | None = None
    anatomy: Anatomy | None = None
    path: tuple[Span, ...] = ()  # the open spans, outermost first
    calls: tuple[str, ...] = ()  # the running functions, innermost first
    contents: Contents = field(default_factory=Contents)
    model: ModelFacts = field(default_factory=ModelFacts)
    host: HostLimit = field(default_factory=HostLimit)
    capability: tuple[int, ...] = ()
    autocast: bool | None = None
    growth: Finding | None = None  # the finding of a leak on the device
    grown: float = 0.0  # allocated since the innermost evaluation began; 0 outside of one
    lengths: tuple[float, ...] = ()  # the steps' shortest and longest sequence, if known
    usual: tuple[float, ...] = ()  # the same without the step of the error
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
        """Bytes that this process could use if it had the device to itself."""
        return known_of(self.limit, self.total)

    @property
    def capacity(self) -> float:
        """The device's capacity including the driver's reserve, as all other views show it."""
        kept = self.device.total - self.total
        # A larger difference means that this process has a share of the device, such as a MIG instance.
        is_a_share = kept > DRIVER_KEEPS * self.total
        return self.total if is_a_share else known_of(self.device.total, self.total)

    @property
    def is_beyond(self) -> bool:
        """Whether the request is larger than the device."""
        return self.asked > self.total > 0

    @property
    def met_a_limit(self) -> bool:
        """Whether the request failed because of a limit on this process' mapped memory.

        Nothing else refuses a request for which the machine has room. The mapped memory was read later, and
        may be less.
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
        if self.on_the_host:  # the free pieces of its heap serve only small requests
            limited = min(self.host.limit - self.host.used, self.asked)
            return max(0.0, limited if self.met_a_limit else self.free)
        return self.slack + max(0.0, min(self.free, left))

    @property
    def room_for_cache(self) -> float:
        """Bytes available to the KV cache, including its present size and the room of temporaries."""
        held = self.seen.cache.held if self.seen.cache else 0.0
        # The activations include the part of the cache that was not counted yet.
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
        """Return the count ``tokens``, or another, of the innermost open span that has it; else NaN."""
        counts = (span.counts[name] for span in reversed(self.path) if name in span.counts)
        return next(counts, NOT_AVAILABLE)

    @property
    def batch_tokens(self) -> float:
        """Tokens of the largest batch, with padding; a step that accumulates gradients has several."""
        return known_of(self.count("largest_batch"), self.count("tokens"))

    @property
    def batch_samples(self) -> float:
        """Samples of the largest batch."""
        samples, tokens = self.count("samples"), self.count("tokens")
        if tokens > 0 and samples > 0:
            return round(samples * self.batch_tokens / tokens)
        return samples

    def within(self, *kinds: str) -> Span | None:
        """Return the innermost open span of these kinds."""
        return next((span for span in reversed(self.path) if span.kind in kinds), None)


@dataclass(frozen=True, slots=True)
class OomDiagnosis:
    """The cause of an out-of-memory error, and a sentence with its figures; a guess unless `is_sure`."""

    cause: Cause
    sentence: str
    is_sure: bool = True

    @property
    def name(self) -> str:
        """The cause in a few words."""
        return NAMES[self.cause] if self.is_sure else f"probably {NAMES[self.cause]}"


@dataclass(frozen=True, slots=True)
class Advice:
    """A change to make."""

    action: str  # with its setting
    reason: str  # why it applies here
    saving: str = ""  # its expected saving in words; empty if unknown
    bytes: float = 0.0  # about the same saving in bytes, which orders the advice
    is_tried: bool = False  # whether dry runs try it; their figures then replace it

    @property
    def because(self) -> str:
        """The reason, with a capital."""
        return self.reason[:1].upper() + self.reason[1:]

    def sentence(self) -> str:
        """Return action, reason and saving as plain text; a saving that the reason has is not repeated."""
        saves = f" It could save {self.saving}." if self.saving not in self.reason else ""
        return f"{self.action}. {self.because}.{saves}"
