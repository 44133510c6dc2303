"""The nouns of a memory map: segments, which an allocator has taken, and the blocks they are cut into."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from hfmem_widget.display import Shown, resolve

if TYPE_CHECKING:
    from hfmem_widget.features.memory_map.fragmentation import Fragmentation

BlockState = Literal["allocated", "pending", "free"]
"""In use; freed while another stream may still read it; free."""

SegmentKind = Literal["small", "large", "heap", "top", "mapped"]
"""The CUDA allocator's pool for requests up to 1 MiB, and for others; the parts of a C heap."""

NO_POOL = (0, 0)


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment.

    Attributes
    ----------
    address : int
    size : int
        Bytes.
    requested : int
        Bytes of it that were asked for; 0 unless it is allocated.
    state : {"allocated", "pending", "free"}
    """

    address: int
    size: int
    requested: int
    state: BlockState


@dataclass(frozen=True, slots=True)
class Segment:
    """What an allocator took in one piece.

    Attributes
    ----------
    device : str
        The device's key.
    address : int
        0 where it is not known, as of a C heap.
    size : int
        Bytes.
    kind : {"small", "large", "heap", "top", "mapped"}
    blocks : tuple of Block
        In the order of their addresses; they fill it.
    stream : int
        The CUDA stream that its free blocks are for; 0 is the default stream.
    pool : tuple of int
        Whose private pool it is in, such as a CUDA graph's; ``(0, 0)`` for nobody's.
    expandable : bool
        True if it can grow, and give back single pages.
    """

    device: str
    address: int
    size: int
    kind: SegmentKind
    blocks: tuple[Block, ...]
    stream: int = 0
    pool: tuple[int, int] = NO_POOL
    expandable: bool = False

    @property
    def in_use(self) -> bool:
        """True unless all of it is free."""
        return any(block.state != "free" for block in self.blocks)


@dataclass(frozen=True, slots=True)
class MemoryMap(Shown):
    """What allocators had taken at one moment, segment by segment.

    Attributes
    ----------
    devices : tuple of str
        Those that were looked at.
    segments : tuple of Segment
    seconds : float
        How long it took to read.
    notes : mapping of str to str
        By device, a sentence that must be known to read its figures right.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.memory_map.html:memory_map_bundle"

    devices: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    seconds: float = 0.0
    notes: Mapping[str, str] = field(default_factory=dict)

    def only(self, devices: Container[str]) -> MemoryMap:
        """Return what there is of some devices."""
        return MemoryMap(
            tuple(one for one in self.devices if one in devices),
            tuple(one for one in self.segments if one.device in devices),
            self.seconds,
            {key: note for key, note in self.notes.items() if key in devices},
        )

    def reserved(self, device: str) -> int:
        """Return how many bytes a device's allocator has taken."""
        return sum(one.size for one in self.segments if one.device == device)

    def fragmentation(self, device: str = "") -> Fragmentation:
        """Return what a device's segments are made of; by default of the device with the most."""
        found: Fragmentation = resolve(
            "hfmem_widget.features.memory_map.fragmentation:fragmentation"
        )(self, device or max(self.devices, key=self.reserved, default=""))
        return found
