"""The CUDA allocator: its counters, read without disturbing anything, and its entry points, wrapped."""

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
from tests.unit.sources.conftest import pass_on

MIB = 1 << 20


class Cuda:
    """CUDA devices, the torch that has them, and what reads and wraps its counters."""

    def __init__(
        self, devices: int = 1, *, initialized: bool = True, accelerator: str = ""
    ) -> None:
        self.fake = FakeAllocator(devices, initialized=initialized)
        self.torch: Any = FakeTorch(self.fake, accelerator=accelerator)
        self.allocator = CudaAllocator({"torch": self.torch})
        self.source = AllocatorSource(self.allocator)

    def value(self, key: str) -> float:
        values = self.source.read(0.0)
        return values[[series.key for series in self.source.series].index(key)]


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


def test_values_are_the_allocators() -> None:
    """Every figure is the counter of its device, to the byte."""
    cuda = Cuda(devices=2)
    cuda.fake.free(cuda.fake.alloc(30 * MIB, device=1))
    cuda.fake.alloc(10 * MIB - 1, device=1)

    assert cuda.value("cuda:1/allocated") == 10 * MIB
    assert cuda.value("cuda:1/requested") == 10 * MIB - 1
    assert cuda.value("cuda:1/peak") == 30 * MIB
    assert cuda.value("cuda:1/reserved") == 30 * MIB
    assert cuda.value("cuda:0/allocated") == 0
    assert cuda.value("cuda:1/ooms") == 0


def test_what_the_ledger_read_is_what_the_source_would_read() -> None:
    """Readings of the ledger stand for the source's own; those of another allocator do not."""
    cuda = Cuda(devices=2)
    cuda.fake.free(cuda.fake.alloc(30 * MIB, device=1))
    cuda.fake.alloc(10 * MIB, device=0)
    readings = {
        index: reading_of(cuda.allocator.stats(index)) for index in cuda.allocator.devices()
    }

    assert cuda.source.at(Instant(cuda.allocator, readings)) == cuda.source.read(0.0)
    assert cuda.source.at(Instant(CudaAllocator({}), readings)) is None
    assert cuda.source.at(Instant(cuda.allocator, {})) is None


def test_private_pools_are_summed() -> None:
    """The private pools of CUDA graphs are one figure."""
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
    cuda = Cuda(devices=2)
    for device in (0, 1):
        cuda.fake.alloc(MIB, device=device)
    cuda.source.read(0.0)
    cuda.fake.pools[0].stats = None  # type: ignore[assignment]

    assert math.isnan(cuda.value("cuda:0/allocated"))
    assert cuda.value("cuda:1/allocated") == MIB
    assert len(cuda.source.notes) == 1


def test_an_instance_is_named_as_one() -> None:
    """A MIG instance's UUID gets the prefix that the driver gives it."""
    cuda = Cuda()
    cuda.fake.pools[0].name = "NVIDIA H200 MIG 1g.18gb"
    cuda.fake.pools[0].uuid = "one"
    cuda.source.read(0.0)

    assert cuda.source.uuids() == ("MIG-one",)


def test_another_accelerator_is_named_once() -> None:
    """A torch for another accelerator is said not to be read yet."""
    cuda = Cuda(initialized=False, accelerator="xpu")
    del cuda.torch._C._cuda_memoryStats
    cuda.source.read(0.0)
    cuda.source.read(0.1)

    assert len(cuda.source.notes) == 1
    assert "xpu" in cuda.source.notes[0]


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
    ("error", "is_noted"),
    [
        (RecursionError("maximum recursion depth exceeded"), False),
        (MemoryError(), False),
        (OSError(errno.ENFILE, "Too many open files in system"), False),
        (OSError(errno.EACCES, "Permission denied"), True),
        (RuntimeError("no such counter"), True),
    ],
)
def test_a_limit_that_was_met_is_no_fault_of_torch(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_noted: bool
) -> None:
    """A limit of the machine leaves no note, and the next reading is right; a fault of torch is noted."""
    cuda = Cuda()
    values = cuda.source.read(0.0)
    with monkeypatch.context() as patch:
        patch.setattr(cuda.allocator, "devices", Mock(side_effect=error))
        cuda.source.read(0.1)

    assert bool(cuda.source.notes) is is_noted
    assert cuda.source.read(0.2) == values


def refuse(raw: Any, device: int) -> Any:
    """Stand in for a ledger that must not be asked."""
    raise AssertionError("went through the wrapper")


def entry_points(torch: Any) -> list[Any]:
    """Return what stands in `torch._C` now."""
    counters = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
    resets = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
    return [getattr(torch._C, name) for name in counters + resets]


def test_the_users_calls_go_through() -> None:
    """Once installed, the user's readings and resets pass through what was installed, on either way."""
    cuda = Cuda(devices=2)
    read, reset = Mock(wraps=pass_on), Mock(wraps=pass_on)
    cuda.allocator.install(read, reset)
    cuda.torch._C._cuda_memoryStats(1)
    cuda.torch._C._accelerator_getDeviceStats(0)
    cuda.torch._C._cuda_resetPeakMemoryStats(1)
    cuda.torch._C._accelerator_resetPeakStats(0)

    for installed in (read, reset):
        assert [device for _, device in (call.args for call in installed.mock_calls)] == [1, 0]
    assert cuda.fake.resets == 2


def test_our_own_readings_do_not_go_through() -> None:
    """The source and the ledger read past the wrapper, whichever object installed it."""
    cuda = Cuda()
    ledger = CudaAllocator({"torch": cuda.torch})

    ledger.install(refuse, refuse)
    cuda.fake.alloc(MIB)

    assert cuda.value("cuda:0/allocated") == MIB
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

    cuda = Cuda(initialized=False)
    before = [outcome(call) for call in entry_points(cuda.torch)]
    cuda.allocator.install(refuse, refuse)

    assert [outcome(call) for call in entry_points(cuda.torch)] == before


@pytest.mark.parametrize("argument", [0.0, True, "cuda:0", None, 2, -1])
def test_only_a_devices_index_goes_through(argument: Any) -> None:
    """With CUDA up, a call that the original would refuse or read otherwise is left to the original."""
    cuda = Cuda(devices=2)
    cuda.allocator.install(refuse, refuse)

    for call in entry_points(cuda.torch):
        with contextlib.suppress(RuntimeError, TypeError):
            call(argument)


def test_calls_for_another_accelerator_are_left_alone() -> None:
    """Where torch.accelerator stands for another device type, its device 0 is not cuda:0."""
    cuda = Cuda(accelerator="privateuseone")

    cuda.allocator.install(refuse, refuse)
    cuda.torch._C._accelerator_resetPeakStats(0)

    assert cuda.torch._C._accelerator_getDeviceStats(0)


def test_uninstalling_puts_the_originals_back() -> None:
    """Uninstalling restores the original entry points, however often they were wrapped."""
    cuda = Cuda()
    originals = entry_points(cuda.torch)
    for times in (1, 2):
        for _ in range(times):
            cuda.allocator.install(pass_on, pass_on)
        assert cuda.allocator.installed
        cuda.allocator.uninstall()

    assert entry_points(cuda.torch) == originals
    assert not cuda.allocator.installed


def wrap_ours(torch: Any) -> Any:
    """Put another tool's wrapper on what reads the counters, and return it."""
    ours = torch._C._cuda_memoryStats
    torch._C._cuda_memoryStats = functools.partial(ours)
    return torch._C._cuda_memoryStats


def test_somebody_elses_wrapper_stays() -> None:
    """What another tool put on top of ours is neither removed nor broken, and ours then only passes on."""
    cuda = Cuda()
    cuda.allocator.install(refuse, refuse)
    theirs = wrap_ours(cuda.torch)
    cuda.allocator.uninstall()

    assert cuda.torch._C._cuda_memoryStats is theirs
    assert cuda.torch._C._cuda_memoryStats(0) == cuda.fake.stats(0)


def test_installing_over_somebody_elses_wrapper_does_not_recurse() -> None:
    """Reading raw while another tool's wrapper lies between ours and the original comes to an end."""
    cuda = Cuda()
    for _ in range(2):
        cuda.allocator.install(lambda raw, device: cuda.allocator.stats(device), pass_on)
        wrap_ours(cuda.torch)
        assert cuda.torch._C._cuda_memoryStats(0) == cuda.fake.stats(0)


def test_a_device_is_opened_by_its_first_memory() -> None:
    """A device counts as opened from its first allocation on, whatever its number."""
    cuda = Cuda(devices=3)
    opened = [list(cuda.allocator.opened())]
    for device in (2, 0):
        cuda.fake.free(cuda.fake.alloc(MIB, device=device))
        opened.append(list(cuda.allocator.opened()))

    assert opened == [[], [2], [0, 2]]


@pytest.mark.parametrize("fault", [AttributeError, RuntimeError])
def test_where_nothing_tells_all_devices_count_as_opened(fault: type[Exception]) -> None:
    """Where torch or the driver does not tell, all devices count as opened."""
    cuda = Cuda(devices=3)
    cuda.torch._C._cuda_hasPrimaryContext = Mock(side_effect=fault)

    assert list(cuda.allocator.opened()) == [0, 1, 2]
