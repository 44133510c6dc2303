"""A second member of `Allocator` is its own file and one line: all works with it, without torch.cuda."""

from __future__ import annotations

import math

import pytest

import hfmem_widget
from hfmem_widget import sources
from hfmem_widget.features.oom.observer import OBSERVER
from hfmem_widget.session import Peak
from hfmem_widget.sources.allocator import Stats
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.torch_cuda import FakeAllocator, OutOfMemoryError

MIB = 1 << 20


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    """Have a process whose torch is built for "npu", which is the second of two members."""
    fake = FakeAllocator(device_type="npu")
    monkeypatch.setattr(sources, "ALLOCATORS", (lambda: CudaAllocator({}), lambda: fake))
    monkeypatch.setattr(OBSERVER, "settled", False)
    monkeypatch.setattr(OBSERVER, "_allocator", fake)
    monkeypatch.setattr(OBSERVER, "_allocators", sources.open_allocators())
    return fake


def test_its_counters_are_series(npu: FakeAllocator) -> None:
    """The device and its series are there, also where it comes up within the cell."""
    npu.initialized = False
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        npu.initialized = True
        npu.alloc(4 * MIB)

    assert session.latest("npu:0/allocated") == 4 * MIB
    assert [device.key for device in session.devices] == ["npu:0", "cpu"]
    assert not [note for note in session.notes if "not read yet" in note]


def test_its_peaks_are_exact(npu: FakeAllocator) -> None:
    """Peaks of nested spans are its own, and the user's own peak is left as it would have been."""
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        npu.free(npu.alloc(8 * MIB))
        with hfmem_widget.span("inner"):
            npu.free(npu.alloc(2 * MIB))

    peaks = {span.label: span.peaks["npu:0/allocated"] for span in session.spans}
    assert peaks == {"cell": Peak(8 * MIB, "exact"), "inner": Peak(2 * MIB, "exact")}
    assert npu.user_stats(0)["allocated_bytes"]["all"]["peak"] == 8 * MIB


def test_without_peaks_it_has_current_values(
    npu: FakeAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocator that keeps no peaks is read, is never reset, and no peak of it is called exact."""
    read = npu.stats

    def stats(index: int) -> Stats:
        return {
            name: {"all": {"current": read(index)[name]["all"]["current"]}}
            for name in ("allocated_bytes", "reserved_bytes")
        }

    monkeypatch.setattr(npu, "stats", stats)
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        npu.alloc(4 * MIB)

    assert session.latest("npu:0/allocated") == 4 * MIB
    assert math.isnan(session.latest("npu:0/peak"))
    assert npu.resets == 0
    assert session.spans[0].peaks["npu:0/allocated"] == Peak(4 * MIB, "sampled")


def test_it_has_a_memory_map(npu: FakeAllocator) -> None:
    """By default and by its name, to the byte."""
    block = npu.alloc(6 * MIB)
    npu.alloc(3 * MIB)
    npu.free(block)
    found = hfmem_widget.memory_map()

    assert found.devices == ("npu:0",)
    assert [(one.size, one.state) for one in found.segments[0].blocks] == [
        (3 * MIB, "allocated"),
        (6 * MIB, "free"),
    ]
    assert hfmem_widget.memory_map("npu:0").segments == found.segments


def test_an_error_about_its_memory_is_told(npu: FakeAllocator) -> None:
    """A request that was refused, and the error caught, is a finding of that device."""
    npu.pools[0].total = 10 * MIB
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        npu.alloc(6 * MIB)
        with pytest.raises(OutOfMemoryError):
            npu.alloc(8 * MIB)

    (finding,) = [one for one in session.findings if one.kind == "oom"]
    assert finding.evidence["device"] == "npu:0"
    assert [(one.device, one.last) for one in session.guides if one.kind == "oom"] == [
        ("npu:0", 6 * MIB)
    ]


def test_its_cache_is_emptied_on_request(npu: FakeAllocator) -> None:
    """And what that frees is measured."""
    npu.free(npu.alloc(8 * MIB))
    released = hfmem_widget.free("cache")

    assert released.steps == ("NPU's cache emptied",)
    assert [one for one in released.changes if one.device == "npu:0" and one.after == 0]
    assert npu.calls["empty_cache"] == 1


def test_it_keeps_no_history_and_that_is_no_fault(npu: FakeAllocator) -> None:
    """Stacks are asked for, and the watch goes on without those of the device."""
    with hfmem_widget.watch("cell", quiet=True, interval=60.0, stacks=True) as session:
        npu.alloc(MIB)

    assert session.latest("npu:0/allocated") == MIB
    assert not session.polling.stopped


def test_it_may_be_asked_for_by_name(npu: FakeAllocator) -> None:
    """Of the devices there are, it alone is watched."""
    with hfmem_widget.watch("cell", quiet=True, interval=60.0, devices="npu:0") as session:
        npu.alloc(MIB)

    assert [device.key for device in session.devices] == ["npu:0"]
