"""The state of PyTorch's caching allocator at the instant at which it runs out of memory.

PyTorch cannot detach an observer, and an exception in one reaches the user's code. So a process attaches a
single observer, once the user's own code has initialised the devices; it calls its listeners, and never
raises. PyTorch calls it on the thread that requested memory, before the error is raised and without the
allocator's lock. In a backward pass that is autograd's own thread, which may run no Python.
"""

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any, Final

from hfmem_widget.errors import SourceUnavailable
from hfmem_widget.guard import interrupts_deferred, warn
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.segments import NO_POOL
from hfmem_widget.sources import open_allocators
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.heap.referents import outwards

MOST_BLOCKS: Final = 100_000  # a device with more blocks gets no summary of them
MOST_BIGGEST: Final = 5
MOST_CALLS: Final = 100  # the most running functions that are noted
SNAPSHOT_SHARE: Final = 0.05  # the share of time for summaries if events follow each other
SMALL_SEGMENT: Final = 2 * 2**20  # the size of the segments in the pool of small requests

BACKWARD: Final = "torch.autograd.graph._engine_run_backward"
"""The function in which a thread waits while autograd runs its backward pass."""

_AUTOGRADS: Final = "pt_autograd"  # torch's name for autograd's threads and those that they start
_NAME_OF_THREAD: Final = Path("/proc/thread-self/comm")
_LIBRARIES: Final = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<built-in")
# Typed or generated code has a file name in angle brackets; C++ has that of a library, or none.
_PYTHON: Final = re.compile(r"<.*|.*\.py", re.DOTALL)
_CELL: Final = ("ipykernel_", "<ipython-input-")


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Live blocks of one size that were allocated in one place."""

    bytes: float  # of each
    count: int
    where: str = ""  # the user's own line and function, if stacks were recorded


@dataclass(frozen=True, slots=True)
class Blocks:
    """A summary of a caching allocator's blocks; bytes."""

    count: int = 0
    # The largest of the free blocks that could have served the request, and their sum:
    largest_free: float = NOT_AVAILABLE
    free: float = NOT_AVAILABLE
    private_free: float = 0.0  # in private pools (CUDA graphs, a MemPool), which serve nobody else
    expandable: bool = False  # whether any segment is expandable
    biggest: tuple[LiveBlocks, ...] = ()  # the groups with the most bytes


@dataclass(frozen=True, slots=True)
class OomEvent:
    """One request that a device's caching allocator could not serve; bytes, NaN if unknown."""

    device: str  # its key
    asked: float  # as the allocator rounds it up to a segment
    ceiling: float  # what this process may use: the device's capacity, or less if a limit is set
    free: float  # on the device, according to the driver
    total: float = NOT_AVAILABLE  # the device's capacity according to CUDA
    # The allocator's own counters: allocated, reserved, active, requested.
    readings: Mapping[str, float] = field(default_factory=dict)
    blocks: Blocks | None = None  # None if there were too many, or the allocator does not list them
    # The running functions of the requesting thread, innermost first. Those of an autograd thread are
    # followed by those of the thread that waits for it, if there is just one.
    calls: tuple[str, ...] = ()
    capability: tuple[int, ...] = ()  # the device's compute capability; empty if unknown
    autocast: bool | None = None  # None on an autograd thread, where it is unknown


Listener = Callable[[OomEvent], None]


class OomObserver:
    """Notifies its listeners of every request that the first of its allocators with devices cannot serve."""

    def __init__(
        self, *allocators: Allocator, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._allocators = allocators or open_allocators()
        self._allocator = self._allocators[0]
        self._clock = clock
        self._listeners: list[Listener] = []
        self.settled = False
        """True once it has attached to an allocator, or has tried to."""
        self._look_again_at: dict[int, float] = {}  # by device, since several may run out at once

    def listen(self, listener: Listener) -> None:
        """Call `listener(event)` for each event, on the requesting thread; it must be quick."""
        self._listeners.append(listener)
        self.attach()

    def leave(self, listener: Listener) -> None:
        """Remove a listener; harmless if it is not registered."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def attach(self) -> None:
        """Attach to the allocator once its devices are initialised; doing so again does nothing."""
        if self.settled:
            return
        allocator = next((candidate for candidate in self._allocators if candidate.devices()), None)
        if allocator is not None:
            self.settled, self._allocator = True, allocator
            allocator.observe(self._ran_out)

    def describe(self, device: str) -> tuple[float, tuple[int, ...]]:
        """Return a device's capacity and compute capability; this initialises nothing."""
        allocator = self._allocator
        try:
            index = [*map(allocator.key, allocator.devices())].index(device)
            return allocator.device(index).total, allocator.capability(index)
        except (AttributeError, AssertionError, RuntimeError, ValueError):
            return NOT_AVAILABLE, ()

    def _ran_out(self, device: int, asked: int, ceiling: int, free: int) -> None:
        listeners = tuple(self._listeners)
        if not listeners:
            return
        try:
            with interrupts_deferred():
                # The frame that called this function; autograd's own threads may have none.
                frame = sys._getframe().f_back  # noqa: SLF001  (inspect.currentframe is the same)
                event = self._event(device, asked, ceiling, free, frame)
                for listener in listeners:
                    listener(event)
        except Exception as error:  # noqa: BLE001  (it would replace the user's own error)
            warn(f"an out-of-memory error was not looked at ({type(error).__name__}: {error})")

    def _event(
        self, device: int, asked: int, ceiling: int, free: int, frame: FrameType | None
    ) -> OomEvent:
        began = self._clock()
        # Read from the allocator directly: the ledger of peaks may be busy on this very thread.
        stats = self._allocator.stats(device)
        is_autograds = _is_autograds_thread()
        waiting = outwards(_waiting_for_autograd() if is_autograds else None)
        calls = calls_of(chain(outwards(frame), waiting))
        blocks = None
        counts = [stats.get(name, {}).get("all", {}) for name in ("active", "inactive_split")]
        count = sum(int(kind.get("current", 0)) for kind in counts)
        if began >= self._look_again_at.get(device, 0.0) and count <= MOST_BLOCKS:
            with suppress(SourceUnavailable):  # blocks are listed only with the whole history
                blocks = summed_up(self._allocator.snapshot(quick=True), device, asked)
        ended = self._clock()
        self._look_again_at[device] = ended + (ended - began) / SNAPSHOT_SHARE
        key = f"{self._allocator.device_type}:{device}"
        total, capability = self.describe(key)
        return OomEvent(
            device=key,
            asked=float(asked),
            ceiling=float(ceiling),
            free=float(free),
            total=total,
            readings={
                metric: float(stats[f"{metric}_bytes"]["all"]["current"])
                for metric in ("allocated", "reserved", "active", "requested")
                if f"{metric}_bytes" in stats
            },
            blocks=blocks,
            calls=calls,
            capability=capability,
            autocast=self._allocator.autocast() if frame is not None and not is_autograds else None,
        )


OBSERVER: Final = OomObserver()
"""The observer of this process, which stays attached."""


def calls_of(frames: Iterable[FrameType]) -> tuple[str, ...]:
    """Return the functions of some frames as ``module.name``, in their order; no frame is kept."""
    return tuple(islice(map(_name_of, frames), MOST_CALLS))


def _name_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}"


def _is_autograds_thread() -> bool:
    try:
        return _NAME_OF_THREAD.read_text(errors="replace").startswith(_AUTOGRADS)
    except OSError:  # this system does not name threads
        return False


def _waiting_for_autograd() -> FrameType | None:
    """Return the frame in which a thread waits for autograd; None if several threads do."""
    innermost = sys._current_frames()  # noqa: SLF001  (there is no public way)
    # This function's own frame would make a reference cycle, and keep all frames until a collection.
    innermost.pop(threading.get_ident(), None)
    # All frames of a thread are searched, since the waiting thread runs CPU operators and hooks meanwhile.
    waiting = [
        frame
        for inner in innermost.values()
        if (frame := next((each for each in outwards(inner) if _name_of(each) == BACKWARD), None))
    ]
    return waiting[0] if len(waiting) == 1 else None


def summed_up(segments: Iterable[Mapping[str, Any]], device: int, asked: int) -> Blocks:
    """Return a summary of one device's blocks for a request of `asked` bytes, rounded up to a segment.

    The segments are as `torch.cuda.memory_snapshot` returns them; small requests have a pool of their own.
    """
    pool = "small" if asked <= SMALL_SEGMENT else "large"
    own = [segment for segment in segments if segment["device"] == device]
    private, free = 0, [0]
    live: Counter[tuple[int, str]] = Counter()
    for segment in own:
        is_private = tuple(segment.get("segment_pool_id", NO_POOL)) != NO_POOL
        for block in segment["blocks"]:
            size = block["size"]
            if block["state"] == "active_allocated":
                live[size, _where(block.get("frames") or ())] += 1
            elif block["state"] == "inactive" and is_private:
                private += size
            elif block["state"] == "inactive" and segment.get("segment_type", pool) == pool:
                free.append(size)
    biggest = sorted(live.items(), key=lambda item: item[0][0] * item[1], reverse=True)
    return Blocks(
        count=sum(len(segment["blocks"]) for segment in own),
        largest_free=float(max(free)),
        free=float(sum(free)),
        private_free=float(private),
        expandable=any(segment.get("is_expandable") for segment in own),
        biggest=tuple(
            LiveBlocks(float(size), number, where)
            for (size, where), number in biggest[:MOST_BIGGEST]
        ),
    )


def _where(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost line of the user's code, or of any Python code if there is none."""
    python = [frame for frame in frames if _PYTHON.fullmatch(str(frame.get("filename", "")))]
    own = [frame for frame in python if not any(part in frame["filename"] for part in _LIBRARIES)]
    frame = next(iter(own or python), None)
    if frame is None:
        return ""
    filename = str(frame["filename"])
    is_cell = any(mark in filename for mark in _CELL)
    name = "a cell" if is_cell else filename.replace("\\", "/").rpartition("/")[2]
    return f"{name}, line {frame.get('line', '?')}, in {frame.get('name', '?')}"
