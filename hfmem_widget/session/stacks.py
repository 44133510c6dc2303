"""What was live at a peak, by where it was allocated."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from hfmem_widget.display import Shown
from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.same import same
from hfmem_widget.text import plain

if TYPE_CHECKING:
    import pandas as pd

By = Literal["line", "module", "operator"]

KINDS = ("before", "forward", "backward", "optimizer", "elsewhere")
"""When the code ran that allocated it; ``before`` is what no recorded event made."""

OPERATOR = "torch operator"
"""The file name of a frame that is an operator's name, not Python."""

PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class Site:
    """Live memory that was allocated from one place.

    Attributes
    ----------
    line : str
        The user's own line, such as ``cell [3] line 12``, or what stands for it where there is none.
    module : str
        The module whose forward ran, such as ``BertLayer``, or what else did.
    operator : str
        The innermost call: ``aten::mm``, or ``Linear.forward`` where only Python was recorded.
    kind : str
        One of `KINDS`.
    bytes : int
        As they were asked for.
    blocks : int
        How many allocations.
    source : str
        The text of the line; empty where it is not known.
    """

    line: str
    module: str
    operator: str
    kind: str
    bytes: int
    blocks: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """All live memory of one line, module or operator."""

    name: str
    bytes: int
    blocks: int
    share: float
    kind: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class LivePeak:
    """What was live on one device at the highest moment of what was recorded.

    Attributes
    ----------
    device : str
        The device's key.
    bytes : int
        The sum of `sites`: what was asked for, and not yet freed.
    highest : int
        The same with what was freed while another stream still used it, at its own highest moment. This is
        what the allocator calls requested bytes.
    sites : tuple of Site
        Biggest first.
    time : float
        Seconds since the session began; NaN if unknown.
    entries : int
        How many events were recorded.
    wrapped : bool
        True where older events had to make room.
    since : float
        Seconds since the session began, from which the record has every event.
    allocated, requested : float
        The allocator's own peaks in whole blocks and as asked for; NaN where it keeps none.
    """

    device: str
    bytes: int
    highest: int
    sites: tuple[Site, ...]
    time: float = NOT_AVAILABLE
    entries: int = 0
    wrapped: bool = False
    since: float = 0.0
    allocated: float = NOT_AVAILABLE
    requested: float = NOT_AVAILABLE

    @property
    def exact(self) -> bool:
        """True where the allocator's own peak says the same, to the byte."""
        return self.highest == self.requested

    @property
    def rounding(self) -> float:
        """Bytes that the allocator's peak has above what was asked for: it hands out whole blocks."""
        return self.allocated - self.bytes

    def rows(self, by: By = "line") -> tuple[Row, ...]:
        """Return the live memory by line, module or operator, biggest first."""
        if by not in {"line", "module", "operator"}:
            message = f"by must be 'line', 'module' or 'operator', not {by!r}"
            raise OptionError(message)
        together: dict[str, list[Site]] = {}
        for site in self.sites:
            together.setdefault(getattr(site, by), []).append(site)
        rows = [_row(name, sites, by, self.bytes) for name, sites in together.items()]
        return tuple(sorted(rows, key=lambda row: -row.bytes))


@dataclass(frozen=True, slots=True)
class Recording:
    """How it was recorded, and what that cost.

    Attributes
    ----------
    way : {"allocator", "operators"}
        By the CUDA allocator's own history, or by looking at each operator's tensors.
    began : float
        Seconds since the session began.
    seconds : float
        That recording took: of the allocator's an estimate, of operators the least it was; NaN if unknown.
    snapshot : float
        Seconds that reading the record took, after the end.
    notes : tuple of str
        Plain sentences.
    """

    way: Literal["allocator", "operators"]
    began: float = 0.0
    seconds: float = NOT_AVAILABLE
    snapshot: float = 0.0
    notes: tuple[str, ...] = ()


class Stacks(Shown):
    """What was live at the peak of each device, by where it was allocated.

    Parameters
    ----------
    peaks : tuple of LivePeak
        The one with the most bytes first.
    recording : Recording
    pickled : bytes, optional
        The snapshot as `save` writes it, compressed by zlib.

    Attributes
    ----------
    peaks : tuple of LivePeak
    recording : Recording
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.stacks.html:stacks_bundle"

    def __init__(
        self, peaks: tuple[LivePeak, ...], recording: Recording, pickled: bytes = b""
    ) -> None:
        self.peaks = peaks
        self.recording = recording
        self._pickled = pickled

    def __eq__(self, other: object) -> bool:
        return same(vars(self), vars(other)) if isinstance(other, Stacks) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._pickled)

    def __repr__(self) -> str:
        told = ", ".join(f"{one.device} {one.bytes:,} bytes" for one in self.peaks)
        return f"<Stacks: live at the peak: {told or 'nothing'}>"

    @property
    def can_be_saved(self) -> bool:
        """True where the snapshot was kept."""
        return bool(self._pickled)

    def with_peaks(self, peaks: tuple[LivePeak, ...], recording: Recording | None = None) -> Stacks:
        """Return the same with other peaks, and another recording if one is given."""
        return Stacks(peaks, recording or self.recording, self._pickled)

    def rows(self, by: By = "line", device: str = "") -> tuple[Row, ...]:
        """Return what was live at a device's peak by source line, module or operator, biggest first.

        Parameters
        ----------
        by : {"line", "module", "operator"}, optional
        device : str, optional
            Its key; by default the one on which most was live.

        Returns
        -------
        tuple of Row
            Each with ``name``, ``bytes``, ``blocks``, ``share`` (of all that was live), ``kind``, ``source``.

        Raises
        ------
        OptionError
            If there is no such device or grouping.
        """
        if not self.peaks and not device:
            return ()
        for one in self.peaks:
            if device in {"", one.device}:
                return one.rows(by)
        known = ", ".join(one.device for one in self.peaks) or "none"
        message = f"nothing was recorded on {device!r}; recorded: {known}"
        raise OptionError(message)

    def to_pandas(self) -> pd.DataFrame:
        """Return every place as a data frame: device, line, module, operator, kind, bytes, blocks, source."""
        try:
            import pandas as pd
        except ImportError as error:
            message = "to_pandas() needs pandas: pip install pandas"
            raise ImportError(message) from error
        columns = ["device", "line", "module", "operator", "kind", "bytes", "blocks", "source"]
        rows = [
            [peak.device, *(getattr(site, column) for column in columns[1:])]
            for peak in self.peaks
            for site in peak.sites
        ]
        return pd.DataFrame(rows, columns=columns)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the snapshot to a new file, as pytorch.org/memory_viz reads it, and return its path.

        The file can be read by its owner alone: it has paths and names of your code. It is a pickle; open
        none that somebody else made.

        Parameters
        ----------
        path : str or path-like
            ``~`` is your home. A file that is there already is left alone.

        Raises
        ------
        OptionError
            If a file is there already, its folder is not, or no file can have that name or be written there.
        WatchStateError
            If no snapshot was kept; the message says why.
        """
        if not self._pickled:
            message = "this recording has no snapshot to save"
            raise WatchStateError(message)
        content = zlib.decompress(self._pickled)
        try:
            target = Path(path).expanduser()
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        except FileExistsError:
            message = f"{target} exists already; choose another name"
            raise OptionError(message) from None
        except (FileNotFoundError, NotADirectoryError):
            message = f"there is no folder {target.parent}; create it first"
            raise OptionError(message) from None
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            message = f"cannot write to {plain(path)!r}: {plain(error)}"
            raise OptionError(message) from error
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return target


def _row(name: str, sites: list[Site], by: By, total: int) -> Row:
    size = sum(site.bytes for site in sites)
    biggest = max(sites, key=lambda site: site.bytes)
    return Row(
        name=name,
        bytes=size,
        blocks=sum(site.blocks for site in sites),
        share=size / total if total else 0.0,
        kind=biggest.kind,
        source=biggest.source if by == "line" else "",
    )
