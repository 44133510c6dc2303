"""The nouns of what an allocator has taken: segments, and the blocks they are cut into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BlockState = Literal["allocated", "pending", "free"]
"""In use; freed while another stream may still read it; free."""

SegmentKind = Literal["small", "large", "heap", "top", "mapped"]
"""The CUDA allocator's pools for requests up to 1 MiB and for larger ones; the parts of a C heap."""

NO_POOL = (0, 0)


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment.

    Attributes
    ----------
    address : int
    size : int
        Bytes.
    requested : int
        Bytes of it that were requested; 0 unless it is allocated.
    state : {"allocated", "pending", "free"}
    """

    address: int
    size: int
    requested: int
    state: BlockState


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that an allocator took in one piece.

    Attributes
    ----------
    device : str
        The device's key.
    address : int
        0 where it is not known, as for a C heap.
    size : int
        Bytes.
    kind : {"small", "large", "heap", "top", "mapped"}
    blocks : tuple of Block
        In the order of their addresses; they fill it.
    stream : int
        The CUDA stream that its free blocks are for; 0 is the default stream.
    pool : tuple of int
        Its private pool, such as a CUDA graph's; ``(0, 0)`` for none.
    expandable : bool
        True if it can grow, and give back single pages.
    """

    device: str
    address: int
    size: int
    kind: SegmentKind
    blocks: tuple[Block, ...]
    stream: int = 0
    pool: tuple[int, int] = NO_POOL
    expandable: bool = False

    @property
    def in_use(self) -> bool:
        """True unless all of it is free."""
        return any(block.state != "free" for block in self.blocks)
