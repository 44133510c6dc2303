"""The model of PyTorch's allocator.

Cases follow `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp of torch 2.11.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.features.fit.allocator import (
    CachingAllocator,
    Heap,
    Moment,
    ReplayBlock,
    ReplayPeak,
    play,
)

KIB, MIB = 1 << 10, 1 << 20

MADE, GONE, BESIDES, MARKED, RESTARTED = Moment


@pytest.mark.parametrize(
    ("before", "asked", "got", "reserved"),
    [
        # A first one: a multiple of 512 bytes, or its whole segment where no more than 1 MiB is left.
        ([], 1, 512, 2 * MIB),
        ([], 513, 1024, 2 * MIB),
        ([], MIB, MIB, 2 * MIB),
        ([], MIB + 1, MIB + 512, 20 * MIB),
        ([], 9 * MIB + 1, 9 * MIB + 512, 20 * MIB),
        ([], 10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        ([], 10 * MIB, 10 * MIB, 10 * MIB),
        ([], 124 * MIB + 1, 124 * MIB + 512, 126 * MIB),
        ([], 125 * MIB - 512, 125 * MIB - 512, 126 * MIB),
        ([], 125 * MIB, 126 * MIB, 126 * MIB),
        # Of the small pool everything is cut off that is a block at all.
        ([1536], 1024, 1024, 2 * MIB),
        ([1 * MIB], 1 * MIB, 1 * MIB, 2 * MIB),
        # Of the large pool only more than 1 MiB is.
        ([32 * MIB], 31 * MIB, 32 * MIB, 32 * MIB),
        ([32 * MIB], 31 * MIB - 512, 31 * MIB - 512, 32 * MIB),
        ([12 * MIB], 2 * MIB, 2 * MIB, 12 * MIB),
        # The smallest that is large enough, whichever was freed last.
        ([40 * MIB, 14 * MIB, 20 * MIB], 13 * MIB, 14 * MIB, 74 * MIB),
        ([40 * MIB, 14 * MIB, 20 * MIB], 15 * MIB, 15 * MIB, 74 * MIB),
        ([40 * MIB, 14 * MIB, 20 * MIB], 41 * MIB, 42 * MIB, 116 * MIB),
        # Neither pool serves the other.
        ([40 * MIB], 512 * KIB, 512 * KIB, 42 * MIB),
        ([512 * KIB], 2 * MIB, 2 * MIB, 22 * MIB),
    ],
)
def test_a_freed_block_is_used_before_a_new_segment(
    before: list[int], asked: int, got: int, reserved: int
) -> None:
    """Even if it is larger than the request."""
    allocator = CachingAllocator()
    for block in [allocator.allocate(size) for size in before]:
        allocator.free(block)

    assert allocator.allocate(asked).size == allocator.allocated == got
    assert allocator.reserved == reserved


@pytest.mark.parametrize(
    ("sizes", "freed", "asked", "address", "reserved"),
    [
        # Of one size the lowest, in whatever order they were freed.
        ([12, 12, 12], (2, 1, 0), 12, 0, 36),
        # Free neighbours become one, in whatever order, and with what was left over beside them.
        *(([6, 6, 6], order, 20, 0, 20) for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2))),
        # Neighbours in use keep them apart: two holes of 6 MiB do not serve 12.
        ([6, 2, 6, 6], (0, 2), 12, 20, 32),
        # Nor do segments become one, though one lies beside the other.
        ([12, 12], (0, 1), 24, 24, 48),
    ],
)
def test_the_address_of_a_request_after_others_were_freed(
    sizes: list[int], freed: tuple[int, ...], asked: int, address: int, reserved: int
) -> None:
    """In a free block that is large enough, else in a segment of its own; all in MiB."""
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in sizes]
    for at in freed:
        allocator.free(blocks[at])

    assert allocator.allocate(asked * MIB).address == address * MIB
    assert allocator.reserved == reserved * MIB


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40 * MIB)), max_size=60))
@settings(max_examples=60)
def test_blocks_never_overlap(requests: list[tuple[int, int]]) -> None:
    """Each is large enough, and all are within the reserved memory."""
    allocator = CachingAllocator()
    blocks: list[ReplayBlock] = []
    for at, size in requests:
        if at < len(blocks):
            allocator.free(blocks.pop(at))
        blocks.append(allocator.allocate(size))
        assert blocks[-1].size >= size
    spans = sorted((block.address, block.address + block.size) for block in blocks)

    assert allocator.allocated == sum(block.size for block in blocks) <= allocator.reserved
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert all(stop <= allocator.reserved for _, stop in spans)


def test_peaks_between_restarts() -> None:
    """Each with its marked bytes; bytes that an operation takes count while it runs."""
    events = (
        (MADE, 1, 100),
        (RESTARTED, 0, 0),
        (MADE, 2, 50),
        (MARKED, 2, 0),
        (GONE, 1, 0),
        (RESTARTED, 0, 0),
        (BESIDES, 0, 500),
        (MADE, 3, 0),
        (GONE, 2, 0),
    )
    played = play(events, Heap())

    assert played.peaks == (ReplayPeak(100, 0), ReplayPeak(150, 0), ReplayPeak(550, 50))
    assert played.left == ()
    assert played.marked == 0


def test_freed_blocks_are_not_always_cut() -> None:
    """A request gets a whole block if little of it would be left."""
    request = ((MADE, 3, 12 * MIB + 512 * KIB),)
    fresh, used = CachingAllocator(), CachingAllocator()
    play(((MADE, 1, 40 * MIB), (GONE, 1, 0), (MADE, 2, 27 * MIB)), used)

    assert play(request, fresh).peaks == (ReplayPeak(12 * MIB + 512 * KIB, 0),)
    assert play(request, used).peaks == (ReplayPeak(13 * MIB, 0),)
