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
    """The segments of allocators at one moment.

    Attributes
    ----------
    devices : tuple of str
        All devices that were read.
    segments : tuple of Segment
    seconds : float
        How long it took to read.
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
        """Return how many bytes a device's allocator has taken."""
        return sum(segment.size for segment in self.segments if segment.device == device)

    def fragmentation(self, device: str = "") -> Fragmentation:
        """Return the parts of a device's segments; by default of the device with the most."""
        device = device or max(self.devices, key=self.reserved, default="")
        return fragmentation(self.segments, device)
