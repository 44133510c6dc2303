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
    """A piece of a segment; bytes."""

    address: int
    size: int
    requested: int  # of its size; 0 unless it is allocated
    state: BlockState


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that an allocator took in one piece."""

    device: str  # its key
    address: int  # 0 where it is not known, as for a C heap
    size: int  # bytes
    kind: SegmentKind
    blocks: tuple[Block, ...]  # in the order of their addresses; they fill it
    stream: int = 0  # the CUDA stream that its free blocks are for; 0 is the default stream
    pool: tuple[int, int] = NO_POOL  # its private pool, such as a CUDA graph's
    expandable: bool = False  # whether it can grow, and give back single pages

    @property
    def in_use(self) -> bool:
        """True unless all of it is free."""
        return any(block.state != "free" for block in self.blocks)
