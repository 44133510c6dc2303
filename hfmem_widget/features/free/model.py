"""What can be freed, and the result of freeing it: texts and figures only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hfmem_widget.display import Shown
from hfmem_widget.sources.heap.model import Holder


@dataclass(frozen=True, slots=True)
class Freeable:
    """Something that can be freed."""

    name: str  # "errors", "outputs", or the name of a variable or output; not escaped
    what: tuple[str, ...]  # such as Out[12] or "the error of cell [7]"; empty for a variable
    bytes: Mapping[str, int]  # by device: freed if nothing else is freed
    is_at_most: bool = False  # true if unseen objects may hold a part of the bytes

    @property
    def total(self) -> int:
        """Bytes over all devices."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a device before and after, in bytes; NaN if unknown."""

    device: str
    metric: str  # "allocated", "reserved" or "device_used"
    label: str  # the name of the figure on the device, such as "private memory"
    before: float
    after: float

    @property
    def freed(self) -> float:
        """The decrease in bytes; negative if it increased."""
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class Release(Shown):
    """The result of `free`, or its preview.

    Attributes
    ----------
    items : tuple of Freeable
        The named items; by default errors and outputs.
    together : mapping of str to int
        By device: bytes that are free once all items are freed.
    is_at_most : bool
        True if these bytes are an upper bound, because unseen objects may hold a part of them.
    variables : tuple of Freeable
        If nothing was named: the largest variables, which are freed only if they are named.
    done : bool
        False for a preview.
    steps : tuple of str
        A phrase for each step that was done.
    interrupted : bool
        True if a KeyboardInterrupt ended it early.
    changes : tuple of Change
        Figures measured before and after; empty for a preview.
    stays : tuple of Holder
        The largest holders afterwards.
    cached : mapping of str to float
        By GPU: bytes in the allocator's cache; empty unless it is a preview.
    notes : tuple of str
        Sentences on how to read the result.
    seconds : float
        The duration of the search.
    objects : int
        The number of objects inspected.
    bound : str
        Why the search ended early, so that the sizes are not certain; empty if it did not.
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
        """Return the decrease of a device's allocated memory in bytes; NaN if unknown or a preview."""
        changes = {(change.device, change.metric): change.freed for change in self.changes}
        return changes.get((device, "allocated"), float("nan"))
