"""What optimizers keep for each tensor they train, by rules on its shape.

The rules are those of the code: PyTorch's, transformers' Adafactor, and bitsandbytes'. The states'
counts of steps are left out: a few bytes each, on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from hfmem_widget.errors import OptionError
from hfmem_widget.text import plain

FLOAT: Final = 4
BLOCK: Final = 256
"""Elements that share a scale in bitsandbytes' 8-bit states."""

LEAST_IN_8_BIT: Final = 4096
"""Elements below which bitsandbytes keeps a tensor's states in float32."""

LEAST_PAGED: Final = 100_000
"""Elements from which a paged optimizer keeps states where the host can take them."""

MAP: Final = 256 * FLOAT
"""Bytes of one table of 8-bit values; all tensors share it."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A tensor with a gradient.

    Attributes
    ----------
    shape : tuple of int
    size : int
        Bytes of an element.
    embedding : bool
        Whether it is the weight of an embedding, whose states the Trainer keeps out of 8 bit.
    """

    shape: tuple[int, ...]
    size: int
    embedding: bool = False

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


States = Callable[[Trained], tuple[int, ...]]
"""Returns the bytes of each of a tensor's states."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What an optimizer keeps, and what its step takes for a moment.

    Attributes
    ----------
    states : callable
    shared : int
        Bytes of states that all tensors share.
    at_once : float
        How many copies of everything trained are there at the height of a step.
    one_by_one : float
        How many copies of the largest tensor, in float32, where tensors are taken one after the other.
    when_cast : float
        How many more of these where tensors of half precision are cast.
    paged : bool
        Whether large states lie in memory that moves to the host when the device is full; it is none of
        PyTorch's allocator.
    """

    states: States
    shared: int = 0
    at_once: float = 0.0
    one_by_one: float = 0.0
    when_cast: float = 0.0
    paged: bool = False


@dataclass(frozen=True, slots=True)
class Needs:
    """What an optimizer needs for a model, in bytes.

    Attributes
    ----------
    states : int
        In PyTorch's allocator.
    paged : int
        Beside it.
    temporaries : int
        For a moment, within a step.
    """

    states: int
    paged: int
    temporaries: int


def like_parameter(count: int) -> States:
    """Return the rule of states that are like the parameter, in its type."""
    return lambda one: (one.numel * one.size,) * count


def in_float(count: int) -> States:
    """Return the rule of states in float32, whatever the parameter's type."""
    return lambda one: (one.numel * FLOAT,) * count


def in_8_bit(count: int) -> States:
    """Return the rule of bitsandbytes' states: a byte an element, and a scale for each block."""

    def states(one: Trained) -> tuple[int, ...]:
        if one.embedding or one.numel < LEAST_IN_8_BIT:
            return (one.numel * FLOAT,) * count
        return (one.numel, FLOAT * math.ceil(one.numel / BLOCK)) * count

    return states


def factored(one: Trained) -> tuple[int, ...]:
    """Return transformers' Adafactor: a row and a column for each matrix, in float32."""
    if len(one.shape) < 2:
        return (one.numel * FLOAT,)
    *most, last = one.shape
    rows = math.prod(most)
    return (rows * FLOAT, math.prod(most[:-1]) * last * FLOAT)


def factored_by_torch(one: Trained) -> tuple[int, ...]:
    """Return PyTorch's Adafactor: the same, in the parameter's type."""
    return tuple(size // FLOAT * one.size for size in factored(one))


_ADAM: Final = Optimizer(like_parameter(2), at_once=1.0)
_FUSED: Final = Optimizer(like_parameter(2))
_ADAM_8_BIT: Final = Optimizer(in_8_bit(2), shared=2 * MAP)
_ONE_8_BIT: Final = Optimizer(in_8_bit(1), shared=MAP)
_ADAFACTOR: Final = Optimizer(factored, one_by_one=3.0, when_cast=2.0)

BY_NAME: Mapping[str, Optimizer] = MappingProxyType(
    {
        "adamw_torch": _ADAM,
        "adamw_torch_fused": _FUSED,
        "adafactor": _ADAFACTOR,
        "sgd": Optimizer(like_parameter(0)),
        "adagrad": Optimizer(like_parameter(1), at_once=2.0),
        "rmsprop": Optimizer(like_parameter(1), at_once=1.0),
        "adamw_8bit": _ADAM_8_BIT,
        "adamw_bnb_8bit": _ADAM_8_BIT,
        "ademamix": Optimizer(in_float(3)),
        "ademamix_8bit": Optimizer(in_8_bit(3), shared=2 * MAP),
        "lion_32bit": Optimizer(in_float(1)),
        "lion_8bit": _ONE_8_BIT,
        "rmsprop_bnb": Optimizer(in_float(1)),
        "rmsprop_bnb_32bit": Optimizer(in_float(1)),
        "rmsprop_bnb_8bit": _ONE_8_BIT,
        "paged_adamw_32bit": Optimizer(in_float(2), paged=True),
        "paged_adamw_8bit": replace(_ADAM_8_BIT, paged=True),
        "paged_ademamix_32bit": Optimizer(in_float(3), paged=True),
        "paged_ademamix_8bit": Optimizer(in_8_bit(3), shared=2 * MAP, paged=True),
        "paged_lion_32bit": Optimizer(in_float(1), paged=True),
        "paged_lion_8bit": replace(_ONE_8_BIT, paged=True),
    }
)
"""By the names that `TrainingArguments.optim` takes."""


_OF_TORCH: Mapping[str, str] = MappingProxyType(
    {"adamw_torch": "AdamW", "sgd": "SGD", "adagrad": "Adagrad", "rmsprop": "RMSprop"}
)


def by_name(name: str, device: str = "cuda") -> Optimizer:
    """Return an optimizer by the name that `TrainingArguments.optim` has for it.

    Parameters
    ----------
    name : str
    device : {"cuda", "cpu"}
        PyTorch's take all tensors together on a GPU, and one after the other on a CPU.

    Raises
    ------
    OptionError
        If there is no rule for it; the message names those that there are.
    """
    if name not in BY_NAME:
        message = f"forecasts do not support the optimizer {plain(name)!r}; they support {', '.join(BY_NAME)}"
        raise OptionError(message)
    if device == "cpu" and name in _OF_TORCH:
        return of_class(_OF_TORCH[name], {"foreach": False}) or BY_NAME[name]
    return BY_NAME[name]


@dataclass(frozen=True, slots=True)
class _Class:
    """One of PyTorch's optimizers.

    Attributes
    ----------
    states : int
        Tensors like the parameter.
    more : tuple of str
        Options each of which adds one when it is on.
    foreach, decaying : float
        Copies of everything trained within a step that takes all tensors together, and with weight decay.
    loop : float
        Copies of the largest tensor within a step that takes one tensor after the other.
    always : float
        The same where there is no other way.
    """

    states: int
    more: tuple[str, ...] = ()
    foreach: float = 1.0
    decaying: float = 1.0
    loop: float = 3.0
    always: float = 0.0


_CLASSES: Mapping[str, _Class] = MappingProxyType(
    {
        "Adam": _Class(2, ("amsgrad",)),
        "AdamW": _Class(2, ("amsgrad",)),
        "NAdam": _Class(2, decaying=2.0),
        "RAdam": _Class(2, loop=2.0),
        "Adamax": _Class(2, loop=2.0),
        "SGD": _Class(0, ("momentum",), foreach=0.0, loop=2.0),
        "RMSprop": _Class(1, ("momentum", "centered"), loop=2.0),
        "Adagrad": _Class(1, foreach=2.0, decaying=2.0, loop=2.0),
        "Adadelta": _Class(2, foreach=2.0, decaying=2.0),
        "ASGD": _Class(1, loop=2.0),
        "Rprop": _Class(2, foreach=2.0, decaying=2.0),
        "Muon": _Class(1, foreach=0.0, decaying=0.0, always=3.0),
    }
)


@dataclass(slots=True)
class _Sum:
    states: int = 0
    paged: int = 0
    trained: int = 0
    largest: int = 0


def of_class(name: str, settings: Mapping[str, Any]) -> Optimizer | None:
    """Return one of PyTorch's or transformers' optimizers; None if there is no rule for it.

    Parameters
    ----------
    name : str
        The class.
    settings : mapping
        The options of a parameter group, such as ``amsgrad`` and ``momentum``.
    """
    if name == "Adafactor":
        return _adafactor(settings)
    if name not in _CLASSES:
        return None
    kind = _CLASSES[name]
    states = like_parameter(kind.states + sum(bool(settings.get(option)) for option in kind.more))
    if settings.get("fused"):
        return Optimizer(states)
    if settings.get("foreach") is False:
        needs_any = kind.foreach or settings.get("weight_decay")
        return Optimizer(states, one_by_one=kind.loop if needs_any else kind.always)
    return Optimizer(
        states,
        at_once=kind.decaying if settings.get("weight_decay") else kind.foreach,
        one_by_one=kind.always,
    )


def _adafactor(settings: Mapping[str, Any]) -> Optimizer:
    # PyTorch's has beta2_decay; transformers' can keep the first moment too.
    if "beta2_decay" in settings:
        return Optimizer(factored_by_torch, one_by_one=3.0)
    if settings.get("beta1") is None:
        return _ADAFACTOR
    return replace(_ADAFACTOR, states=lambda one: (*factored(one), one.numel * FLOAT))


def of_bitsandbytes(name: str, bits: int, *, paged: bool) -> Optimizer | None:
    """Return one of bitsandbytes' optimizers; None if there is no rule for it.

    Parameters
    ----------
    name : str
        The class, such as ``AdamW`` or ``PagedLion8bit``.
    bits : int
        Of its states: 8 or 32.
    paged : bool
    """
    plainer = name.removeprefix("Paged").removesuffix("8bit").removesuffix("32bit")
    count = {"Adam": 2, "AdamW": 2, "LAMB": 2, "AdEMAMix": 3, "Lion": 1, "RMSprop": 1}.get(plainer)
    count = {"Adagrad": 1, "LARS": 1, "SGD": 1}.get(plainer, count)
    if count is None:
        return None
    if bits == 8:
        return Optimizer(in_8_bit(count), shared=min(count, 2) * MAP, paged=paged)
    return Optimizer(in_float(count), paged=paged)


def needs(
    optimizer: Optimizer,
    trained: Iterable[Trained],
    rounded: Callable[[int], int] = lambda size: size,
) -> Needs:
    """Return what an optimizer needs for the tensors it trains.

    Parameters
    ----------
    rounded : callable
        What the allocator gives for a size.
    """
    total = _Sum()
    copies = optimizer.one_by_one
    for one in trained:
        sizes = optimizer.states(one)
        paged = optimizer.paged and one.numel >= LEAST_PAGED
        for size in sizes:
            # The scales of blocks stay in the allocator.
            if paged and size >= one.numel:
                total.paged += size
            else:
                total.states += rounded(size)
        total.trained += rounded(one.numel * one.size)
        total.largest = max(total.largest, one.numel * FLOAT)
        if one.size < FLOAT:
            copies = optimizer.one_by_one + optimizer.when_cast
    shared = rounded(optimizer.shared) if total.trained and optimizer.shared else 0
    temporaries = int(optimizer.at_once * total.trained + copies * total.largest)
    return Needs(total.states + shared, total.paged, temporaries)
