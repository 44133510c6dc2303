"""The states that optimizers keep for each trained tensor, by rules on its shape.

The rules follow the code of PyTorch, of transformers' Adafactor, and of bitsandbytes. They leave out the
counters of steps: a few bytes each, on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hfmem_widget.errors import OptionError
from hfmem_widget.text import plain

FLOAT: Final = 4
BLOCK: Final = 256  # elements that share a scale in bitsandbytes' 8-bit states
LEAST_IN_8_BIT: Final = 4096  # elements below which bitsandbytes keeps a tensor's states in float32
LEAST_PAGED: Final = 100_000  # elements from which a paged optimizer pages a tensor's states


@dataclass(frozen=True, slots=True)
class Trained:
    """A tensor with a gradient."""

    shape: tuple[int, ...]
    size: int  # bytes of an element
    embedding: bool = False  # whose states the Trainer keeps in float32, not in 8 bit

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


States = Callable[[Trained], tuple[int, ...]]
"""Returns the bytes of each of a tensor's states."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The rule of an optimizer: its states, and the temporaries of its step."""

    states: States
    shared: int = 0  # bytes of states that all tensors share
    at_once: float = 0.0  # copies of all trained tensors, at the peak of a step
    one_by_one: float = 0.0  # copies of the largest tensor in float32, if updated in turn
    when_cast: float = 0.0  # additional such copies where tensors of half precision are cast
    paged: bool = False  # whether states are outside of the allocator, and may move to the host


@dataclass(frozen=True, slots=True)
class Needs:
    """The bytes that an optimizer needs."""

    sizes: tuple[int, ...]  # of each state in the allocator
    paged: int  # all paged states
    temporaries: int  # of a step


def in_float(count: int) -> States:
    """Return the rule of states in float32, whatever the parameter's type."""
    return lambda tensor: (tensor.numel * FLOAT,) * count


def in_8_bit(count: int) -> States:
    """Return the rule of bitsandbytes' states: a byte for each element, and a scale for each block."""

    def states(tensor: Trained) -> tuple[int, ...]:
        if tensor.embedding or tensor.numel < LEAST_IN_8_BIT:
            return (tensor.numel * FLOAT,) * count
        return (tensor.numel, FLOAT * math.ceil(tensor.numel / BLOCK)) * count

    return states


def factored(tensor: Trained) -> tuple[int, ...]:
    """Return the bytes of Adafactor's states: a row and a column of each matrix, in float32."""
    if len(tensor.shape) < 2:
        return (tensor.numel * FLOAT,)
    *most, last = tensor.shape
    return (math.prod(most) * FLOAT, math.prod(most[:-1]) * last * FLOAT)


OF_TORCH: Final = {
    "adamw_torch": "AdamW",
    "adamw_torch_fused": "AdamW",
    "adafactor": "Adafactor",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
}
_OF_BITSANDBYTES: Final = (
    *("adamw_8bit", "adamw_bnb_8bit", "ademamix", "ademamix_8bit", "lion_32bit", "lion_8bit"),
    *("rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit"),
    *("paged_adamw_32bit", "paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"),
    *("paged_lion_32bit", "paged_lion_8bit"),
)
NAMES: Final = (*OF_TORCH, *_OF_BITSANDBYTES)
"""The names of `TrainingArguments.optim` that have a rule."""


def by_name(name: str, device: str = "cuda") -> Optimizer:
    """Return the rule of an optimizer by its name in `TrainingArguments.optim`, or raise OptionError."""
    if name not in NAMES:
        message = f"forecasts do not support the optimizer {plain(name)!r}; they support {', '.join(NAMES)}"
        raise OptionError(message)
    return of_live(kind_named(name), device)


def kind_named(name: str) -> Kind:
    """Return the kind of an optimizer by one of `NAMES`."""
    if name in OF_TORCH:
        return Kind(OF_TORCH[name], {"fused": name.endswith("_fused")})
    first = name.removeprefix("paged_").partition("_")[0]
    kind = next(each for each in _COUNTS if each.lower() == first)
    return Kind(kind, {}, 8 if name.endswith("8bit") else 32, name.startswith("paged"))


@dataclass(frozen=True, slots=True)
class _Class:
    """One of PyTorch's optimizers: its states, and the copies that a step makes."""

    states: int  # tensors like the parameter
    more: tuple[str, ...] = ()  # options that add one state each
    foreach: float = 1.0  # copies of all trained tensors, where they are updated together
    decaying: float = 1.0  # the same with weight decay
    loop: float = 3.0  # copies of the largest tensor, where tensors are updated in turn
    always: float = 0.0  # the same where they are always updated in turn


_CLASSES: Final = {
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


OPTIONS: Final = frozenset(
    {"amsgrad", "momentum", "centered", "fused", "foreach", "weight_decay", "beta1", "beta2_decay"}
)
"""The options of a parameter group that decide: present or not, None, on or off."""


def _of_torch(kind: _Class, options: Mapping[str, bool | None], device: str) -> Optimizer:
    count = kind.states + sum(bool(options.get(option)) for option in kind.more)

    def states(tensor: Trained) -> tuple[int, ...]:
        return (tensor.numel * tensor.size,) * count

    if options.get("fused"):
        return Optimizer(states)
    decays, foreach = options.get("weight_decay"), options.get("foreach")
    # By default all tensors are updated together on a GPU, and in turn on a CPU.
    if foreach is False or (foreach is None and device == "cpu"):
        return Optimizer(states, one_by_one=kind.loop if kind.foreach or decays else kind.always)
    at_once = kind.decaying if decays else kind.foreach
    return Optimizer(states, at_once=at_once, one_by_one=kind.always)


def _adafactor(options: Mapping[str, bool | None]) -> Optimizer:
    # PyTorch's has beta2_decay, and states of the parameter's type; transformers' can keep the first moment.
    if "beta2_decay" in options:
        return Optimizer(
            lambda tensor: tuple(size // FLOAT * tensor.size for size in factored(tensor)),
            one_by_one=3.0,
        )
    first_moment = in_float(0 if options.get("beta1") is None else 1)
    return Optimizer(
        lambda tensor: factored(tensor) + first_moment(tensor), one_by_one=3.0, when_cast=2.0
    )


_ONE_STATE: Final = dict.fromkeys(("Adagrad", "LARS", "Lion", "RMSprop", "SGD"), 1)
_COUNTS: Final = {**_ONE_STATE, "Adam": 2, "AdamW": 2, "LAMB": 2, "AdEMAMix": 3}
"""The states of each tensor in bitsandbytes' classes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An optimizer as far as its rule depends on it."""

    name: str
    options: Mapping[str, bool | None]
    bits: int = 0  # of a state's element in bitsandbytes' classes; 0 for others
    paged: bool = False

    @property
    def base(self) -> str:
        """The class of bitsandbytes that has the bits and pages as options."""
        return self.name.removeprefix("Paged").removesuffix("8bit").removesuffix("32bit")


def kind_of(optimizer: Any) -> Kind:
    """Return the kind of an optimizer, or a kind itself."""
    if isinstance(optimizer, Kind):
        return optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps the user's
    name = type(optimizer).__name__
    if type(optimizer).__module__.startswith("bitsandbytes"):
        bits = int(getattr(getattr(optimizer, "args", None), "optim_bits", 32))
        return Kind(name, {}, bits, bool(getattr(optimizer, "is_paged", False)))
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    options = {key: value for key, value in group.items() if key in OPTIONS}
    is_on = {key: None if value is None else bool(value) for key, value in options.items()}
    return Kind(name, is_on)


def of_live(optimizer: Any, device: str) -> Optimizer:
    """Return the rule of an optimizer, or of its `Kind`, or raise OptionError."""
    kind = kind_of(optimizer)
    name, bits = kind.name, kind.bits
    count = _COUNTS.get(kind.base)
    if bits and count:
        # All tensors share one table of 256 values, or two.
        tables = min(count, 2) * 256 * FLOAT
        states, shared = (in_8_bit, tables) if bits == 8 else (in_float, 0)
        return Optimizer(states(count), shared, paged=kind.paged)
    if not bits and name in _CLASSES:
        return _of_torch(_CLASSES[name], kind.options, device)
    if not bits and name == "Adafactor":
        return _adafactor(kind.options)
    raise OptionError(f"forecasts do not support the optimizer {plain(name)}")


def needs(optimizer: Optimizer, trained: Iterable[Trained]) -> Needs:
    """Return the bytes that an optimizer needs for its trained tensors."""
    sizes: list[int] = []
    paged = total = largest = 0
    copies = optimizer.one_by_one
    for tensor in trained:
        is_paged = optimizer.paged and tensor.numel >= LEAST_PAGED
        for size in optimizer.states(tensor):
            # The scales of blocks stay in the allocator.
            if is_paged and size >= tensor.numel:
                paged += size
            else:
                sizes.append(size)
        total += tensor.numel * tensor.size
        largest = max(largest, tensor.numel * FLOAT)
        if tensor.size < FLOAT:
            copies = optimizer.one_by_one + optimizer.when_cast
    if total and optimizer.shared:
        sizes.append(optimizer.shared)
    return Needs(tuple(sizes), paged, int(optimizer.at_once * total + copies * largest))
