"""Forecasts as plain data: nothing here needs torch, a model or a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from hfmem_widget.display import Shown
from hfmem_widget.options import Options, switch, value
from hfmem_widget.text import plain, wrong_value

Bound = Literal["exact", "upper", "estimate", "lower"]
"""How a figure is meant: exactly, at most, about, or at least."""

LABELS: Final = {
    "weights": "weights",
    "buffers": "buffers",
    "optimizer": "optimizer states",
    "gradients": "gradients",
    "activations": "activations and temporaries",
    "kv_cache": "KV cache",
    "gathered": "parameters put together",
    "libraries": "library buffers",
}
"""The parts from the bottom of a stack to its top, with the names that an anatomy has for them."""

MEASURED: Final = (0.97, 1.015)
"""Shares of forecasts that are estimates between which the measured peaks were; docs/measured/memfit.md."""

MOST_ROWS: Final = 1 << 20  # the largest batch that is looked for


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
        return LABELS.get(self.name, self.name)


PRECISIONS: Final = ("fp32", "bf16", "fp16", "pure bf16", "pure fp16")

Lora = tuple[int, tuple[str, ...]]
"""The rank of the adapters, and the layers they go into; without these, peft chooses the layers."""


def _count(name: str) -> Callable[[object], int]:
    def parse(given: object) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise wrong_value(given, name, "a whole number, 1 or more")
        return given

    return parse


def _precision(given: object) -> str:
    """Return one of `PRECISIONS`, which may be written with a hyphen; empty for that of the weights."""
    precision = "" if given is None else plain(given).replace("-", " ")
    if precision not in {"", *PRECISIONS}:
        raise wrong_value(given, "precision", f"one of {', '.join(PRECISIONS)}")
    return precision


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else map(str, given)
    return tuple(name.strip() for name in names if name.strip())


def _lora(given: Any) -> Lora | None:
    """Return the rank and the layers of 16, (16, ["q_proj"]) or ``16,q_proj,v_proj``."""
    if given is None or given == "":
        return None
    parts = given.partition(",")[::2] if isinstance(given, str) else given
    try:
        rank, layers = (parts, ()) if isinstance(parts, int) else parts
        return int(rank), _names(layers)
    except (TypeError, ValueError):
        allowed = "a rank, with or without layers, such as 16 or 16,q_proj,v_proj"
        raise wrong_value(given, "lora", allowed) from None


@dataclass(frozen=True, slots=True)
class Setting(Options):
    """How the model will be run; `device` is "cuda" or "cpu", which decides what the kernels keep.

    In a forecast, `precision` is never empty.
    """

    training: bool = switch(
        "--inference", "Forecast a training step.", "Forecast a forward pass and its KV cache."
    )
    batch: int = value(
        1, "-b --batch ROWS", "Rows per batch. Default: 1.", _count("batch"), kind=int
    )
    length: int = value(
        512,
        "-l --length TOKENS",
        "Tokens per row; samples where the model takes raw sound. Default: 512.",
        _count("length"),
        kind=int,
    )
    precision: str = value(
        "",
        "-p --precision TYPE",
        "fp32; bf16 or fp16, with autocast when training; or pure-bf16, pure-fp16. Default: the type of the "
        "weights; fp32 for a configuration.",
        _precision,
    )
    optimizer: str = value(
        "adamw_torch_fused",
        "--optim --optimizer OPTIM",
        "The optimizer, as TrainingArguments names it. Default: adamw_torch_fused.",
    )
    checkpointing: bool = switch(
        "-c --checkpointing --activation-checkpointing --gradient-checkpointing",
        "Compute activations again in the backward pass.",
    )
    trainable: tuple[str, ...] | None = value(
        None,
        "--trainable PATTERN",
        "Train only parameters of these names, such as *.classifier.*; separated by commas.",
        lambda given: None if given is None else _names(given),
    )
    accumulation: int = value(
        1,
        "--accumulation BATCHES",
        "Batches per step. Default: 1.",
        _count("accumulation"),
        kind=int,
    )
    quantized: str = value(
        "",
        "-q --quantized HOW",
        "How bitsandbytes stores the weights: int8, nf4, or nf4-double, which also quantises the scales.",
    )
    lora: Lora | None = value(  # noqa: RUF009  (a field, as the others)
        None,
        "--lora RANK[,LAYER...]",
        "Add LoRA adapters of this rank, in these layers or where peft puts them by default.",
        _lora,
    )
    image: int | None = value(
        None,
        "--image PIXELS",
        "Side of the image in each row, where the model takes any size.",
        lambda given: None if given is None else _count("image")(given),
        kind=int,
    )
    kv: str = value(
        "", "--kv TYPE", "Type of a quantised KV cache, in inference: fp8, int8, int4 or int2."
    )
    shards: str = value(
        "",
        "--shards WAY:RANKS",
        "Forecast one of several ranks: zero1, zero2, zero3, fsdp or tp, such as zero3:8.",
    )
    device: str = "cuda"


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
        When the peak is: "forward", "backward", "optimizer"; empty where activations are unknown.
    peaks : mapping of str to int
        The highest bytes of each of these.
    parameters, trainable : int
        Elements, each storage once.
    notes : tuple of str
        Plain sentences.
    left_out : tuple of str
        What a real run needs memory for but no figure has: activations, or sub-models that got no input.
    reserved : int
        Bytes that the allocator of a GPU takes from it by the end of the second step, if there is room;
        0 where that is unknown. Near the limit it gives back what it can first.
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

    def bytes(self, name: str) -> int:
        """Return the bytes of a part at the peak; 0 if there is none of it."""
        return sum(part.bytes for part in self.parts if part.name == name)

    def full(self, name: str) -> int:
        """Return the bytes of a part at its own highest; 0 if there is none of it."""
        return sum(part.full for part in self.parts if part.name == name)

    @property
    def bound(self) -> Bound:
        """How the total is meant: no better than the worst of its parts."""
        bounds = {part.bound for part in self.parts if part.bytes}
        if self.left_out:
            return "lower"
        return "estimate" if "estimate" in bounds else "upper" if "upper" in bounds else "exact"

    @property
    def interval(self) -> tuple[float, float]:
        """Between how many bytes the real peak is expected; the same twice where the total is exact.

        What is counted at most may not be needed at all, and then another moment has the peak. An estimate
        may be as far off as the worst of those that were measured. The upper end is NaN where something is
        left out.
        """
        least = self.total - sum(part.bytes for part in self.parts if part.bound == "upper")
        is_estimate = any(part.bytes and part.bound == "estimate" for part in self.parts)
        low, high = MEASURED if is_estimate else (1.0, 1.0)
        others = max((size for name, size in self.peaks.items() if name != self.moment), default=0)
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
    context: float = 0.0  # what CUDA will take before the first tensor, if it is not initialised

    @property
    def available(self) -> float:
        """Bytes that tensors could take; never negative, NaN if unknown."""
        room = self.free + self.cached - self.context
        return room if math.isnan(room) else max(0.0, room)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a forecast fits a device."""

    room: Room
    held: int  # bytes of the model that are there already
    fits: bool | None  # None if the room is unknown, or if more than the forecast will be needed
    largest_batch: int | None  # rows; 0 if not even one fits, None if unknown
    # Tokens of each row that fit at the forecast's batch; None if not asked.
    longest: int | None = None


@dataclass(frozen=True, slots=True)
class Fit(Shown):
    """A forecast, and whether it fits the devices that are here.

    Attributes
    ----------
    name : str
        What was asked about.
    forecast : Forecast
    verdicts : tuple of Verdict
        One for each device.
    headroom : float
        Share of each device's free memory to leave unused.
    stored : str
        What is on disk, in a few words; empty where nothing was looked at.
    tried : int, optional
        Bytes allocated at the peak of a real step of that size; None where none was made.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.fit.html:fit_bundle"

    name: str
    forecast: Forecast
    verdicts: tuple[Verdict, ...]
    headroom: float
    stored: str = ""
    tried: int | None = None

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]
