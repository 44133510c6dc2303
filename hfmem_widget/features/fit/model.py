"""What a forecast says, as plain data: nothing here needs torch, a model or a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal

from hfmem_widget.display import Shown, resolve

Bound = Literal["exact", "upper", "estimate", "lower"]
"""How a figure is meant: it is this; it is at most this; it is about this; it is at least this."""

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "weights": "weights",
        "buffers": "buffers",
        "optimizer": "optimizer states",
        "gradients": "gradients",
        "activations": "activations and temporaries",
        "kv_cache": "KV cache",
    }
)
"""The parts from the bottom of a stack to its top, named as the anatomy of a device names them."""


@dataclass(frozen=True, slots=True)
class ForecastPart:
    """Some of the memory that will be needed, by what it is for.

    Attributes
    ----------
    name : str
        One of `LABELS`.
    bytes : int
        There at the peak.
    full : int
        At its own highest, which may be at another moment: all gradients together, say.
    source : str
        Where the figure is from, in a few words.
    bound : {"exact", "upper", "estimate", "lower"}
    """

    name: str
    bytes: int
    full: int
    source: str
    bound: Bound

    @property
    def label(self) -> str:
        """What people read."""
        return LABELS.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is done with the model.

    Attributes
    ----------
    training : bool
    batch, length : int
        Rows, and tokens of each (samples of sound, where the model takes that).
    precision : str
        ``fp32``; ``bf16`` or ``fp16`` with autocast where training; ``pure bf16``: all of it.
    optimizer : str
        As `TrainingArguments.optim` names it; empty where not training.
    checkpointing : bool
        Whether activations are computed a second time instead of being kept.
    accumulation : int
        Batches to a step; with more than one the gradients are there all the time.
    quantized : str
        ``int8``, ``nf4`` or empty.
    lora : str
        The adapters, such as ``r=8 on q_proj, v_proj``; empty for none.
    device : {"cuda", "cpu"}
        What it is to run on, which decides what the kernels keep.
    """

    training: bool = True
    batch: int = 1
    length: int = 512
    precision: str = "fp32"
    optimizer: str = ""
    checkpointing: bool = False
    accumulation: int = 1
    quantized: str = ""
    lora: str = ""
    device: str = "cuda"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one device will need.

    Attributes
    ----------
    model : str
        The class.
    setting : Setting
    parts : tuple of ForecastPart
        From the bottom of a stack to its top; their bytes add up to `total`.
    total : int
        Bytes allocated at the peak: of the second step and all later ones, since the optimizer's states
        come with the end of the first; or of a forward pass.
    moment : str
        When that is: "forward", "backward", "optimizer"; empty where activations are not known.
    peaks : mapping of str to int
        The highest bytes of each of them.
    parameters, trainable : int
        Elements, each storage once.
    notes : tuple of str
        Plain sentences.
    left_out : tuple of str
        What a real run needs memory for and is in no figure: sub-models that get no input here, activations.
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

    def bytes(self, name: str) -> int:
        """Return the bytes of a part at the peak; 0 if there is none of it."""
        return sum(part.bytes for part in self.parts if part.name == name)

    def full(self, name: str) -> int:
        """Return the bytes of a part at its own highest; 0 if there is none of it."""
        return sum(part.full for part in self.parts if part.name == name)

    @property
    def bound(self) -> Bound:
        """How the total is meant: no better than the worst of its parts."""
        if self.left_out:
            return "lower"
        bounds = {part.bound for part in self.parts if part.bytes}
        if "estimate" in bounds:
            return "estimate"
        return "upper" if "upper" in bounds else "exact"


@dataclass(frozen=True, slots=True)
class Room:
    """What of a device this process could still take.

    Attributes
    ----------
    device : str
        Its key: "cuda:0", "cpu".
    name : str
    total, free : float
        Bytes; free by the driver's or the kernel's account. NaN if unknown.
    cached : float
        Bytes that PyTorch's allocator has taken and nobody uses; free for this process alone.
    context : float
        Bytes that CUDA will take before the first tensor, if it is not up yet.
    """

    device: str
    name: str
    total: float
    free: float
    cached: float = 0.0
    context: float = 0.0

    @property
    def available(self) -> float:
        """Bytes that tensors could have; never negative, NaN if unknown."""
        room = self.free + self.cached - self.context
        return room if math.isnan(room) else max(0.0, room)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a forecast fits a device.

    Attributes
    ----------
    room : Room
    held : int
        Bytes of the model that are there already.
    fits : bool or None
        None where the device's room is not known, or where more than the forecast will be needed.
    largest_batch : int or None
        The most rows that fit; 0 if not one does, None where it is not known.
    """

    room: Room
    held: int
    fits: bool | None
    largest_batch: int | None


@dataclass(frozen=True, slots=True)
class Fit(Shown):
    """A forecast, and how it stands to the devices that are here.

    Attributes
    ----------
    name : str
        What was asked about.
    forecast : Forecast
    verdicts : tuple of Verdict
        One for each device.
    headroom : float
        Share of each device's room that is left alone.
    stored : str
        What lies on disk, in a few words; empty where nothing was looked at.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.fit.html:fit_bundle"

    name: str
    forecast: Forecast
    verdicts: tuple[Verdict, ...]
    headroom: float
    stored: str = ""

    def __repr__(self) -> str:
        text: str = resolve("hfmem_widget.features.fit.html:fit_text")(self)
        return text
