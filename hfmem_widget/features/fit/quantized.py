"""What bitsandbytes keeps of a model's weights, by rules on their shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from hfmem_widget.text import wrong_value

BLOCK: Final = 64  # weights that share a scale in 4 bit
SCALES: Final = 256  # scales that share a scale of their own where they are quantised too

_CODE, _SCALES_CODE, _OFFSET = 16 * 4, 256 * 4, 4


def _nf4_double(numel: int) -> tuple[int, ...]:
    scales = math.ceil(numel / BLOCK)
    of_scales = math.ceil(scales / SCALES) * 4
    return (math.ceil(numel / 2), scales, of_scales, _CODE, _SCALES_CODE, _OFFSET)


RULES: Mapping[str, Callable[[int, int], tuple[int, ...]]] = {
    "int8": lambda rows, numel: (numel, rows * 4),
    "nf4": lambda _, numel: (math.ceil(numel / 2), math.ceil(numel / BLOCK) * 4, _CODE),
    "nf4-double": lambda _, numel: _nf4_double(numel),
}
"""The bytes of each tensor that is kept for a matrix of some rows and elements."""


def quantized_bytes(model: Any, how: str) -> tuple[dict[int, tuple[int, ...]], int]:
    """Return the bytes of a model's weights by identity when quantised, and the elements of the largest.

    Each weight is several tensors. The largest is unpacked while it is used.
    """
    rule = RULES[checked(how)]
    weights = list(_quantised(model))
    sizes = {id(weight): rule(weight.shape[0], weight.numel()) for weight in weights}
    return sizes, max((weight.numel() for weight in weights), default=0)


def checked(how: str) -> str:
    """Return the name of one of `RULES`, or raise OptionError."""
    if how not in RULES:
        raise wrong_value(how, "quantized", f"one of {', '.join(RULES)}")
    return how


def _quantised(model: Any) -> Iterator[Any]:
    """Yield the weights of linear layers except the head and the last one, as transformers chooses them."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    last = next(reversed(list(model.parameters())), None)
    for module in model.modules():
        is_last = any(own is last for own in module.parameters(recurse=False))
        if type(module).__name__ in {"Linear", "Conv1D"} and module is not head and not is_last:
            yield module.weight
