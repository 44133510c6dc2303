"""The options of a forecast, declared once for the magic, its manual and `fit()`.

`errors_as` turns exceptions from other code into one sentence.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from hfmem_widget.errors import OptionError
from hfmem_widget.options import Options, switch, value
from hfmem_widget.text import plain, wrong_value

PRECISIONS: Final = ("fp32", "bf16", "fp16", "pure bf16", "pure fp16")

Lora = tuple[int, tuple[str, ...]]
"""The rank of the adapters, and their layers; peft chooses the layers if there are none."""


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
        allowed = ", ".join(PRECISIONS).replace("pure ", "pure-")
        raise wrong_value(given, "precision", f"one of {allowed}")
    return precision


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else map(str, given)
    return tuple(name.strip() for name in names if name.strip())


def _lora(given: Any) -> Lora | None:
    """Return the rank and the layers in a value such as 16, (16, ["q_proj"]) or ``16,q_proj,v_proj``."""
    if given is None or given == "":
        return None
    parts = given.partition(",")[::2] if isinstance(given, str) else given
    try:
        rank, layers = (parts, ()) if isinstance(parts, int) else parts
        return int(rank), _names(layers)
    except (TypeError, ValueError):
        allowed = "a rank, with or without layers, such as 16 or 16,q_proj,v_proj"
        raise wrong_value(given, "lora", allowed) from None


def headroom_of(given: object) -> float:
    """Return the share of free memory to leave unused, or raise OptionError."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        raise wrong_value(given, "headroom", "a share from 0 to below 1")
    return float(given)


@dataclass(frozen=True, slots=True)
class Setting(Options):
    """How a model will be run; `device`, "cuda" or "cpu", decides on the kernels.

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
        "Recompute activations in the backward pass.",
    )
    liger: bool = switch("--liger", "Run Liger's kernels, as with use_liger_kernel=True.")
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
        "Forecast one of several ranks: ddp, zero1, zero2, zero3, fsdp or tp, such as zero3:8.",
    )
    longest: bool = switch(
        "--longest", "Find the longest rows that fit with this batch, by further dry runs."
    )
    attempt: bool = switch(
        "--try", "Make real steps of this size, with random weights, in a new process."
    )
    headroom: float = value(
        0.10,
        "--headroom SHARE",
        "Share of the free memory to leave unused. Default: 0.1.",
        headroom_of,
        kind=float,
    )
    device: str = "cuda"


class SettingKeywords(TypedDict, total=False):
    """The options of a `Setting` as keyword arguments, with the types of every accepted form."""

    training: bool
    batch: int
    length: int
    precision: str | None
    optimizer: str
    checkpointing: bool
    liger: bool
    trainable: str | Iterable[str] | None
    accumulation: int
    quantized: str
    lora: int | tuple[int, Iterable[str]] | str | None
    image: int | None
    kv: str
    shards: str
    longest: bool
    attempt: bool
    headroom: float


@contextmanager
def errors_as(sentence: str) -> Iterator[None]:
    """Turn an exception in the block into an OptionError: `sentence`, then the exception's first sentence.

    `sentence` has no full stop; text from outside in it is `plain` already.
    """
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        first, _, _ = plain(error, 200).partition(". ")  # later sentences are for developers
        raise OptionError(f"{sentence}: {type(error).__name__}: {first.rstrip('.!')}") from error
