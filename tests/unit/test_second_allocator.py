"""A second member of `Allocator` is its own file and one line: it is read without torch.cuda."""

from __future__ import annotations

import pytest

import hfmem_widget
from hfmem_widget import sources
from hfmem_widget.features.oom.observer import OBSERVER
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
