"""What an allocator had at the instant at which it could not give what was asked of it: figures and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hfmem_widget.session.model import NOT_AVAILABLE

BACKWARD = "torch.autograd.graph._engine_run_backward"
"""Among the functions that run: the one in which a thread waits while autograd runs its backward pass."""


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Blocks of one size that were made at one place.

    Attributes
    ----------
    bytes : float
        Of each.
    count : int
    where : str
        The user's own line and function; empty where no stacks were recorded.
    """

    bytes: float
    count: int
    where: str = ""

    @property
    def together(self) -> float:
        """Bytes of all of them."""
        return self.bytes * self.count


@dataclass(frozen=True, slots=True)
class Blocks:
    """A caching allocator's blocks, summed up.

    Attributes
    ----------
    count : int
    largest_free : float
        The largest block that is free, of those the request could have been served from.
    free : float
        All of those, in bytes.
    private_free : float
        Bytes that are free in private pools (CUDA graphs, a MemPool), which serve nobody else.
    streams : int
        How many streams have free blocks; one serves only requests on its own stream.
    expandable : bool
        Whether any segment is expandable.
    biggest : tuple of LiveBlocks
        The biggest live ones, by the bytes of those alike together.
    """

    count: int = 0
    largest_free: float = NOT_AVAILABLE
    free: float = NOT_AVAILABLE
    private_free: float = 0.0
    streams: int = 0
    expandable: bool = False
    biggest: tuple[LiveBlocks, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortage:
    """One request that a device's caching allocator could not serve.

    Attributes
    ----------
    device : str
        The device's key.
    asked : float
        Bytes, as the allocator rounds them up to a segment.
    ceiling : float
        Bytes that this process may use: the device's capacity, or less where a limit is set.
    free : float
        Bytes of the device that nobody uses, by the driver.
    total : float
        The device's capacity as CUDA tells it.
    readings : mapping of str to float
        The allocator's own counters in bytes: allocated, reserved, active, requested.
    blocks : Blocks or None
        None where there were too many to look at, or the allocator does not tell.
    calls : tuple of str
        The functions that were running on the thread that asked, innermost first; on a thread of autograd's,
        after its own those of the thread that waits for it, where only one does.
    capability : tuple of int
        The device's compute capability; empty if unknown.
    autocast : bool or None
        Whether autocast was on; None on a thread of the backward pass, where that says nothing.
    seconds : float
        What it took to note all this.
    """

    device: str
    asked: float
    ceiling: float
    free: float
    total: float = NOT_AVAILABLE
    readings: Mapping[str, float] = field(default_factory=dict)
    blocks: Blocks | None = None
    calls: tuple[str, ...] = ()
    capability: tuple[int, ...] = ()
    autocast: bool | None = None
    seconds: float = 0.0
