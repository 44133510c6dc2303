"""Forecasts as plain data: nothing here needs torch, a model or a device."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.display import Shown
from hfmem_widget.features.fit.allocator import Replay
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.session import Move, WhatIf
from hfmem_widget.text import format_count

Bound = Literal["exact", "upper", "estimate", "lower"]
"""Whether a figure is exact, an upper bound, an estimate, or a lower bound."""

MEASURED: Final = (0.97, 1.015)
"""The lowest and highest measured peaks, as shares of estimates; docs/measured/memfit.md."""

MOST_ROWS: Final = 1 << 20  # the largest batch that is tried


def size_text(rows: int, length: int) -> str:
    """Return the size of a batch, such as ``4 \u00d7 512``, or ``4`` where rows have no length."""
    return " \u00d7 ".join(map(format_count, (rows, length) if length > 1 else (rows,)))


@dataclass(frozen=True, slots=True)
class ForecastPart:
    """The memory that will be needed for one purpose."""

    name: str  # one of `LABELS`
    bytes: int  # at the peak of all parts
    full: int  # at the part's own peak, which may be at another time
    source: str  # of the figure, in a few words
    bound: Bound

    @property
    def label(self) -> str:
        """The name that people read."""
        return LABELS[self.name]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The memory that one device will need.

    Attributes
    ----------
    model : str
        The class.
    setting : Setting
    parts : tuple of ForecastPart
        From the bottom of a stack to its top; their bytes add up to `total`.
    total : int
        Bytes allocated at the peak of a forward pass, or of the second and every later step; the optimizer's
        states appear at the end of the first.
    moment : str
        The time of the peak: "forward", "backward", "optimizer"; empty where activations are unknown.
    peaks : mapping of str to int
        The highest bytes of each of these moments.
    parameters, trainable : int
        Elements, each storage once.
    notes : tuple of str
        Plain sentences.
    left_out : tuple of str
        What no figure counts: activations, or sub-models that got no input.
    reserved : int
        Bytes that a GPU's allocator has reserved by the end of the second step, if there is room; 0 where
        unknown. Near the limit it first frees what it can.
    replay : Replay, optional
        The requests to that allocator in a training; None where unknown.
    """

    model: str
    setting: Setting
    parts: tuple[ForecastPart, ...]
    total: int
    moment: str
    peaks: Mapping[str, int] = field(default_factory=dict)
    parameters: int = 0
    trainable: int = 0
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    reserved: int = 0
    replay: Replay | None = field(default=None, repr=False, compare=False)

    def bytes(self, name: str) -> int:
        """Return the bytes of a part at the peak; 0 without such a part."""
        return sum(part.bytes for part in self.parts if part.name == name)

    def full(self, name: str) -> int:
        """Return the bytes of a part at its own peak; 0 without such a part."""
        return sum(part.full for part in self.parts if part.name == name)

    @property
    def bound(self) -> Bound:
        """How certain the total is: no better than the worst of its parts."""
        bounds = {part.bound for part in self.parts if part.bytes}
        if self.left_out:
            return "lower"
        return "estimate" if "estimate" in bounds else "upper" if "upper" in bounds else "exact"

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and highest expected bytes of the real peak; the same where the total is exact.

        Parts that are upper bounds may turn out not to be needed, and then another moment has the peak. An
        estimate may be as far off as the worst measured one. The upper end is NaN where something is left
        out.
        """
        unsure = [part for part in self.parts if part.bound == "upper"]
        least = self.total - sum(part.bytes for part in unsure)
        is_estimate = any(part.bytes and part.bound == "estimate" for part in self.parts)
        low, high = MEASURED if is_estimate else (1.0, 1.0)
        others = max((size for name, size in self.peaks.items() if name != self.moment), default=0)
        others -= sum(part.bytes for part in unsure if part.name == "libraries")  # at every moment
        least_of_all = max(low * least, min(low * others, self.total))
        return least_of_all, math.nan if self.left_out else high * self.total


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of a device that this process could still take, in bytes; NaN if unknown."""

    device: str  # its key, such as "cuda:0" or "cpu"
    name: str
    total: float
    free: float  # according to the driver or the kernel
    cached: float = 0.0  # reserved by PyTorch's allocator and not allocated: free for this process
    context: float = 0.0  # taken by CUDA before the first tensor, if it is not initialised yet

    @property
    def available(self) -> float:
        """Bytes that tensors could take; never negative, NaN if unknown."""
        room = self.free + self.cached - self.context
        return room if math.isnan(room) else max(0.0, room)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a forecast fits a device."""

    room: Room
    held: int  # bytes of the model that are allocated already
    fits: bool | None  # None if the room is unknown, or if more than the forecast will be needed
    largest_batch: int | None  # rows; 0 if not even one fits, None if unknown
    longest: int | None = None  # tokens of each row with the forecast's batch; None if not asked


@dataclass(frozen=True, slots=True)
class Tried:
    """The measurements of real steps."""

    peak: int  # the most bytes allocated, also where memory ran out
    seconds: float  # of a step, the median of a few after the second; NaN where memory ran out
    device: str


@dataclass(frozen=True, slots=True)
class Fit(Shown):
    """A forecast, and whether it fits the devices that are here.

    Attributes
    ----------
    name : str
        The model's name or class, or the label of a watch.
    forecast : Forecast
    verdicts : tuple of Verdict
        One for each device.
    headroom : float
        Share of each device's free memory to leave unused.
    stored : str
        What is on disk, in a few words; empty where nothing was read.
    tried : Tried, optional
        The measurements of real steps of that size; None without such steps.
    moves : tuple of Move
        Changes that make a watched training fit, best first; empty for a model.
    measured : mapping of str to float
        Bytes of each part at the measured peak, and "allocated"; of a watched training only.
    can_write : bool
        Whether ``%memfit --write`` has the moves: not those of a recording.
    what_if : WhatIf, optional
        A watched training at other sizes.
    calibration : str
        How a measured step changes what would fit; empty where it agrees, or none was measured.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.fit.html:fit_bundle"

    name: str
    forecast: Forecast
    verdicts: tuple[Verdict, ...]
    headroom: float
    stored: str = ""
    tried: Tried | None = None
    moves: tuple[Move, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    can_write: bool = True
    what_if: WhatIf | None = None
    calibration: str = ""

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]
