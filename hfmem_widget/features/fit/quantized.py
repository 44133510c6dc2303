"""What bitsandbytes makes of a model's weights, by rules on their shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any, Final

from hfmem_widget.errors import OptionError
from hfmem_widget.text import plain

BLOCK: Final = 64
"""Weights that share a scale in 4 bit."""

SCALES: Final = 256
"""Scales that share a scale of their own where they are quantised too."""

_CODE, _SCALES_CODE, _OFFSET = 16 * 4, 256 * 4, 4


def _int8(rows: int, numel: int) -> tuple[int, ...]:
    return (numel, rows * 4)


def _nf4(rows: int, numel: int) -> tuple[int, ...]:  # noqa: ARG001  (a rule like the others)
    return (math.ceil(numel / 2), math.ceil(numel / BLOCK) * 4, _CODE)


def _nf4_double(rows: int, numel: int) -> tuple[int, ...]:  # noqa: ARG001  (as above)
    scales = math.ceil(numel / BLOCK)
    of_scales = math.ceil(scales / SCALES) * 4
    return (math.ceil(numel / 2), scales, of_scales, _CODE, _SCALES_CODE, _OFFSET)


RULES: MappingProxyType[str, Callable[[int, int], tuple[int, ...]]] = MappingProxyType(
    {"int8": _int8, "nf4": _nf4, "nf4-double": _nf4_double}
)
"""The bytes of each tensor that is kept for a matrix of some rows and elements."""


def quantized_bytes(
    model: Any, how: str, rounded: Callable[[int], int]
) -> tuple[dict[int, int], int]:
    """Return what a model's quantised weights take.

    Parameters
    ----------
    model : torch.nn.Module
        Not quantised, and none of peft's.
    how : str
        One of `RULES`.
    rounded : callable
        What the allocator gives for a size.

    Returns
    -------
    dict of int to int
        Bytes by the identity of the weight.
    int
        Elements of the largest, which is unpacked while it is used.
    """
    rule = RULES[checked(how)]
    sizes, largest = {}, 0
    for weight in _quantised(model):
        numel = weight.numel()
        sizes[id(weight)] = sum(rounded(size) for size in rule(weight.shape[0], numel))
        largest = max(largest, numel)
    return sizes, largest


def checked(how: str) -> str:
    """Return a name of `RULES`, or raise OptionError."""
    if how not in RULES:
        message = f"quantized must be one of {', '.join(RULES)}, not {plain(how)!r}"
        raise OptionError(message)
    return how


def _quantised(model: Any) -> Iterator[Any]:
    """Yield the matrices of linear layers but the head's and the last one's, as transformers chooses them."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    last = next(reversed(list(model.parameters())), None)
    for module in model.modules():
        is_last = any(one is last for one in module.parameters(recurse=False))
        if type(module).__name__ in {"Linear", "Conv1D"} and module is not head and not is_last:
            yield module.weight
