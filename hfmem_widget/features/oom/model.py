"""One out-of-memory error: what the allocator, the text of the error and the session know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hfmem_widget.analysis.readings import known_of
from hfmem_widget.features.oom.shortage import Blocks
from hfmem_widget.features.oom.texts import BESIDE_THE_ALLOCATOR, ON_THE_HOST, Origin
from hfmem_widget.session import Anatomy, Contents, Device, Finding, Span
from hfmem_widget.session.model import NOT_AVAILABLE

Cause = Literal["fragmentation", "leak", "limit", "huge", "others", "full", "unknown"]

DRIVER_KEEPS = 0.02
"""Share of what a device has for programs that its driver keeps besides, at most."""

NAMES: dict[Cause, str] = {
    "fragmentation": "fragmentation",
    "leak": "leak",
    "limit": "memory limit",
    "huge": "oversized request",
    "others": "other processes",
    "full": "memory full",
    "unknown": "cause unknown",
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the models that were found say of themselves.

    Attributes
    ----------
    checkpointing : bool
        Whether gradient checkpointing is on.
    attention : str
        Such as "eager" or "sdpa"; empty if unknown.
    vocabulary : int
        Rows of the logits' last axis; 0 if unknown.
    quantized : bool
    """

    checkpointing: bool = False
    attention: str = ""
    vocabulary: int = 0
    quantized: bool = False


@dataclass(frozen=True, slots=True)
class HostLimit:
    """A limit on what this process may map, what it has mapped, and what sets it; NaN where there is none."""

    limit: float = NOT_AVAILABLE
    used: float = NOT_AVAILABLE
    command: str = "ulimit -v"


@dataclass(frozen=True, slots=True)
class Incident:
    """An out-of-memory error and what was there at that instant. Bytes; NaN is unknown.

    Attributes
    ----------
    device : Device
    origin : str
        Who could not have what it asked for.
    asked : float
        In one piece.
    total, free : float
        Of the device.
    allowed : float
        What this process may use at most; NaN where no limit is set.
    allocated, reserved : float
        By PyTorch's allocator.
    others : float
        By other processes.
    processes : tuple of (int, float)
        Those that are known by their ids.
    blocks : Blocks or None
    anatomy : Anatomy or None
        The parts at that instant.
    path : tuple of Span
        What was open, outermost first.
    calls : tuple of str
        The functions that ran, innermost first.
    grown : float
        What has been allocated since the innermost evaluation began; 0 outside of one.
    lengths : tuple of float
        The shortest and the longest sequence among the steps; empty if unknown.
    left_behind : float
        What is still allocated after the cell, beyond what was before it.
    """

    device: Device
    origin: Origin
    asked: float = NOT_AVAILABLE
    total: float = NOT_AVAILABLE
    free: float = NOT_AVAILABLE
    allowed: float = NOT_AVAILABLE
    allocated: float = NOT_AVAILABLE
    reserved: float = NOT_AVAILABLE
    others: float = NOT_AVAILABLE
    processes: tuple[tuple[int, float], ...] = ()
    preemptive: bool = False
    blocks: Blocks | None = None
    anatomy: Anatomy | None = None
    path: tuple[Span, ...] = ()
    calls: tuple[str, ...] = ()
    contents: Contents = field(default_factory=Contents)
    model: ModelFacts = field(default_factory=ModelFacts)
    host: HostLimit = field(default_factory=HostLimit)
    capability: tuple[int, ...] = ()
    autocast: bool | None = None
    growth: Finding | None = None
    grown: float = 0.0
    lengths: tuple[float, ...] = ()
    left_behind: float = 0.0

    @property
    def on_the_host(self) -> bool:
        """Whether it is the machine's memory, and not a device's."""
        return self.origin in ON_THE_HOST or self.device.key == "cpu"

    @property
    def beside_the_allocator(self) -> bool:
        """Whether a library asked, which cannot use what PyTorch keeps in its cache."""
        return self.origin in BESIDE_THE_ALLOCATOR

    @property
    def ceiling(self) -> float:
        """What this process could use at most if it were alone."""
        return known_of(self.allowed, self.total)

    @property
    def capacity(self) -> float:
        """What is called the device's capacity everywhere: with what its driver keeps for itself."""
        kept = self.device.total - self.total
        # More is not the driver's: this process has a share of the device, such as an instance of MIG.
        return (
            self.total
            if kept > DRIVER_KEEPS * self.total
            else known_of(self.device.total, self.total)
        )

    @property
    def met_a_limit(self) -> bool:
        """Whether a limit on what this process may map is what the request did not fit into."""
        is_beyond = self.asked > self.total > 0  # then it would not fit without the limit either
        host = self.host
        return self.on_the_host and not is_beyond and host.used + self.asked > host.limit

    @property
    def limit(self) -> float:
        """What this process may use, where that is less than there is; else NaN."""
        return self.host.limit if self.met_a_limit else self.allowed

    @property
    def cache(self) -> float:
        """What PyTorch has reserved beyond its tensors."""
        return max(0.0, self.reserved - self.allocated) if self.reserved > 0 else self.reserved

    @property
    def slack(self) -> float:
        """Of the cache, what the request could have been served from if it were in one piece."""
        return self.cache if self.blocks is None else known_of(self.blocks.free, self.cache)

    @property
    def largest_free(self) -> float:
        """The largest piece of that."""
        return NOT_AVAILABLE if self.blocks is None else self.blocks.largest_free

    def part(self, name: str) -> float:
        """Return the bytes of a part; 0 where it is not told."""
        return known_of(self.anatomy.bytes(name), 0.0) if self.anatomy is not None else 0.0

    def count(self, name: str) -> float:
        """Return what the innermost open span that counts it has counted, such as ``tokens``."""
        counted = (one.counts[name] for one in reversed(self.path) if name in one.counts)
        return next(counted, NOT_AVAILABLE)

    @property
    def batch_tokens(self) -> float:
        """Tokens of the largest batch, padding included; where batches accumulate a step has several."""
        return known_of(self.count("largest_batch"), self.count("tokens"))

    @property
    def batch_samples(self) -> float:
        """Samples of such a batch."""
        samples, tokens = self.count("samples"), self.count("tokens")
        return (
            round(samples * self.batch_tokens / tokens) if tokens > 0 and samples > 0 else samples
        )

    def within(self, *kinds: str) -> Span | None:
        """Return the innermost open span of these kinds."""
        return next((one for one in reversed(self.path) if one.kind in kinds), None)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why memory ran out.

    Attributes
    ----------
    cause : str
    sentence : str
        With the figures that it rests on.
    is_sure : bool
        False where the error says too little for more than a guess.
    """

    cause: Cause
    sentence: str
    is_sure: bool = True

    @property
    def name(self) -> str:
        """The cause in a few words."""
        return NAMES[self.cause] if self.is_sure else f"probably {NAMES[self.cause]}"


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change.

    Attributes
    ----------
    action : str
        What to do, with its setting.
    reason : str
        Why it applies here.
    saving : str
        What it should save; empty where nobody knows.
    bytes : float
        The same as a figure, by which it is ordered.
    is_measured : bool
        Whether the saving rests on a measurement of ours.
    """

    action: str
    reason: str
    saving: str = ""
    bytes: float = 0.0
    is_measured: bool = False

    def sentence(self) -> str:
        """Return all of it as plain text."""
        saves = f" It could save {self.saving}." if self.saving else ""
        return f"{self.action}. {self.reason[:1].upper()}{self.reason[1:]}.{saves}"


Rule = Callable[[Incident], Advice | None]
"""Says one thing to change, where the incident gives a reason for it."""
