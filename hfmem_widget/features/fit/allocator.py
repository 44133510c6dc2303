"""A dry run's tensors, replayed on a model of an allocator: the bytes that they would take on a device.

A step is replayed after an earlier one, as in a training, and reuses its freed blocks, which may be larger
than the requests: a GPU's allocator does not always cut a block to size, and counts all of it as allocated.
The rules are those of `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp (torch 2.11), with the
sizes of c10/core/AllocatorConfig.h, for one stream with default settings and enough room on the device.
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

# Bytes:
ROUNDED_TO: Final = 512  # requests are multiples of this; also the least rest cut off a small block
SMALL: Final = 1 << 20  # the largest small request; a rest that is cut off a large block is larger
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
OWN_SEGMENT: Final = 10 << 20  # the least request that gets a segment of its own
MULTIPLE: Final = 2 << 20  # an own segment is a multiple of this


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple that is not below a size."""
    return -(-size // multiple) * multiple


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
    """A GPU's allocator, which cuts blocks from segments, and keeps segments until its limit is reached.

    Attributes
    ----------
    allocated, reserved : int
        Bytes of the blocks in use, and of all segments.
    most : int
        The highest bytes reserved so far.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit  # bytes that may be reserved
        self.allocated = self.reserved = self.most = 0
        self._end = 0
        # The free blocks of the large and of the small pool, by size and address.
        self._free: tuple[list[tuple[int, int]], ...] = [], []
        self._by_address: dict[int, ReplayBlock] = {}

    def allocate(self, size: int) -> ReplayBlock:
        """Return a block for a request, from the smallest sufficient free block or a new segment."""
        size = round_up(max(1, size), ROUNDED_TO)
        is_small = size <= SMALL
        free = self._free[is_small]
        place = bisect_left(free, (size, 0))
        block = self._by_address[free.pop(place)[1]] if place < len(free) else self._segment(size)
        left = block.size - size
        if left >= ROUNDED_TO if is_small else left > SMALL:
            rest = ReplayBlock(
                block.address + size, left, is_small, before=block, after=block.after
            )
            if rest.after is not None:
                rest.after.before = rest
            block.size, block.after = size, rest
            self._add_free(rest)
        block.is_free = False
        self.allocated += block.size
        return block

    def free(self, block: ReplayBlock) -> None:
        """Free a block, and join it with its free neighbours."""
        self.allocated -= block.size
        first, last = block, block
        if block.before is not None and block.before.is_free:
            first = block.before
            self._remove_free(first)
        if block.after is not None and block.after.is_free:
            last = block.after
            self._remove_free(last)
        first.size = last.address + last.size - first.address
        first.after = last.after
        if first.after is not None:
            first.after.before = first
        self._add_free(first)

    def _segment(self, size: int) -> ReplayBlock:
        if size <= SMALL:
            whole = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            whole = LARGE_SEGMENT
        else:
            whole = round_up(size, MULTIPLE)
        if self.reserved + whole > self._limit:
            for _, address in [*self._free[0], *self._free[1]]:
                block = self._by_address[address]
                if block.before is None and block.after is None:  # its whole segment is free
                    self._remove_free(block)
                    self.reserved -= block.size
        self.reserved += whole
        self.most = max(self.most, self.reserved)
        if self.reserved > self._limit:
            raise MemoryError
        # Later segments have higher addresses, which decide between free blocks of the same size.
        block = ReplayBlock(self._end, whole, size <= SMALL)
        self._end += whole
        return block

    def _add_free(self, block: ReplayBlock) -> None:
        block.is_free = True
        self._by_address[block.address] = block
        insort(self._free[block.is_small], (block.size, block.address))

    def _remove_free(self, block: ReplayBlock) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size, block.address))]


class Moment(Enum):
    """The kind of an event of a dry run."""

    MADE = auto()  # a storage was allocated
    GONE = auto()  # a storage was freed
    BESIDES = auto()  # an operation took bytes only while it ran
    MARKED = auto()  # a storage counts as marked from here on
    RESTARTED = auto()  # a new peak begins


Event = tuple[Moment, int, int]
"""The kind of an event, the number of its storage, and its bytes."""


class Heap:
    """A host's allocator, which gives each request a block of exactly its size."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0

    def allocate(self, size: int) -> ReplayBlock:
        """Return the block for a request."""
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        return ReplayBlock(0, size, is_small=False)

    def free(self, block: ReplayBlock) -> None:
        """Free a block."""
        self.allocated -= block.size


Allocator = CachingAllocator | Heap


def allocator_of(device: str) -> Allocator:
    """Return a new allocator of a type of device, "cuda" or "cpu"."""
    return CachingAllocator() if device == "cuda" else Heap()


def allocate_all(allocator: Allocator, sizes: Iterable[int]) -> int:
    """Allocate blocks that are never freed, and return their bytes; a size of 0 gets no block."""
    return sum(allocator.allocate(size).size for size in sizes if size)


class ReplayPeak(NamedTuple):
    """The highest allocated bytes, and the marked bytes at that moment."""

    bytes: int
    marked: int


def has_growing_segments() -> bool:
    """Return whether PyTorch's allocator has expandable segments, which leave no gaps between blocks."""
    names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    return any("expandable_segments:true" in os.environ.get(name, "").lower() for name in names)


class Replay(NamedTuple):
    """Two equal steps of a training as requests to an allocator."""

    held: tuple[int, ...]  # bytes of each tensor before the first step
    events: tuple[Event, ...]  # of one step
    states: tuple[int, ...]  # bytes of each optimizer state that the first step leaves

    def needs(self, room: float) -> int:
        """Return the highest reserved bytes with a limit of `room`; more than `room` if memory runs out."""
        allocator = CachingAllocator(room)
        with suppress(MemoryError):
            allocate_all(allocator, self.held)
            play_twice(self.events, self.states, allocator)
        return allocator.most


class Played(NamedTuple):
    """The peaks between restarts, above the bytes allocated before, and the blocks left at the end."""

    peaks: tuple[ReplayPeak, ...]
    left: tuple[ReplayBlock, ...]
    marked: int  # bytes of marked blocks at the end


def play(events: Iterable[Event], allocator: Allocator) -> Played:
    """Replay events on an allocator."""
    blocks: dict[int, ReplayBlock] = {}
    numbers: set[int] = set()
    peaks: list[ReplayPeak] = []
    marked, before = 0, allocator.allocated

    def now() -> ReplayPeak:
        return ReplayPeak(allocator.allocated - before, marked)

    peak = now()
    for moment, number, size in events:
        if moment is Moment.MADE and size:
            blocks[number] = allocator.allocate(size)
        elif moment is Moment.GONE:
            block = blocks.pop(number, None)
            if block is not None:
                marked -= block.size if number in numbers else 0
                allocator.free(block)
        elif moment is Moment.MARKED and number in blocks:
            numbers.add(number)
            marked += blocks[number].size
        elif moment is Moment.BESIDES:
            block = allocator.allocate(size)
            peak = max(peak, now())
            allocator.free(block)
        elif moment is Moment.RESTARTED:
            peaks.append(peak)
            peak = now()
        if allocator.allocated - before > peak.bytes:
            peak = now()
    return Played((*peaks, peak), tuple(blocks.values()), marked)


def play_twice(
    events: Sequence[Event], states: Iterable[int], allocator: Allocator
) -> tuple[int, Played]:
    """Replay a step twice; return the bytes of the states, and the second replay.

    The states are allocated at the end of the first step, whose other blocks are free for the second.
    """
    first = play(events, allocator)
    of_states = allocate_all(allocator, states)
    for block in first.left:
        allocator.free(block)
    return of_states, play(events, allocator)
