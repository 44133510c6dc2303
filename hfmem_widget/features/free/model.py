"""What can be freed, and what freeing it brought: texts and figures alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hfmem_widget.display import Shown
from hfmem_widget.sources.heap.model import Holder


@dataclass(frozen=True, slots=True)
class Freeable:
    """Something that can be freed."""

    name: str  # "errors", "outputs", or a variable's; text from outside
    what: tuple[str, ...]  # such as Out[12] or "the error of cell [7]"; empty for a variable
    bytes: Mapping[str, int]  # by device: what would be free if it alone were gone
    is_at_most: bool = False  # true if others may hold a part of the bytes, unseen

    @property
    def total(self) -> int:
        """Bytes over all devices."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a device before and after; bytes, NaN if unknown."""

    device: str
    metric: str  # "allocated", "reserved" or "device_used"
    label: str  # what the device calls it, such as "private memory"
    before: float
    after: float

    @property
    def freed(self) -> float:
        """Bytes less than before; negative if there are more."""
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class Release(Shown):
    """What would be freed, or was.

    Attributes
    ----------
    items : tuple of Freeable
        What was named; errors and outputs, if nothing was.
    together : mapping of str to int
        By device: bytes that are free once all of them are gone.
    is_at_most : bool
        True if it may be less, because others may hold a part of it unseen.
    variables : tuple of Freeable
        If nothing was named: the variables that alone hold most, which are freed only if they are named.
    done : bool
        False if it was only shown.
    steps : tuple of str
        What was done, one phrase each.
    interrupted : bool
        True if a KeyboardInterrupt ended it early.
    changes : tuple of Change
        Measured before and after, if it was done.
    stays : tuple of Holder
        What still holds most afterwards.
    cached : mapping of str to float
        By GPU: the allocator's cache, if it was only shown.
    notes : tuple of str
        Sentences that are needed to read it right.
    seconds : float
        How long the search took.
    objects : int
        How many objects it inspected.
    bound : str
        Why the search ended early; what would be freed is then not certain.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.free.html:release_bundle"

    items: tuple[Freeable, ...]
    together: Mapping[str, int]
    is_at_most: bool = False
    variables: tuple[Freeable, ...] = ()
    done: bool = False
    steps: tuple[str, ...] = ()
    interrupted: bool = False
    changes: tuple[Change, ...] = ()
    stays: tuple[Holder, ...] = ()
    cached: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    objects: int = 0
    bound: str = ""

    def freed(self, device: str) -> float:
        """Return by how many bytes a device's allocated memory fell; NaN if it was not done."""
        wanted = (device, "allocated")
        freed = (
            change.freed for change in self.changes if (change.device, change.metric) == wanted
        )
        return next(freed, float("nan"))
