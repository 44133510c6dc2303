"""The layout of an allocator's memory: its segments, their blocks, and the use of each byte.

Each byte of a segment belongs to one part: requested, added by rounding, waiting for another stream, or free.
Free parts differ in who can use them, and in whether they can be returned to the driver.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, NamedTuple

from hfmem_widget.display import Shown
from hfmem_widget.session.model import Part
from hfmem_widget.text import MIB

BlockState = Literal["allocated", "pending", "free"]
"""In use; freed, but another stream may still read it; free."""

SegmentKind = Literal["small", "large", "heap", "top", "mapped"]
"""The CUDA allocator's pools for requests up to 1 MiB and for larger ones; the parts of a C heap."""

NO_POOL = (0, 0)

_STATES: Final[dict[str, BlockState]] = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    # The same state, as the documentation of torch calls it.
    "active_awaiting_free": "pending",
    "inactive": "free",
}

Frames = Sequence[Mapping[str, Any]]
"""The frames of a stack, each with file name, line and name, innermost first."""


class Event(NamedTuple):
    """An action of an allocator; bytes, as requested."""

    action: str  # such as "alloc", "free_requested", "free_completed"
    address: int
    size: int
    time_us: int | None  # microseconds since the epoch; None before torch 2.2
    frames: Frames


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment; bytes."""

    address: int
    size: int
    requested: int  # bytes of the request; 0 where it is free
    state: BlockState
    frames: Frames = ()  # the stack that allocated it; empty if unknown


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous piece of memory that an allocator reserved."""

    device: str  # its key
    address: int  # 0 if unknown, as for a C heap
    size: int  # bytes
    kind: SegmentKind
    blocks: tuple[Block, ...]  # in the order of their addresses; they fill it
    stream: int = 0  # the CUDA stream that can use its free blocks; 0 is the default stream
    pool: tuple[int, int] = NO_POOL  # its private pool, such as a CUDA graph's
    expandable: bool = False  # whether it can grow, and return single pages

    @property
    def in_use(self) -> bool:
        """True unless all of it is free."""
        return any(block.state != "free" for block in self.blocks)


Piece = tuple[str, int]  # the name of a part, and the size of a contiguous piece of it in bytes

LABELS: Final[Mapping[str, str]] = {
    "used": "in use",
    "rounding": "added by rounding",
    "pending": "freed, still used by a stream",
    "hole": "free, in partly used segments",
    "whole": "free, in whole segments",
    "stream": "free, for other streams only",
    "pool": "free, in private pools only",
}
"""The labels of a segment's parts, in the order of tables and legends."""

_OF_PAGES = {"hole": "free, on partly used pages", "whole": "free, in whole pages"}
_OF_A_HEAP = {"hole": "free, within the heap", "whole": "free, at the heap's top"}

FREE: Final = ("hole", "whole", "stream", "pool")

DEFAULT_STREAM: Final = 0
SMALL_REQUEST: Final = int(MIB)  # requests up to this size are served from segments of small blocks

_SMALL_PAGE: Final = 2 * int(MIB)
_LARGE_PAGE: Final = 20 * int(MIB)


@dataclass(frozen=True, slots=True)
class StreamPool:
    """Segments that serve the same requests: those of one stream in one pool."""

    stream: int  # 0 is the default stream
    pool: tuple[int, int]  # (0, 0) is the common pool
    segments: tuple[Segment, ...]  # the largest first
    pieces: tuple[tuple[Piece, ...], ...]  # of each segment, in the order of addresses
    sums: Mapping[str, int]  # bytes by the names of `LABELS`
    largest: Mapping[str, int]  # the largest free block in bytes, by kind of segment with one

    @property
    def name(self) -> str:
        """Its stream and pool, in words."""
        stream = f"stream {self.stream:#x}" if self.stream else "the default stream"
        if not self.is_private:
            return stream
        pool = f"private pool {self.pool[0]}.{self.pool[1]}"
        return f"{pool}, {stream}" if self.stream else pool

    @property
    def reserved(self) -> int:
        """Bytes of all its segments."""
        return sum(self.sums.values())

    @property
    def free(self) -> int:
        """Bytes of it that are free."""
        return sum(self.sums[name] for name in FREE)

    @property
    def is_private(self) -> bool:
        """Whether only the owner of its pool can use it."""
        return self.pool != NO_POOL

    @property
    def is_common(self) -> bool:
        """Whether it serves ordinary code: the default stream, in the common pool."""
        return not self.is_private and self.stream == DEFAULT_STREAM

    @property
    def fits(self) -> int:
        """The largest request in bytes that it can serve without more memory from the driver."""
        large = self.largest.get("large", 0)
        return large or min(self.largest.get("small", 0), SMALL_REQUEST)


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The parts of a device's segments."""

    device: str
    places: tuple[StreamPool, ...]  # the common one first, then by bytes

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of all places."""
        return tuple(segment for place in self.places for segment in place.segments)

    @property
    def is_host(self) -> bool:
        """Whether it describes a C heap, whose blocks have no known addresses."""
        return any(segment.kind == "heap" for segment in self.segments)

    @property
    def expandable(self) -> bool:
        """Whether any segment can grow, and return single pages."""
        return any(segment.expandable for segment in self.segments)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that are not empty; they add up to `reserved`."""
        sums = ((name, label, self.bytes(name)) for name, label in self.labels.items())
        return tuple(Part(name, label, size) for name, label, size in sums if size)

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the parts on this device, by name."""
        own = _OF_A_HEAP if self.is_host else _OF_PAGES if self.expandable else {}
        return {**LABELS, **own}

    @property
    def reserved(self) -> int:
        """Bytes that the allocator holds from the driver, or from the system."""
        return sum(place.reserved for place in self.places)

    @property
    def fits(self) -> int:
        """The largest request in bytes of ordinary code that needs no more memory from the driver."""
        return max((place.fits for place in self.places if place.is_common), default=0)

    def bytes(self, name: str) -> int:
        """Return the bytes of a part by its name."""
        return sum(place.sums[name] for place in self.places)


def pieces(segment: Segment) -> Iterator[Piece]:
    """Yield the parts of a segment, in the order of addresses."""
    free = "hole" if segment.in_use else "whole"
    if segment.pool != NO_POOL:
        free = "pool"
    elif segment.stream != DEFAULT_STREAM:
        free = "stream"
    for block in segment.blocks:
        if block.state == "pending":
            yield "pending", block.size
        elif block.state == "allocated":
            if block.requested:
                yield "used", block.requested
            if block.size > block.requested:
                yield "rounding", block.size - block.requested
        elif free == "hole" and segment.expandable:
            yield from _by_pages(segment, block)
        else:
            yield free, block.size


def _by_pages(segment: Segment, block: Block) -> Iterator[Piece]:
    is_large = segment.kind == "large" and not segment.size % _LARGE_PAGE
    page = _LARGE_PAGE if is_large else _SMALL_PAGE
    start = block.address - segment.address
    stop = start + block.size
    first, last = -(-start // page) * page, stop // page * page
    if first >= last:
        yield "hole", block.size
        return
    for name, size in (("hole", first - start), ("whole", last - first), ("hole", stop - last)):
        if size:
            yield name, size


def _place(segments: Iterable[Segment]) -> StreamPool:
    by_size = tuple(sorted(segments, key=lambda segment: (-segment.size, segment.address)))
    made_of = tuple(tuple(pieces(segment)) for segment in by_size)
    sums, largest = dict.fromkeys(LABELS, 0), dict[str, int]()
    for name, size in chain.from_iterable(made_of):
        sums[name] += size
    for segment in by_size:
        free = [block.size for block in segment.blocks if block.state == "free"]
        if free:
            largest[segment.kind] = max(largest.get(segment.kind, 0), *free)
    return StreamPool(by_size[0].stream, by_size[0].pool, by_size, made_of, sums, largest)


@dataclass(frozen=True, slots=True)
class MemoryMap(Shown):
    """The segments of allocators at one moment.

    Attributes
    ----------
    devices : tuple of str
        Keys of all devices that were read.
    segments : tuple of Segment
    seconds : float
        Duration of the reading.
    notes : mapping of str to str
        By device, a caveat for its figures.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.memory_map.html:memory_map_bundle"

    devices: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    seconds: float = 0.0
    notes: Mapping[str, str] = field(default_factory=dict)

    def only(self, devices: Container[str]) -> MemoryMap:
        """Return the map of some devices only."""
        return MemoryMap(
            tuple(key for key in self.devices if key in devices),
            tuple(segment for segment in self.segments if segment.device in devices),
            self.seconds,
            {key: note for key, note in self.notes.items() if key in devices},
        )

    def reserved(self, device: str) -> int:
        """Return the bytes that a device's allocator has reserved."""
        return sum(segment.size for segment in self.segments if segment.device == device)

    def fragmentation(self, device: str = "") -> Fragmentation:
        """Return a device's parts, every byte once; by default those of the device with the most reserved."""
        device = device or max(self.devices, key=self.reserved, default="")
        serves = attrgetter("pool", "stream")
        own = sorted((segment for segment in self.segments if segment.device == device), key=serves)
        places = [_place(group) for _, group in groupby(own, key=serves)]
        places.sort(key=lambda place: (not place.is_common, place.is_private, -place.reserved))
        return Fragmentation(device, tuple(places))


def segments_of(listed: Iterable[Mapping[str, Any]], kind: str = "cuda") -> tuple[Segment, ...]:
    """Return the segments of `torch.cuda.memory_snapshot`, of devices of a kind."""
    return tuple(
        Segment(
            device=f"{kind}:{segment['device']}",
            address=segment["address"],
            size=segment["total_size"],
            kind="small" if segment["segment_type"] == "small" else "large",
            blocks=blocks_of(segment),
            stream=segment.get("stream", 0),
            pool=tuple(segment.get("segment_pool_id", NO_POOL)),
            expandable=bool(segment.get("is_expandable", False)),
        )
        for segment in listed
    )


def blocks_of(segment: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return the blocks of a segment as torch lists it, on some devices without their addresses."""
    blocks, address = [], segment["address"]
    for block in segment["blocks"]:
        size, state = block["size"], _STATES.get(block["state"], "allocated")
        # Blocks that have been freed still have the size of the request.
        requested = min(block.get("requested_size") or size, size) if state != "free" else 0
        place = block.get("address", address)
        blocks.append(Block(place, size, requested, state, block.get("frames") or ()))
        address += size
    return tuple(blocks)


def events_of(trace: Sequence[Event | Mapping[str, Any]]) -> Sequence[Event]:
    """Return the events of a device's trace, as torch lists them or already read."""
    return [event if isinstance(event, Event) else event_of(event) for event in trace]


def event_of(listed: Mapping[str, Any]) -> Event:
    """Return one event of a trace as torch lists it; an out-of-memory event has no address."""
    get = listed.get
    return Event(
        listed["action"], get("addr", 0), get("size", 0), get("time_us"), get("frames") or ()
    )
