"""A shadow remembers every peak that a reset takes away."""

from __future__ import annotations

import copy

from hfmem_widget.monitor.shadow import Shadow
from hfmem_widget.sources.allocator import Stats
from tests.fakes.torch_cuda import FakeAllocator

MIB = 1 << 20


def stats_with_private_pool(peak: int) -> Stats:
    """Return statistics as they are while a CUDA graph holds memory of its own."""
    pools = {(0, 1): {"all": {"current": 0, "peak": peak, "allocated": 0, "freed": 0}}}
    return FakeAllocator().stats(0) | {"reserved_bytes_by_private_pools": pools}


def test_nothing_is_shown_before_something_was_remembered() -> None:
    """Without a reset of ours, statistics stay as they are."""
    stats = FakeAllocator().stats(0)
    before = copy.deepcopy(stats)
    Shadow().show(stats)

    assert stats == before


def test_a_lower_peak_is_raised_and_a_higher_one_stays() -> None:
    """Each peak that is shown is the highest of what was remembered and what is there."""
    allocator, shadow = FakeAllocator(), Shadow()
    allocator.free(allocator.alloc(8 * MIB))
    shadow.remember(allocator.stats(0))
    allocator.reset_peak(0)
    shadow.remember(allocator.stats(0))
    stats = allocator.stats(0)
    stats["segment"]["all"]["peak"] = 99
    shadow.show(stats)

    assert stats["allocated_bytes"]["large_pool"]["peak"] == 8 * MIB
    assert stats["segment"]["all"]["peak"] == 99


def test_peaks_outside_of_families_are_remembered_too() -> None:
    """Private pools come and go, and single statistics stand beside the families."""
    shadow = Shadow()
    shadow.remember(FakeAllocator().stats(0))
    remembered = stats_with_private_pool(7 * MIB)
    remembered["oversize_segments"]["peak"] = 3
    shadow.remember(remembered)
    stats = stats_with_private_pool(2 * MIB)
    shadow.show(stats)

    assert stats["reserved_bytes_by_private_pools"][0, 1]["all"]["peak"] == 7 * MIB
    assert stats["oversize_segments"]["peak"] == 3
