"""The entry points of the CUDA allocator, wrapped and unwrapped."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from hfmem_widget.errors import SourceUnavailable
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.sources.conftest import opened, pass_on, value

MIB = 1 << 20
ENTRY_POINTS = (
    "_cuda_memoryStats",
    "_cuda_resetPeakMemoryStats",
    "_accelerator_getDeviceStats",
    "_accelerator_resetPeakStats",
)


def refuse(raw: Any, device: int) -> Any:
    """Stand in for a ledger that must not be asked."""
    raise AssertionError("went through the wrapper")


def entry_points(torch: Any) -> list[Any]:
    """Return what stands in `torch._C` now."""
    return [getattr(torch._C, name) for name in ENTRY_POINTS]


def test_the_users_calls_go_through() -> None:
    """Once installed, the user's readings and resets pass through what was installed, on either way."""
    fake = FakeAllocator(devices=2)
    torch = FakeTorch(fake)
    _, allocator = opened(torch)
    seen: list[tuple[str, int]] = []

    def through(kind: str) -> Any:
        def call(raw: Any, device: int) -> Any:
            seen.append((kind, device))
            return raw(device)

        return call

    allocator.install(through("read"), through("reset"))
    torch._C._cuda_memoryStats(1)
    torch._C._accelerator_getDeviceStats(0)
    torch._C._cuda_resetPeakMemoryStats(1)
    torch._C._accelerator_resetPeakStats(0)

    assert seen == [("read", 1), ("read", 0), ("reset", 1), ("reset", 0)]
    assert fake.resets == 2


def test_our_own_readings_do_not_go_through() -> None:
    """The source and the ledger read past the wrapper, whichever object installed it."""
    fake = FakeAllocator()
    torch = FakeTorch(fake)
    source, _ = opened(torch)
    _, ledger = opened(torch)

    ledger.install(refuse, refuse)
    fake.alloc(MIB)

    assert value(source, "cuda:0/allocated") == MIB
    assert ledger.stats(0)["allocated_bytes"]["all"]["current"] == MIB
    ledger.reset_peak(0)


@pytest.mark.parametrize("arguments", [(0,), (7,), (-1,), ("cuda:0",), (None,), (), (0, 1)])
def test_before_cuda_a_wrapped_call_is_the_original(arguments: tuple[Any, ...]) -> None:
    """Called too early or wrongly, a wrapped entry point returns or raises what the original does."""

    def outcome(call: Any) -> tuple[type, str]:
        try:
            return (object, str(call(*arguments)))
        except Exception as error:  # noqa: BLE001
            return (type(error), str(error))

    torch = FakeTorch(FakeAllocator(initialized=False))
    _, allocator = opened(torch)
    before = [outcome(call) for call in entry_points(torch)]
    allocator.install(refuse, refuse)

    assert [outcome(call) for call in entry_points(torch)] == before


@pytest.mark.parametrize("argument", [0.0, True, "cuda:0", None, 2, -1])
def test_only_a_devices_index_goes_through(argument: Any) -> None:
    """With CUDA up, a call that the original would refuse or read otherwise is left to the original."""
    torch = FakeTorch(FakeAllocator(devices=2))
    _, allocator = opened(torch)
    allocator.install(refuse, refuse)

    for call in entry_points(torch):
        with contextlib.suppress(RuntimeError, TypeError):
            call(argument)


def test_calls_for_another_accelerator_are_left_alone() -> None:
    """Where torch.accelerator stands for another device type, its device 0 is not cuda:0."""
    torch = FakeTorch(FakeAllocator(), accelerator="privateuseone")
    _, allocator = opened(torch)

    allocator.install(refuse, refuse)
    torch._C._accelerator_resetPeakStats(0)

    assert torch._C._accelerator_getDeviceStats(0)


def test_uninstalling_puts_the_originals_back() -> None:
    """However often it was installed before, and again and again."""
    torch = FakeTorch(FakeAllocator())
    _, allocator = opened(torch)
    originals = entry_points(torch)
    for times in (1, 2):
        for _ in range(times):
            allocator.install(pass_on, pass_on)
        assert allocator.installed
        allocator.uninstall()

    assert entry_points(torch) == originals
    assert not allocator.installed


def test_somebody_elses_wrapper_stays() -> None:
    """What another tool put on top of ours is neither removed nor broken, and ours then only passes on."""
    fake = FakeAllocator()
    torch: Any = FakeTorch(fake)
    _, allocator = opened(torch)
    calls: list[int] = []

    def read(raw: Any, device: int) -> Any:
        calls.append(device)
        return raw(device)

    allocator.install(read, pass_on)
    ours = torch._C._cuda_memoryStats

    def theirs(device: int) -> Any:
        return ours(device)

    torch._C._cuda_memoryStats = theirs
    allocator.uninstall()

    assert torch._C._cuda_memoryStats is theirs
    assert torch._C._cuda_memoryStats(0) == fake.stats(0)
    assert calls == []


def test_installing_over_somebody_elses_wrapper_does_not_recurse() -> None:
    """Reading raw while another tool's wrapper lies between ours and the original comes to an end."""
    fake = FakeAllocator()
    torch: Any = FakeTorch(fake)
    _, allocator = opened(torch)
    allocator.install(lambda raw, device: allocator.stats(device), pass_on)
    ours = torch._C._cuda_memoryStats

    def theirs(device: int) -> Any:
        return ours(device)

    torch._C._cuda_memoryStats = theirs

    assert torch._C._cuda_memoryStats(0) == fake.stats(0)
    allocator.install(lambda raw, device: allocator.stats(device), pass_on)
    assert torch._C._cuda_memoryStats(0) == fake.stats(0)


def test_a_build_without_counters_refuses() -> None:
    """Where torch has no CUDA, installing says so in a sentence and changes nothing."""
    torch: Any = FakeTorch(FakeAllocator(initialized=False))
    del torch._C._cuda_resetPeakMemoryStats
    _, allocator = opened(torch)
    reading = torch._C._cuda_memoryStats

    with pytest.raises(SourceUnavailable, match="no CUDA memory counters"):
        allocator.install(pass_on, pass_on)
    assert torch._C._cuda_memoryStats is reading


def test_a_device_is_opened_by_its_first_memory() -> None:
    """Whatever its number, and it stays so."""
    fake = FakeAllocator(devices=3)
    _, allocator = opened(FakeTorch(fake))
    told = [list(allocator.opened())]
    for device in (2, 0):
        fake.free(fake.alloc(MIB, device=device))
        told.append(list(allocator.opened()))

    assert told == [[], [2], [0, 2]]


@pytest.mark.parametrize("fault", [AttributeError, RuntimeError])
def test_where_nobody_tells_all_devices_are_opened(fault: type[Exception]) -> None:
    """By an old torch, or a driver that does not answer."""
    torch: Any = FakeTorch(FakeAllocator(devices=3))
    _, allocator = opened(torch)

    def fail(_device: int) -> bool:
        raise fault

    torch._C._cuda_hasPrimaryContext = fail

    assert list(allocator.opened()) == [0, 1, 2]
