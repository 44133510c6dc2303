"""The ledger keeps exact peaks for any windows and leaves the user's own as they were."""

import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.monitor.peaks import PeakLedger, Peaks, Shadow, Window, remember, show
from hfmem_widget.session import Peak
from hfmem_widget.sources.allocator import Stats
from tests.fakes.torch_cuda import FakeAllocator

KEY = "cuda:0/allocated"
MIB = 1 << 20


class Gpu(FakeAllocator):
    """A GPU, and the ledger of its peaks."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PeakLedger(self)

    def use(self, size: int) -> None:
        self.free(self.alloc(size))


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.mark.parametrize(
    "reset",
    [lambda gpu: gpu.ledger.close(gpu.ledger.open()), lambda gpu: gpu.user_reset(0)],
    ids=["an edge", "a reset by the user"],
)
def test_an_allocation_before_reset_makes_a_bound(gpu: Gpu, reset: Callable[[Gpu], object]) -> None:
    """If another thread allocated in between, the windows open across it say `at least`."""
    gpu.alloc(MIB)
    window = gpu.ledger.open()
    gpu.before_reset = lambda: gpu.use(16 * MIB)
    reset(gpu)

    assert gpu.ledger.close(window)[KEY].certainty == "at least"


def test_without_the_count_of_allocations_there_is_no_certificate(gpu: Gpu) -> None:
    """CudaMallocAsync has no such count, so a peak is a bound if the counter was reset."""
    gpu.counts_allocations = False
    gpu.alloc(MIB)
    window = gpu.ledger.open()
    gpu.alloc(MIB)

    assert gpu.ledger.close(window)[KEY].certainty == "at least"


def test_where_nothing_was_reset_no_certificate_is_needed(gpu: Gpu) -> None:
    """On a device that was unused before, the counter itself is the window's peak."""
    gpu.counts_allocations = False
    window = gpu.ledger.open()
    gpu.use(8 * MIB)

    assert (gpu.ledger.close(window)[KEY], gpu.resets) == (Peak(8.0 * MIB, "exact"), 0)


def test_a_look_returns_only_windows_with_changed_peaks(gpu: Gpu) -> None:
    """A training on its plateau reports nothing new twice a second; a higher peak is reported."""
    window = gpu.ledger.open()
    gpu.use(8 * MIB)
    first, again = gpu.ledger.look()[0], gpu.ledger.look()[0]
    gpu.use(9 * MIB)
    higher = gpu.ledger.look()[0]

    assert first[window][KEY].value == 8 * MIB
    assert again == {}
    assert higher[window][KEY].value == 9 * MIB


def test_a_reset_by_the_user_that_was_not_seen_whole_makes_a_bound(gpu: Gpu) -> None:
    """A reset makes a bound where the counters could not be read before it, or an interrupt came after."""
    unread, interrupted = gpu.ledger.open(), gpu.ledger.open()
    read, reset = gpu.stats, gpu.reset_peak

    def interrupt(index: int) -> None:
        reset(index)
        raise KeyboardInterrupt

    gpu.use(64 * MIB)
    gpu.stats = Mock(side_effect=[MemoryError(), *[read(0)] * 9])  # type: ignore[method-assign]
    gpu.user_reset(0)
    gpu.stats = read  # type: ignore[method-assign]
    assert gpu.ledger.close(unread)[KEY].certainty == "at least"
    gpu.use(8 * MIB)
    gpu.reset_peak = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        gpu.user_reset(0)
    assert gpu.ledger.close(interrupted)[KEY] == Peak(8.0 * MIB, "at least")
    assert gpu.user_stats(0)["allocated_bytes"]["all"]["peak"] == 0


def test_an_interrupt_at_an_edge_loses_no_peak(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes once the counters are read and reset, and all peaks stay exact, the user's included."""
    outer, reset = gpu.ledger.open(), gpu.reset_peak
    gpu.use(8 * MIB)

    def interrupted(index: int) -> None:
        signal.raise_signal(signal.SIGINT)
        reset(index)

    monkeypatch.setattr(gpu, "reset_peak", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu.ledger.open()

    assert gpu.ledger.close(outer)[KEY] == Peak(8.0 * MIB, "exact")
    assert gpu.user_stats(0)["allocated_bytes"]["all"]["peak"] == 8 * MIB


def test_a_refused_reset_raises_its_own_error(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    """A pluggable allocator raises; the ledger writes nothing."""
    gpu.ledger.open()
    refuse = Mock(side_effect=RuntimeError("CUDAPluggableAllocator does not yet support it"))
    gpu.stats = gpu.reset_peak = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="Pluggable"):
        gpu.user_reset(0)

    assert capsys.readouterr().err == ""


def test_a_reset_of_a_missing_device_changes_no_peak(gpu: Gpu) -> None:
    """The reset raises as it does without us."""
    window = gpu.ledger.open()
    gpu.use(MIB)
    with pytest.raises(IndexError):
        gpu.user_reset(7)

    assert gpu.ledger.close(window)[KEY] == Peak(1.0 * MIB, "exact")


def test_two_threads_that_install_at_once_spoil_no_peak(gpu: Gpu) -> None:
    """The second of two threads that install at once changes no peak."""
    gpu.alloc(MIB)
    windows: list[Window] = []

    def meanwhile() -> bool:
        del gpu.supported
        windows.append(gpu.ledger.open())  # as another thread does
        return True

    gpu.supported = meanwhile  # type: ignore[method-assign]
    gpu.ledger.install()

    assert gpu.ledger.close(windows[0])[KEY] == Peak(1.0 * MIB, "exact")


def test_a_window_that_closes_before_anything_was_wrapped_is_a_bound(gpu: Gpu) -> None:
    """A window in which torch was imported, and the user has reset the peaks, is a bound."""
    gpu.initialized, gpu.supported = False, lambda: False  # type: ignore[method-assign]
    window = gpu.ledger.open()
    del gpu.supported
    gpu.initialized = True
    gpu.use(64 * MIB)
    gpu.user_reset(0)

    assert gpu.ledger.close(window)[KEY].certainty == "at least"


ACTIONS = st.lists(
    st.sampled_from(
        [
            *("alloc", "alloc_elsewhere", "free", "open", "close_old", "close_new", "turn"),
            *("look", "user_reset", "user_peak"),
        ]
    ),
    max_size=80,
)


class _Truth:
    """Peaks of one device kept the slow way: every window and the user look at every change."""

    def __init__(self, allocator: FakeAllocator, device: int) -> None:
        self.counters = allocator.pools[device].stats["allocated_bytes"]["all"]
        self.key = f"cuda:{device}/allocated"
        self.windows: dict[Window, int] = {}
        self.user = 0

    @property
    def now(self) -> int:
        now: int = self.counters["current"]
        return now

    def look(self) -> None:
        self.user = max(self.user, self.now)
        for window, peak in self.windows.items():
            self.windows[window] = max(peak, self.now)

    def compare(self, peaks_by_window: dict[Window, Peaks]) -> None:
        for window, peaks in peaks_by_window.items():
            if self.key in peaks or self.windows[window]:
                assert peaks[self.key] == Peak(self.windows[window], "exact")

    def turn(self, ledger: PeakLedger, window: Window) -> None:
        following = ledger.turn(window)
        self.compare({window: window.peaks})
        del self.windows[window]
        self.windows[following] = self.now


@settings(max_examples=300)
@given(actions=ACTIONS, device=st.sampled_from([0, 2]), data=st.data())
def test_any_interleaving_is_exact(actions: list[str], device: int, data: st.DataObject) -> None:
    """No peak is a byte off, the user's included, whether or not another device is used meanwhile."""
    allocator = FakeAllocator(devices=3)
    ledger = PeakLedger(allocator)
    ledger.install()
    truth = _Truth(allocator, device)
    blocks: list[int] = []
    for action in actions:
        if action.startswith("alloc"):
            target = device if action == "alloc" else 1
            blocks.append(allocator.alloc(data.draw(st.integers(1, 1 << 30)), target))
        elif action == "free" and blocks:
            allocator.free(blocks.pop(data.draw(st.integers(0, len(blocks) - 1))))
        elif action == "open":
            truth.windows[ledger.open()] = truth.now
        elif action.startswith("close") and truth.windows:
            ends = list(truth.windows)
            window = ends[0] if action == "close_old" else ends[-1]
            truth.compare({window: ledger.close(window)})
            del truth.windows[window]
        elif action == "turn" and truth.windows:
            truth.turn(ledger, data.draw(st.sampled_from(list(truth.windows))))
        elif action == "look":
            truth.compare(ledger.so_far())
        elif action == "user_reset":
            allocator.user_reset(device)
            truth.user = truth.now
        elif action == "user_peak":
            stats = allocator.user_stats(device)
            assert stats["allocated_bytes"]["all"]["peak"] == truth.user
        truth.look()


@settings(max_examples=100)
@given(actions=ACTIONS, data=st.data())
def test_the_user_reads_what_they_would_read_without_us(actions: list[str], data: Any) -> None:
    """Every statistic of every pool is as without a ledger."""
    watched, alone = FakeAllocator(), FakeAllocator()
    ledger = PeakLedger(watched)
    ledger.install()
    windows: list[Window] = []
    blocks: list[tuple[int, int]] = []
    for action in actions:
        if action.startswith("alloc"):
            size = data.draw(st.integers(1, 1 << 30))
            blocks.append((watched.alloc(size), alone.alloc(size)))
        elif action == "free" and blocks:
            ours, theirs = blocks.pop(data.draw(st.integers(0, len(blocks) - 1)))
            watched.free(ours)
            alone.free(theirs)
        elif action == "open":
            windows.append(ledger.open())
        elif action.startswith("close") and windows:
            ledger.close(windows.pop(0 if action == "close_old" else -1))
        elif action == "turn" and windows:
            windows.append(ledger.turn(windows.pop()))
        elif action == "user_reset":
            watched.user_reset(0)
            alone.user_reset(0)
        assert watched.user_stats(0) == alone.user_stats(0)


def test_a_device_without_statistics_leaves_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pluggable allocator raises instead, also for the user, and what was read before is not lost."""
    allocator = FakeAllocator(2)
    read = allocator.stats

    def stats(device: int) -> dict[str, Any]:
        if device == 1:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        return read(device)

    monkeypatch.setattr(allocator, "stats", stats)
    ledger = PeakLedger(allocator)
    window = ledger.open()
    allocator.free(allocator.alloc(4096))
    peaks = ledger.close(window)

    assert peaks["cuda:0/allocated"] == Peak(4096, "exact")
    assert not any(key.startswith("cuda:1/") for key in peaks)
    assert allocator.user_stats(0)["allocated_bytes"]["all"]["peak"] == 4096


def test_a_lasting_window_outlives_sessions(gpu: Gpu) -> None:
    """When sessions restart, their windows are dropped, and it continues with its peak."""
    lasting = gpu.ledger.open(lasts=True)
    gpu.ledger.open()
    gpu.use(8 * MIB)
    gpu.ledger.drop_all()

    assert len(gpu.ledger.so_far()) == 1
    assert gpu.ledger.close(lasting)[KEY] == Peak(8 * MIB, "exact")


def stats_with_private_pool(peak: int) -> Stats:
    """Return statistics as they are while a CUDA graph holds memory of its own."""
    pools = {(0, 1): {"all": {"current": 0, "peak": peak, "allocated": 0, "freed": 0}}}
    return FakeAllocator().stats(0) | {"reserved_bytes_by_private_pools": pools}


def test_peaks_outside_of_families_are_remembered_too() -> None:
    """Peaks of private pools, which come and go, and of single statistics are remembered."""
    shadow: Shadow = {}
    remember(shadow, FakeAllocator().stats(0))
    remembered = stats_with_private_pool(7 * MIB)
    remembered["oversize_segments"]["peak"] = 3
    remember(shadow, remembered)
    stats = stats_with_private_pool(2 * MIB)
    show(shadow, stats)

    assert stats["reserved_bytes_by_private_pools"][0, 1]["all"]["peak"] == 7 * MIB
    assert stats["oversize_segments"]["peak"] == 3
