"""Live memory at a peak, by the place of its allocation."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hfmem_widget.display import Shown, resolve
from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.options import path_of
from hfmem_widget.session.model import NOT_AVAILABLE, Peak, data_frame, same
from hfmem_widget.text import format_bytes, format_count, format_duration, wrong_value

if TYPE_CHECKING:
    import os

    import pandas as pd

    from hfmem_widget.session.segments import MemoryMap

By = Literal["line", "module", "operator"]
BY: tuple[By, ...] = ("line", "module", "operator")

KINDS = ("before", "forward", "backward", "optimizer", "elsewhere")
"""The phase in which memory was allocated; ``before`` is before the recording."""

BEFORE = "before the recording"
BACKWARD = "autograd (backward)"
NO_PYTHON = "no Python code (autograd's backward thread)"
OUTSIDE = "outside any module"
MOVED = "a model that was moved or cast (Module.to)"
TORCHS_OWN = "torch's own code"
ELSE = "everything else"
NO_NAMES = {BEFORE, BACKWARD, NO_PYTHON, OUTSIDE, MOVED, TORCHS_OWN, ELSE}
"""Placeholders for a name."""

OPERATOR = "torch operator"
"""The file name of a frame that is an operator's name, not Python."""


@dataclass(frozen=True, slots=True)
class Site:
    """Live memory that was allocated from one place."""

    line: str  # the user's own, such as ``cell [3] line 12``, or a placeholder
    module: str  # the module whose forward ran, such as ``BertLayer``, or a placeholder
    operator: str  # the innermost call: ``aten::mm``, or without operators ``Linear.forward``
    kind: str  # one of `KINDS`
    bytes: int  # as requested
    blocks: int  # number of allocations
    source: str = ""  # the text of the line; empty if unknown
    function: str = ""  # the qualified name of the line's function; empty if unknown


@dataclass(frozen=True, slots=True)
class Row:
    """All live memory of one line, module or operator."""

    name: str
    bytes: int
    blocks: int
    share: float
    kind: str
    source: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """The memory of one line, module or operator over time, in bytes."""

    name: str
    sizes: tuple[int, ...]  # at each moment
    highest: int  # over all events, also between the moments
    source: str = ""


@dataclass(frozen=True, slots=True)
class OverTime:
    """The allocated bytes of a device over time, as a stack of bands."""

    moments: tuple[float, ...]  # seconds since the session began; without times, numbers of events
    is_timed: bool  # whether the events have times
    allocated: tuple[int, ...]  # at each moment, as requested; the sum of the bands
    bands: Mapping[By, tuple[Band, ...]]  # from the bottom to the top

    def since(self, start: float) -> OverTime:
        """Return a copy whose times count from `start`."""
        if not self.is_timed:
            return self
        return replace(self, moments=tuple(moment - start for moment in self.moments))


@dataclass(frozen=True, slots=True)
class LivePeak:
    """Live memory of one device at the peak of the recording. Times are seconds since the session began."""

    device: str  # its key
    bytes: int  # the sum of `sites`: requested, and not yet freed
    highest: int
    """The peak including memory that was freed while another stream still used it; the allocator calls this
    requested bytes."""
    sites: tuple[Site, ...]  # largest first
    time: float = NOT_AVAILABLE
    entries: int = 0  # number of recorded events
    wrapped: bool = False  # whether older events were overwritten
    since: float = 0.0  # the time from which the record has every event
    allocated: float = NOT_AVAILABLE
    requested: float = NOT_AVAILABLE
    """The allocator's own peaks in whole blocks and as requested; NaN if it keeps none."""
    over_time: OverTime | None = None
    """None without recorded events, and in a session read from a file."""
    span_id: int | None = None  # of its outermost span, if it belongs to one

    @property
    def exact(self) -> bool:
        """Whether it equals the allocator's own peak to the byte."""
        return self.highest == self.requested

    @property
    def peak(self) -> Peak:
        """The peak of requested bytes while events were recorded; NaN without events."""
        if not self.entries and math.isnan(self.requested):
            return Peak(NOT_AVAILABLE, "at least")
        began_empty = self.over_time is not None and not self.over_time.allocated[0]
        return Peak(self.bytes, "exact" if self.exact or began_empty else "at least")

    @property
    def moment(self) -> str:
        """The instant in words."""
        return "when it was taken" if math.isnan(self.peak.value) else "at the peak"

    @property
    def certainty(self) -> str:
        """A sentence on its accuracy."""
        if self.device == "cpu":
            sentence = (
                "Counts the tensors that this thread's operators return, each storage once; temporaries "
                "inside an operator are not included."
            )
        elif self.exact:
            requested = format_count(self.highest)
            sentence = f"Matches the allocator's own peak to the byte: {requested} requested."
        elif math.isnan(self.requested):
            return "The allocator's own peak is unknown, so this cannot be checked against it."
        else:
            off = abs(self.requested - self.highest)
            sentence = (
                f"Differs from the allocator's own peak by {format_bytes(off)} "
                f"({format_count(self.requested)} bytes requested)."
            )
        if self.wrapped and not self.exact:
            sentence += (
                f" Only the last {format_count(self.entries)} events were recorded, beginning "
                f"{format_duration(self.since)} after the start; the peak may have been earlier."
            )
        return sentence

    @property
    def rounding(self) -> float:
        """Bytes allocated above what was requested: the allocator hands out whole blocks."""
        return self.allocated - self.bytes

    def rows(self, by: By = "line") -> tuple[Row, ...]:
        """Return the live memory by line, module or operator, largest first."""
        if by not in BY:
            raise wrong_value(by, "by", "'line', 'module' or 'operator'")
        by_name: dict[str, list[Site]] = {}
        for site in self.sites:
            by_name.setdefault(getattr(site, by), []).append(site)
        rows = []
        for name, sites in by_name.items():
            size, blocks = sum(site.bytes for site in sites), sum(site.blocks for site in sites)
            largest = max(sites, key=lambda site: site.bytes)
            share = size / self.bytes if self.bytes else 0.0
            of_line = (largest.source, largest.function) if by == "line" else ()
            rows.append(Row(name, size, blocks, share, largest.kind, *of_line))
        return tuple(sorted(rows, key=lambda row: -row.bytes))


@dataclass(frozen=True, slots=True)
class StackRecording:
    """The source of the stacks, and the cost of recording them, in seconds."""

    way: Literal["allocator", "operators"]
    """By the CUDA allocator's own history, or by the tensors of each operator."""
    began: float = 0.0  # since the session began
    seconds: float = NOT_AVAILABLE
    """Cost of recording: an estimate for the allocator, a lower bound for operators; NaN if unknown."""
    snapshot: float = 0.0  # cost of reading the record after the end
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot(Shown):
    """A snapshot of torch's allocator that was opened from a file.

    Attributes
    ----------
    name : str
        The file's.
    stacks : Stacks
        What was live at the highest moment of each device; where no history was recorded, at the snapshot.
    memory_map : MemoryMap
        The segments and blocks when it was taken.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.stacks.snapshot:snapshot_bundle"

    name: str
    stacks: Stacks
    memory_map: MemoryMap

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on gaps of the history."""
        peaks = self.stacks.peaks
        if peaks and not any(peak.entries for peak in peaks):
            return (
                "The snapshot has no history of allocations, so how memory came to this is unknown.",
            )
        begun = ((peak.over_time.allocated[0], peak.device) for peak in peaks if peak.over_time)
        earlier, device = max(begun, default=(0, ""))
        where = f" on {device}" if len(peaks) > 1 else ""
        note = (
            f"{format_bytes(earlier)}{where} is older than the history: allocated before the recording, or "
            "its events were overwritten by newer ones. The peak may be older, too."
        )
        return (note,) if earlier else ()

    def explain(self) -> Any:
        """Return where the memory is, as `Session.explain` does of a session."""
        return resolve("hfmem_widget.features.stacks.snapshot:explained")(self)

    def report(self, path: str | os.PathLike[str], *, static: bool = True) -> Path:  # noqa: ARG002
        """Write a new HTML page without script, and return its path; raise `OptionError` if that fails."""
        page: Path = resolve("hfmem_widget.features.report.page:report_of")(self.name, self, path)
        return page


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stacks(Shown):
    """The live memory at the peak of each device, by the place of its allocation.

    Attributes
    ----------
    peaks : tuple of LivePeak
        The peak with the most bytes first.
    recording : StackRecording
    pickled : bytes
        The snapshot as `save` writes it, compressed by zlib; empty if it was not kept.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.stacks.html:stacks_bundle"

    peaks: tuple[LivePeak, ...]
    recording: StackRecording
    pickled: bytes = b""

    def __eq__(self, other: object) -> bool:
        return same(self, other) if isinstance(other, Stacks) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.pickled)

    def __repr__(self) -> str:
        live = ", ".join(f"{peak.device} {peak.bytes:,} bytes" for peak in self.peaks)
        return f"<Stacks: live at the peak: {live or 'nothing'}>"

    def rows(self, by: By = "line", device: str = "") -> tuple[Row, ...]:
        """Return what was live at a device's peak by source line, module or operator, largest first.

        Parameters
        ----------
        by : {"line", "module", "operator"}, optional
        device : str, optional
            Its key; by default the one on which most was live.

        Returns
        -------
        tuple of Row
            With ``name``, ``bytes``, ``blocks``, ``share`` (of all that was live), ``kind`` and ``source``.

        Raises
        ------
        OptionError
            If there is no such device or grouping.
        """
        if not self.peaks and not device:
            return ()
        for peak in self.peaks:
            if device in {"", peak.device}:
                return peak.rows(by)
        recorded = ", ".join(peak.device for peak in self.peaks) or "none"
        raise OptionError(f"nothing was recorded on {device!r}; recorded: {recorded}")

    def to_pandas(self) -> pd.DataFrame:
        """Return every place as a data frame: device, line, module, operator, kind, bytes, blocks, source."""
        columns = ["device", "line", "module", "operator", "kind", "bytes", "blocks", "source"]
        rows = [
            [peak.device, *(getattr(site, column) for column in columns[1:])]
            for peak in self.peaks
            for site in peak.sites
        ]
        return data_frame(rows, columns)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the snapshot to a new file, as pytorch.org/memory_viz reads it, and return its path.

        Only its owner can read the file, which has paths and names of your code. It is a pickle: do not open
        one that somebody else made.

        Parameters
        ----------
        path : str or path-like
            ``~`` is your home.

        Raises
        ------
        OptionError
            If the file exists already, its folder does not exist, or it cannot be written.
        WatchStateError
            If no snapshot was kept.
        """
        if not self.pickled:
            raise WatchStateError("this recording has no snapshot to save")
        target, content = path_of(path), zlib.decompress(self.pickled)
        resolve("hfmem_widget.recording.file:write_new")(target, [content], 0o600)
        return target
