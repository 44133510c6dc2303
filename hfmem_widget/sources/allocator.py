"""A caching allocator of PyTorch's: one protocol, and one owner for each allocator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hfmem_widget.session import Device
from hfmem_widget.session.model import NOT_AVAILABLE

Stats = dict[str, Any]
"""An allocator's counters, as `torch.cuda.memory_stats_as_nested_dict` returns them: bytes and counts."""

ReadStats = Callable[[int], Stats]
ResetPeak = Callable[[int], None]
RanOut = Callable[[int, int, int, int], None]
"""Takes a device's index, and bytes: asked for, usable by this process, free on the device."""


class Reading(NamedTuple):
    """What one device's counters said at an instant, in bytes and counts; NaN where one is not kept.

    The `Stats` that it is taken from are dozens of dictionaries within one another. Kept until the poller
    comes, they would make Python search for garbage twice as often, on the thread that trains.
    """

    allocated: float
    reserved: float
    peak: float  # of allocated
    active: float
    requested: float
    inactive_split: float
    alloc_retries: float
    ooms: float
    private_pools: float  # reserved in them
    peak_reserved: float
    peak_active: float
    peak_requested: float
    allocations: float  # ever made
    in_use: bool  # whether this process has anything there, or had since its peaks were reset


def reading_of(stats: Stats) -> Reading:
    """Return what is kept of some counters; whatever is missing, as with another torch, is NaN."""
    pools = stats.get("reserved_bytes_by_private_pools")
    if pools:
        private = sum((_value(pool, "all", "current") for pool in pools.values()), 0.0)
    else:
        private = NOT_AVAILABLE if pools is None else 0.0
    try:
        # Without a function for each: this is done at every edge, with cold caches.
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        active, requested = stats["active_bytes"]["all"], stats["requested_bytes"]["all"]
        return Reading(
            allocated["current"],
            reserved["current"],
            allocated["peak"],
            active["current"],
            requested["current"],
            stats["inactive_split_bytes"]["all"]["current"],
            stats["num_alloc_retries"],
            stats["num_ooms"],
            private,
            reserved["peak"],
            active["peak"],
            requested["peak"],
            stats["allocation"]["all"]["allocated"],
            reserved["peak"] > 0,
        )
    except (KeyError, TypeError):
        return reading_of(_completed(stats))


def _completed(stats: Stats) -> Stats:
    """Return counters with all that a `Reading` has, NaN for what is missing or no figure."""
    pooled = (
        *("allocated_bytes", "reserved_bytes", "active_bytes"),
        *("requested_bytes", "inactive_split_bytes", "allocation"),
    )
    completed: Stats = {name: _value(stats, name) for name in ("num_alloc_retries", "num_ooms")}
    for name in pooled:
        figures = ("current", "peak", "allocated")
        completed[name] = {"all": {each: _value(stats, name, "all", each) for each in figures}}
    return {**stats, **completed}


def _value(stats: Any, *path: str) -> float:
    try:
        for key in path:
            stats = stats[key]
        return float(stats)
    except (KeyError, TypeError, ValueError):
        return NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Recorded:
    """A snapshot of the allocator with its history, as `torch.cuda.memory._snapshot` returns it."""

    snapshot: dict[str, Any]
    began_at: float  # seconds since the epoch
    seconds: float  # that it took to read the snapshot
    # Seconds to walk one Python stack, as measured; NaN if that cannot be measured.
    per_stack: float
    most: int  # events per device that could be kept
    device_type: str


class AllocatorHistory(Protocol):
    """The allocator's own recording of allocations and their stacks, for the time of a watch.

    A recording of the user's is not read, changed or ended.
    """

    obstacle: str
    """Why nothing was recorded although the device was used, as a sentence; else empty."""

    def look(self, *, imported: bool = False) -> None:
        """Begin if the device is initialised, else when it will be; on any thread, any number of times.

        `imported` says that torch can be used although its import has not come back yet.
        """

    def end(self) -> Recorded | None:
        """End the recording and return it; None where nothing was recorded."""


class Allocator(Protocol):
    """The caching allocator of one type of device: the only object that calls its entry points in torch.

    The source, the peak ledger, the memory map, out-of-memory errors, stacks and `free` use this protocol.
    A further member is one class in a file of its own, and one line in `sources.ALLOCATORS` (ROCm is torch's
    "cuda"). It must have:

    - `devices`, `stats` with at least ``allocated_bytes`` and ``reserved_bytes`` (``all``: ``current``,
      ``peak``), and `device`. A counter that is missing is shown as not available.
    - For exact peaks: `reset_peak`, which sets every ``peak`` to its ``current``; the count
      ``allocation.all.allocated``, without which peaks are lower bounds; and `install`. One that cannot reset
      its peaks leaves the ``peak`` keys out.

    What else it may lack, it says as each method describes; a class that derives from this one may leave out
    `opened`, `capability`, `processes`, `busy`, `history` and `autocast`.

    Every method may be called before torch is imported or the device is initialised, except those that take
    an index. None initialises a device, creates a context, synchronises, or allocates on it. `stats`,
    `reset_peak`, `devices` and `opened` run at every tick and every edge: at most some 10 µs each.

    One torch has one accelerator: at most one member has devices.
    """

    device_type: str
    """As `torch.device.type`: what comes before the colon in a device's key."""

    @property
    def installed(self) -> bool:
        """Whether the entry points are wrapped by this very object."""

    def supported(self) -> bool:
        """Return whether torch is loaded and built for this type of device."""

    def other_accelerator(self) -> str | None:
        """Return the device type that torch is built for where it is not this one; "" for none.

        None while torch is not there, or still being imported.
        """

    def devices(self) -> range:
        """Return the indices of the visible devices; empty until the user's code has initialised them.

        Also empty in a forked child, where they cannot be used.
        """

    def opened(self) -> Sequence[int]:
        """Return those of `devices`, in order, on which this process can have memory.

        The others are not read: of eight devices that a process sees, it mostly uses one. By default all, as
        where it is not known on which there is a context.
        """
        return self.devices()

    def device(self, index: int) -> Device:
        """Return what an initialised device is, as the driver's library names it; raises what torch does."""

    def capability(self, index: int) -> tuple[int, ...]:
        """Return an initialised device's compute capability; empty where there is no such thing."""
        return ()

    def free_and_total(self, index: int) -> tuple[float, float] | None:
        """Return the device's free and total bytes as its driver counts them, on any thread that may wait.

        None where another source reads them, and on a device that this process has not opened.
        """

    def processes(self, index: int) -> Mapping[int, float] | None:
        """Return what each process has of such a device by its id, in bytes; as `free_and_total` otherwise.

        It may take milliseconds, and raise what the driver's library does.
        """
        return None

    def busy(self, index: int) -> float:
        """Return how busy such a device is, in percent; NaN where that is unknown."""
        return NOT_AVAILABLE

    def stats(self, index: int) -> Stats:
        """Return the counters of an initialised device, past any wrapper; the caller may change them.

        Where the allocator keeps none, it raises what torch does.
        """

    def reset_peak(self, index: int) -> None:
        """Set the peaks of an initialised device to their current values, past any wrapper."""

    def install(
        self, read: Callable[[ReadStats, int], Stats], reset: Callable[[ResetPeak, int], None]
    ) -> None:
        """Let the user's readings go through `read(raw, index)` and resets through `reset(raw, index)`.

        Installed again, the two functions are replaced. Raises `SourceUnavailable` where torch has no such
        entry points.
        """

    def uninstall(self) -> None:
        """Put the original entry points back; where somebody has since wrapped ours, it only passes on."""

    def snapshot(self, *, quick: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the segments of all initialised devices, as `torch.cuda.memory_snapshot` does.

        Raises `SourceUnavailable` where the allocator keeps no list of segments, or refuses; with `quick`
        also where torch would copy the recorded history along, which takes seconds.
        """

    def observe(self, ran_out: RanOut) -> None:
        """Have `ran_out` called before each out-of-memory error, for good: it cannot be undone.

        It is called on the thread that asked for memory, and must not raise. `devices` must have some. Where
        the allocator cannot be observed this has no effect, and the error's text remains.
        """

    def history(self, on_start: Callable[[], object]) -> AllocatorHistory | None:
        """Return a recording that waits for its first `look`; None where the allocator keeps none.

        `on_start` is called once when it begins to record, on the thread that made it begin.
        """
        return None

    def autocast(self) -> bool | None:
        """Return whether autocast is on for these devices on the calling thread; None where unknown."""
        return None

    def empty_cache(self) -> None:
        """Return cached memory to the driver. This disturbs, so only `features.free.request` may call it."""


def keys_of(allocator: Allocator) -> tuple[str, ...]:
    """Return the keys of the initialised devices, in the order of their indices."""
    return tuple(f"{allocator.device_type}:{index}" for index in allocator.devices())


@dataclass(frozen=True, slots=True)
class Instant:
    """Readings of one instant, which a sample of that instant need not repeat."""

    allocator: Allocator | None
    readings: Mapping[int, Reading]  # of the opened devices, in the order of their indices
    held: Sequence[float] | None = None  # the values of `TensorSource`
