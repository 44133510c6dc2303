"""A shadow remembers every peak that a reset takes away."""

from __future__ import annotations

from hfmem_widget.monitor.shadow import Shadow
from hfmem_widget.sources.allocator import Stats
from tests.fakes.torch_cuda import FakeAllocator

MIB = 1 << 20


def stats_with_private_pool(peak: int) -> Stats:
    """Return statistics as they are while a CUDA graph holds memory of its own."""
    pools = {(0, 1): {"all": {"current": 0, "peak": peak, "allocated": 0, "freed": 0}}}
    return FakeAllocator().stats(0) | {"reserved_bytes_by_private_pools": pools}


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
