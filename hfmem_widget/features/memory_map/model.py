"""A memory map: what allocators had taken at one moment."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hfmem_widget.display import Shown
from hfmem_widget.features.memory_map.fragmentation import Fragmentation, fragmentation
from hfmem_widget.features.memory_map.segments import Segment


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
        return fragmentation(
            self.segments, device or max(self.devices, key=self.reserved, default="")
        )
