"""Segments and blocks, read without disturbing anything."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.errors import OptionError
from hfmem_widget.features.memory_map.api import heap_segments, read_map
from hfmem_widget.session.segments import MemoryMap, segments_of
from hfmem_widget.sources.malloc import Mallinfo
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.data.recorded import NAMES, recorded
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch


def no_heap() -> None:
    return None


def allocator_of(torch: ModuleType | None = None) -> CudaAllocator:
    return CudaAllocator({"torch": torch} if torch else {})


def read_of(torch: ModuleType | None, device: str = "") -> MemoryMap:
    return read_map(device, allocator_of(torch), no_heap)


def with_snapshot(snapshot: Callable[..., Any], devices: int = 1) -> FakeTorch:
    torch = FakeTorch(FakeAllocator(devices))
    torch.cuda.memory_snapshot = snapshot
    return torch


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_a_real_snapshot_is_in_a_block(name: str) -> None:
    """Blocks fill their segments without a gap."""
    segments = segments_of(recorded(name)[1])
    assert segments
    for segment in segments:
        address = segment.address
        for block in segment.blocks:
            assert block.address == address
            assert 0 <= block.requested <= block.size
            address += block.size
        assert address == segment.address + segment.size


def test_a_freed_block_has_no_requested_size() -> None:
    """The allocator leaves the figure of the last owner in a free block; it is not in use."""
    _, listed = recorded("native")
    freed = [one for segment in listed for one in segment["blocks"] if one["state"] == "inactive"]
    assert any(one["requested_size"] for one in freed)
    blocks = [one for segment in segments_of(listed) for one in segment.blocks]
    assert not any(one.requested for one in blocks if one.state == "free")


def test_both_words_for_a_block_that_waits_are_known() -> None:
    """Torch's documentation says awaiting_free, its library pending_free."""
    for word in ("active_pending_free", "active_awaiting_free"):
        _, listed = recorded("native")
        listed[0]["blocks"][0]["state"] = word
        assert segments_of(listed)[0].blocks[0].state == "pending"


def test_a_snapshot_of_an_older_torch_has_fewer_keys() -> None:
    """Without pools, streams, expandable segments and requested sizes; a used block counts as requested."""
    listed = [
        {"device": 0, "address": 4096, "total_size": 1024, "segment_type": "small",
         "blocks": [{"address": 4096, "size": 1024, "state": "active_allocated"}]}
    ]  # fmt: skip
    (segment,) = segments_of(listed)
    assert (segment.pool, segment.stream, segment.expandable) == ((0, 0), 0, False)
    assert segment.blocks[0].requested == 1024


def test_before_cuda_is_initialised_nothing_of_torch_is_called() -> None:
    """Every function that would initialise it fails here; the map is of the heap."""
    torch = FakeTorch(FakeAllocator(initialized=False))
    assert read_of(torch).devices == ("cpu",)


def test_traces_are_left_out_where_torch_can_leave_them_out() -> None:
    """With 100,000 of them a snapshot takes 700 ms, without 0.2; older versions of torch cannot."""
    calls: list[dict[str, Any]] = []

    def snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
        calls.append({"mempool_id": mempool_id, "include_traces": include_traces})
        return recorded("native")[1]

    memory = read_of(with_snapshot(snapshot))
    assert calls == [{"mempool_id": None, "include_traces": False}]
    assert len(memory.segments) == 22
    assert read_of(with_snapshot(lambda: recorded("native")[1])).segments == memory.segments


def test_all_devices_are_read_at_once_and_one_by_its_name() -> None:
    """A map has all GPUs, or the segments of the one that was named."""

    def snapshot(include_traces: bool) -> list[dict[str, Any]]:
        _, listed = recorded("fragmented")
        return [{**one, "device": at % 2} for at, one in enumerate(listed)]

    torch = with_snapshot(snapshot, devices=2)
    both, second = read_of(torch), read_of(torch, "cuda:1")
    assert {one.device for one in both.segments} == {"cuda:0", "cuda:1"}
    assert second.devices == ("cuda:1",)
    assert second.segments == both.only(("cuda:1",)).segments
    with pytest.raises(OptionError, match="'cuda:2'; available: cuda:0, cuda:1, cpu"):
        read_of(torch, "cuda:2")


@pytest.mark.parametrize("raises", [True, False])
def test_a_note_says_that_an_allocator_has_no_list_of_blocks(*, raises: bool) -> None:
    """By its version, the snapshot of CUDA's own allocator raises or is empty; the note has the sums."""

    def snapshot(include_traces: bool) -> list[dict[str, Any]]:
        if raises:
            raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful.")
        return []

    torch = with_snapshot(snapshot)
    if not raises:
        torch.cuda.get_allocator_backend = lambda: "cudaMallocAsync"
    torch.allocator.alloc(3 << 20)
    found = read_of(torch)
    assert not found.segments
    assert "cudaMallocAsync" in found.notes["cuda:0"]
    assert "fragmentation cannot be shown" in found.notes["cuda:0"]
    assert "3.00 MiB in use of 3.00 MiB reserved" in found.notes["cuda:0"]


SIZES = st.integers(0, 2**40)


@given(SIZES, SIZES, SIZES, SIZES)
def test_a_heap_adds_up(used: int, free: int, top: int, mapped: int) -> None:
    """What malloc has from the system is the sum of the segments, for any figures."""
    info = Mallinfo(uordblks=used, fordblks=free, keepcost=top, hblkhd=mapped)
    segments = heap_segments(info)
    assert sum(one.size for one in segments) == used + free + mapped
    assert all(sum(block.size for block in one.blocks) == one.size > 0 for one in segments)


def test_a_note_says_why_a_heap_cannot_be_read() -> None:
    """Without glibc's allocator the map is empty, and a note says why."""
    assert not read_of(None).segments
    assert "glibc" in read_of(None).notes["cpu"]


def test_without_a_gpu_the_map_is_that_of_the_heap() -> None:
    """It equals the map of the CPU by name."""

    def find_heap() -> Callable[[], Mallinfo]:
        return lambda: Mallinfo(uordblks=5, fordblks=3, keepcost=1)

    unnamed, named = (read_map(name, allocator_of(), find_heap) for name in ("", "cpu"))
    assert unnamed.segments == named.segments
    assert [one.kind for one in named.segments] == ["heap", "top"]


def test_a_map_knows_how_long_reading_it_took() -> None:
    """The seconds are on the map."""
    ticks = iter((1.0, 1.5))
    assert read_map("", allocator_of(), no_heap, lambda: next(ticks)).seconds == 0.5
