"""Segments of an allocator, and a heap, given in MiB."""

from typing import Any

from hfmem_widget.session.segments import Block, BlockState, MemoryMap, Segment
from hfmem_widget.text import MIB

M = int(MIB)


def segment(*blocks: tuple[str, int], at: int = 0, **about: Any) -> Segment:
    """Return a segment of blocks given as state and MiB; rounded blocks are half used."""
    made, address = [], at << 40
    for state, size in blocks:
        used = {"used": size * M, "half": size * M // 2}.get(state, 0)
        kind: BlockState = "allocated" if used else "pending" if state == "pending" else "free"
        made.append(Block(address, size * M, used, kind))
        address += size * M
    size = address - (at << 40)
    return Segment("cuda:0", at << 40, size, "large", tuple(made), **about)


def heap(note: str = "") -> MemoryMap:
    blocks = (Block(0, 300 * M, 300 * M, "allocated"), Block(300 * M, 100 * M, 0, "free"))
    one = Segment("cpu", 0, 400 * M, "heap", blocks)
    return MemoryMap(("cpu",), (one,), 0.01, {"cpu": note} if note else {})
