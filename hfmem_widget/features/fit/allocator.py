"""What a dry run made and dropped, played on an allocator: which bytes a device would have had to give.

A step is played after another one, as in a training: what that has freed is used again, not always tightly.
On a GPU a request gets a whole block, and a block is not always cut to its size: so what counts as allocated
depends on what was freed before. The rules are those of `DeviceCachingAllocator` in
c10/cuda/CUDACachingAllocator.cpp (torch 2.11), with the sizes of c10/core/AllocatorConfig.h, for one stream
with default settings, where the device has room.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

ROUNDED_TO: Final = 512  # the least that is cut off a block of the small pool
SMALL: Final = 1 << 20  # the largest request to that pool; of the other, more than this is cut off
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
OWN_SEGMENT: Final = 10 << 20  # requests from here on get a segment of their own,
MULTIPLE: Final = 2 << 20  # which is a multiple of this


@dataclass(slots=True, eq=False)
class ReplayBlock:
    """A piece of a segment, with its neighbours there."""

    address: int
    size: int
    is_small: bool
    is_free: bool = False
    before: ReplayBlock | None = None
    after: ReplayBlock | None = None


class CachingAllocator:
    """Blocks that are given and taken back, and how many bytes these are.

    Attributes
    ----------
    allocated, reserved : int
        Bytes of the blocks that are given, and of all segments. Segments are kept, until no other may be had.
    most : int
        The highest bytes reserved so far.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit  # bytes that may be reserved
        self.allocated = self.reserved = self.most = 0
        self._end = 0
        # Of the large pool and the small one, by size and address.
        self._free: tuple[list[tuple[int, int]], ...] = [], []
        self._at: dict[int, ReplayBlock] = {}

    def give(self, size: int) -> ReplayBlock:
        """Return the block for a request: the smallest free one, or a part of it, or of a new segment."""
        size = max(1, -(-size // ROUNDED_TO)) * ROUNDED_TO
        is_small = size <= SMALL
        free = self._free[is_small]
        place = bisect_left(free, (size, 0))
        block = self._at[free.pop(place)[1]] if place < len(free) else self._segment(size)
        left = block.size - size
        if left >= ROUNDED_TO if is_small else left > SMALL:
            self._cut(block, size)
        block.is_free = False
        self.allocated += block.size
        return block

    def take_back(self, block: ReplayBlock) -> None:
        """Join a block that is free again with the free ones beside it."""
        self.allocated -= block.size
        first, last = block, block
        if block.before is not None and block.before.is_free:
            first = block.before
            self._hold_back(first)
        if block.after is not None and block.after.is_free:
            last = block.after
            self._hold_back(last)
        first.size = last.address + last.size - first.address
        first.after = last.after
        if first.after is not None:
            first.after.before = first
        self._offer(first)

    def _segment(self, size: int) -> ReplayBlock:
        if size <= SMALL:
            whole = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            whole = LARGE_SEGMENT
        else:
            whole = -(-size // MULTIPLE) * MULTIPLE
        if self.reserved + whole > self._limit:
            self._release()
        self.reserved += whole
        self.most = max(self.most, self.reserved)
        if self.reserved > self._limit:
            raise MemoryError
        # Later segments lie above: it only matters where free blocks are of one size.
        block = ReplayBlock(self._end, whole, size <= SMALL)
        self._end += whole
        return block

    def _release(self) -> None:
        """Give the segments back of which nothing is in use."""
        for free in self._free:
            blocks = [self._at[address] for _, address in free]
            for block in blocks:
                if block.before is None and block.after is None:
                    self._hold_back(block)
                    self.reserved -= block.size

    def _cut(self, block: ReplayBlock, size: int) -> None:
        rest = ReplayBlock(block.address + size, block.size - size, block.is_small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.size, block.after = size, rest
        self._offer(rest)

    def _offer(self, block: ReplayBlock) -> None:
        block.is_free = True
        self._at[block.address] = block
        insort(self._free[block.is_small], (block.size, block.address))

    def _hold_back(self, block: ReplayBlock) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size, block.address))]


class Moment(Enum):
    """What happened."""

    MADE = auto()  # a storage, of so many bytes
    GONE = auto()
    BESIDES = auto()  # an operation took so many bytes while it ran
    MARKED = auto()  # a storage became one of those that are counted separately
    RESTARTED = auto()  # a new peak begins


Event = tuple[Moment, int, int]
"""What happened, to which storage by its number, and bytes."""


class Heap:
    """A host's: every request gets its own bytes."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0

    def give(self, size: int) -> ReplayBlock:
        """Return the block for a request."""
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        return ReplayBlock(0, size, is_small=False)

    def take_back(self, block: ReplayBlock) -> None:
        """Have a block back."""
        self.allocated -= block.size


Allocator = CachingAllocator | Heap


def allocator_of(device: str) -> Allocator:
    """Return a new allocator of a type of device, "cuda" or "cpu"."""
    return CachingAllocator() if device == "cuda" else Heap()


def given(allocator: Allocator, sizes: Iterable[int]) -> int:
    """Have an allocator give blocks for good, and return their bytes; nothing is none."""
    return sum(allocator.give(size).size for size in sizes if size)


class ReplayPeak(NamedTuple):
    """The highest bytes that were allocated, and those of what was marked among them."""

    bytes: int
    marked: int


def has_growing_segments() -> bool:
    """Return whether PyTorch's allocator has expandable segments, which leave no pieces between blocks."""
    names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    return any("expandable_segments:true" in os.environ.get(name, "").lower() for name in names)


class Replay(NamedTuple):
    """What two steps of a training ask an allocator for: sizes in bytes, and what happens in each step."""

    held: tuple[int, ...]
    """Of what is there before the first."""
    events: tuple[Event, ...]
    states: tuple[int, ...]
    """Of what the first one leaves."""

    def needs(self, room: float) -> int:
        """Return the bytes that are reserved where so many may be; more than these where it runs out."""
        allocator = CachingAllocator(room)
        with suppress(MemoryError):
            given(allocator, self.held)
            play_twice(self.events, self.states, allocator)
        return allocator.most


class Played(NamedTuple):
    """The peak between any two restarts, above what was there before, and what was left at the end."""

    peaks: tuple[ReplayPeak, ...]
    left: tuple[ReplayBlock, ...]
    marked: int  # bytes of it


def play(events: Iterable[Event], allocator: Allocator) -> Played:
    """Have the allocator give and take back what the events say."""
    blocks: dict[int, ReplayBlock] = {}
    numbers: set[int] = set()
    peaks: list[ReplayPeak] = []
    marked, before = 0, allocator.allocated

    def now() -> ReplayPeak:
        return ReplayPeak(allocator.allocated - before, marked)

    peak = now()
    for moment, number, size in events:
        if moment is Moment.MADE and size:
            blocks[number] = allocator.give(size)
        elif moment is Moment.GONE:
            block = blocks.pop(number, None)
            if block is not None:
                marked -= block.size if number in numbers else 0
                allocator.take_back(block)
        elif moment is Moment.MARKED and number in blocks:
            numbers.add(number)
            marked += blocks[number].size
        elif moment is Moment.BESIDES:
            block = allocator.give(size)
            peak = max(peak, now())
            allocator.take_back(block)
        elif moment is Moment.RESTARTED:
            peaks.append(peak)
            peak = now()
        if allocator.allocated - before > peak.bytes:
            peak = now()
    return Played((*peaks, peak), tuple(blocks.values()), marked)


def play_twice(
    events: Sequence[Event], states: Iterable[int], allocator: Allocator
) -> tuple[int, Played]:
    """Play a step after another one; return the bytes of what the first one leaves, and the second step.

    The states are made at the end of the first, of which nothing else is left but free blocks.
    """
    first = play(events, allocator)
    of_states = given(allocator, states)
    for block in first.left:
        allocator.take_back(block)
    return of_states, play(events, allocator)
