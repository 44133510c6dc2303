"""What a dry run made and dropped, played on an allocator: which bytes a device would have had to give.

A step is played after another one, as in a training: what that has freed is used again, not always tightly.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple, Protocol

from hfmem_widget.features.fit.caching_allocator import Block, CachingAllocator


class Moment(Enum):
    """What happened."""

    MADE = auto()  # a storage, of so many bytes
    GONE = auto()
    BESIDES = auto()  # an operation took so many bytes while it ran
    MARKED = auto()  # a storage became one of those that are told apart
    RESTARTED = auto()  # a new peak begins


Event = tuple[Moment, int, int]
"""What happened, to which storage by its number, and bytes."""


class Allocator(Protocol):
    """Gives blocks."""

    allocated: int
    reserved: int

    def give(self, size: int) -> Block:
        """Return the block for a request."""

    def take_back(self, block: Block) -> None:
        """Have a block back."""


class Heap:
    """A host's: every request gets its own bytes."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0

    def give(self, size: int) -> Block:
        """Return the block for a request."""
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        return Block(0, size, is_small=False)

    def take_back(self, block: Block) -> None:
        """Have a block back."""
        self.allocated -= block.size


def allocator_of(device: str) -> Allocator:
    """Return a new allocator of a type of device, "cuda" or "cpu"."""
    return CachingAllocator() if device == "cuda" else Heap()


def given(allocator: Allocator, sizes: Iterable[int]) -> int:
    """Have an allocator give blocks for good, and return their bytes; nothing is none."""
    return sum(allocator.give(size).size for size in sizes if size)


class Peak(NamedTuple):
    """The highest bytes that were allocated, and those of what was marked among them."""

    bytes: int
    marked: int


class Played(NamedTuple):
    """The peak between any two restarts, and what was left at the end."""

    peaks: tuple[Peak, ...]
    left: tuple[Block, ...]
    marked: int  # bytes of it


def play(events: Iterable[Event], allocator: Allocator) -> Played:
    """Have the allocator give and take back what the events say."""
    blocks: dict[int, Block] = {}
    numbers: set[int] = set()
    peaks: list[Peak] = []
    marked = 0
    peak = Peak(allocator.allocated, marked)
    for moment, number, size in events:
        if moment is Moment.MADE:
            if size:
                blocks[number] = allocator.give(size)
        elif moment is Moment.GONE:
            block = blocks.pop(number, None)
            if block is not None:
                marked -= block.size if number in numbers else 0
                allocator.take_back(block)
        elif moment is Moment.MARKED:
            if number in blocks:
                numbers.add(number)
                marked += blocks[number].size
        elif moment is Moment.BESIDES:
            block = allocator.give(size)
            peak = max(peak, Peak(allocator.allocated, marked))
            allocator.take_back(block)
        else:
            peaks.append(peak)
            peak = Peak(allocator.allocated, marked)
        if allocator.allocated > peak.bytes:
            peak = Peak(allocator.allocated, marked)
    return Played((*peaks, peak), tuple(blocks.values()), marked)
