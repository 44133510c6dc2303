"""The CUDA allocator: its counters, read without disturbing anything, and its entry points, wrapped."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.sources.allocator import Instant, reading_of
from hfmem_widget.sources.counters import AllocatorSource, values_of
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.sources.conftest import opened, pass_on, value

MIB = 1 << 20


@pytest.mark.parametrize("imported", [None, (), ("cuda",), ("_C",)])
def test_nothing_is_read_until_torch_is_imported(imported: tuple[str, ...] | None) -> None:
    """Without torch, or while parts of it are missing, there are no devices, no series and no notes."""
    torch = ModuleType("torch")
    for part in imported or ():
        setattr(torch, part, ModuleType(f"torch.{part}"))
    allocator = CudaAllocator({} if imported is None else {"torch": torch})
    source = AllocatorSource(allocator)

    assert source.read(0.0) == []
    assert (source.devices, source.series, source.notes) == ((), (), [])
    assert not allocator.supported()


def test_it_calls_nothing_forbidden_before_cuda_is_up() -> None:
    """Before the user initialises CUDA, not one function is called that would (each would fail here)."""
    source, allocator = opened(FakeTorch(FakeAllocator(initialized=False)))
    allocator.install(pass_on, pass_on)
    for tick in range(10):
        assert source.read(float(tick)) == []
    allocator.uninstall()

    assert source.uuids() is None


def test_values_are_the_allocators() -> None:
    """Every figure is the counter of its device, to the byte."""
    fake = FakeAllocator(devices=2)
    source, _ = opened(FakeTorch(fake))
    fake.free(fake.alloc(30 * MIB, device=1))
    fake.alloc(10 * MIB - 1, device=1)

    assert value(source, "cuda:1/allocated") == 10 * MIB
    assert value(source, "cuda:1/requested") == 10 * MIB - 1
    assert value(source, "cuda:1/peak") == 30 * MIB
    assert value(source, "cuda:1/reserved") == 30 * MIB
    assert value(source, "cuda:0/allocated") == 0
    assert value(source, "cuda:1/ooms") == 0


def test_what_the_ledger_read_is_what_the_source_would_read() -> None:
    """Device after device; of another allocator, or where nothing was read, there is nothing."""
    fake = FakeAllocator(devices=2)
    source, allocator = opened(FakeTorch(fake))
    fake.free(fake.alloc(30 * MIB, device=1))
    fake.alloc(10 * MIB, device=0)
    readings = {index: reading_of(allocator.stats(index)) for index in allocator.devices()}

    assert source.at(Instant(allocator, readings)) == source.read(0.0)
    assert source.at(Instant(CudaAllocator({}), readings)) is None
    assert source.at(Instant(allocator, {})) is None


def test_private_pools_are_summed() -> None:
    """What CUDA graphs keep apart is one figure."""
    pools = {(0, index): {"all": {"current": index * MIB, "peak": 9 * MIB}} for index in (1, 2)}
    stats = FakeAllocator().stats(0) | {"reserved_bytes_by_private_pools": pools}

    assert values_of(reading_of(stats))[-1] == 3 * MIB


def test_missing_keys_are_not_available() -> None:
    """An older torch without some counters still tells the others."""
    stats = FakeAllocator().stats(0)
    del stats["requested_bytes"], stats["reserved_bytes_by_private_pools"], stats["num_ooms"]
    missing = [at for at, value in enumerate(values_of(reading_of(stats))) if math.isnan(value)]

    assert missing == [4, 7, 8]


def test_counters_the_backend_does_not_keep_are_not_available() -> None:
    """Under cudaMallocAsync, 0 bytes are requested while tensors live: that is no figure."""
    fake = FakeAllocator()
    fake.alloc(MIB)
    stats = fake.stats(0)
    stats["requested_bytes"]["all"]["current"] = 0
    values = values_of(reading_of(stats))

    assert values[0] == MIB
    assert math.isnan(values[4])
    assert math.isnan(values[5])


@given(st.one_of(st.integers(), st.floats(), st.none(), st.text(), st.booleans()))
def test_absurd_counters_are_not_available(absurd: Any) -> None:
    """Whatever the allocator says, a value is a figure from 0 up, or NaN."""
    stats = FakeAllocator().stats(0)
    stats["allocated_bytes"]["all"]["current"] = absurd
    stats["num_ooms"] = absurd
    stats["reserved_bytes_by_private_pools"] = {(0, 1): absurd}

    for one in values_of(reading_of(stats)):
        assert math.isnan(one) or 0 <= one < math.inf


def test_a_device_that_fails_leaves_the_others() -> None:
    """If one device's counters raise, it is NaN with one note, and the others are read."""
    fake = FakeAllocator(devices=2)
    source, _ = opened(FakeTorch(fake))
    for device in (0, 1):
        fake.alloc(MIB, device=device)
    source.read(0.0)
    fake.pools[0].stats = None  # type: ignore[assignment]

    assert math.isnan(value(source, "cuda:0/allocated"))
    assert value(source, "cuda:1/allocated") == MIB
    assert len(source.notes) == 1


def test_an_instance_is_named_as_one() -> None:
    """A MIG instance's UUID gets the prefix that the driver gives it."""
    fake = FakeAllocator()
    fake.pools[0].name = "NVIDIA H200 MIG 1g.18gb"
    fake.pools[0].uuid = "one"
    source, _ = opened(FakeTorch(fake))
    source.read(0.0)

    assert source.uuids() == ("MIG-one",)


def test_another_accelerator_is_named_once() -> None:
    """A torch for another accelerator is said not to be read yet."""
    torch = FakeTorch(FakeAllocator(initialized=False), accelerator="xpu")
    del torch._C._cuda_memoryStats
    source, _ = opened(torch)
    source.read(0.0)
    source.read(0.1)

    assert len(source.notes) == 1
    assert "xpu" in source.notes[0]


def test_each_series_is_the_counter_of_its_name() -> None:
    """No two of the allocator's counters are taken for one another, in the quick way or the careful one."""
    families = ("allocated", "reserved", "active", "requested", "inactive_split")
    stats: dict[str, Any] = {
        f"{family}_bytes": {"all": {"current": 10.0 * n, "peak": 10.0 * n + 1}}
        for n, family in enumerate(families, 1)
    }
    stats |= {"num_alloc_retries": 7, "num_ooms": 8}
    careful = reading_of(stats)
    quick = reading_of(stats | {"allocation": {"all": {"allocated": 9.0}}})

    assert quick[:8] == careful[:8] == (10.0, 20.0, 11.0, 30.0, 40.0, 50.0, 7.0, 8.0)
    assert quick[9:12] == careful[9:12] == (21.0, 31.0, 41.0)
    assert quick.allocations == 9.0
    assert (quick.in_use, careful.in_use) == (True, True)


@pytest.mark.parametrize(
    ("error", "is_said"),
    [
        (RecursionError("maximum recursion depth exceeded"), False),
        (MemoryError(), False),
        (OSError(errno.ENFILE, "Too many open files in system"), False),
        (OSError(errno.EACCES, "Permission denied"), True),
        (RuntimeError("no such counter"), True),
    ],
)
def test_a_limit_that_was_met_is_no_fault_of_torch(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_said: bool
) -> None:
    """There is nothing to update: the next reading is right, and no note is left of it."""
    source, allocator = opened(FakeTorch(FakeAllocator(devices=1)))
    known = source.read(0.0)
    with monkeypatch.context() as patch:
        patch.setattr(allocator, "devices", Mock(side_effect=error))
        source.read(0.1)

    assert bool(source.notes) is is_said
    assert source.read(0.2) == known


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
    read, reset = Mock(wraps=pass_on), Mock(wraps=pass_on)
    allocator.install(read, reset)
    torch._C._cuda_memoryStats(1)
    torch._C._accelerator_getDeviceStats(0)
    torch._C._cuda_resetPeakMemoryStats(1)
    torch._C._accelerator_resetPeakStats(0)

    for installed in (read, reset):
        assert [device for _, device in (call.args for call in installed.mock_calls)] == [1, 0]
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


def wrap_ours(torch: Any) -> Any:
    """Put another tool's wrapper on what reads the counters, and return it."""
    ours = torch._C._cuda_memoryStats
    torch._C._cuda_memoryStats = functools.partial(ours)
    return torch._C._cuda_memoryStats


def test_somebody_elses_wrapper_stays() -> None:
    """What another tool put on top of ours is neither removed nor broken, and ours then only passes on."""
    fake = FakeAllocator()
    torch: Any = FakeTorch(fake)
    _, allocator = opened(torch)
    allocator.install(refuse, refuse)
    theirs = wrap_ours(torch)
    allocator.uninstall()

    assert torch._C._cuda_memoryStats is theirs
    assert torch._C._cuda_memoryStats(0) == fake.stats(0)


def test_installing_over_somebody_elses_wrapper_does_not_recurse() -> None:
    """Reading raw while another tool's wrapper lies between ours and the original comes to an end."""
    fake = FakeAllocator()
    torch: Any = FakeTorch(fake)
    _, allocator = opened(torch)
    for _ in range(2):
        allocator.install(lambda raw, device: allocator.stats(device), pass_on)
        wrap_ours(torch)
        assert torch._C._cuda_memoryStats(0) == fake.stats(0)


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
    torch._C._cuda_hasPrimaryContext = Mock(side_effect=fault)

    assert list(allocator.opened()) == [0, 1, 2]
