"""Mixtures of experts on the meta device: transformers multiplies all experts at once, by `grouped_mm`.

PyTorch's own rule for the meta device takes bfloat16 alone. Which expert a token goes to depends on values;
the amount of work does not: a token is a row for each of its experts.
"""

from __future__ import annotations

from typing import Any, Final

import torch

GROUPED: Final = {"_grouped_mm", "grouped_mm", "grouped_mm_fallback"}
"""Its name in PyTorch up to 2.9 and since, and transformers' own where PyTorch has none."""

_ALIGNED: Final = 16
"""Bytes that each row of the result is rounded up to on a GPU."""


def grouped_product(
    device: str, rows: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor, **_: Any
) -> torch.Tensor:
    """Return what `torch.nn.functional.grouped_mm` gives on a device for rows that are sorted by expert.

    Parameters
    ----------
    rows, weights : torch.Tensor
        Of shapes (rows, width) and (experts, width, other width).
    offs : torch.Tensor
        Where each expert's rows end.
    """
    product: torch.Tensor = _GroupedProduct.apply(rows, weights, offs, device)
    return product


class _GroupedProduct(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Keeps and makes the same tensors as PyTorch's own."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weights: Any, offs: Any, device: str) -> Any:
        ctx.device, ctx.shapes = device, (rows.shape, weights.shape)
        of_rows, of_weights, *_ = ctx.needs_input_grad
        ctx.save_for_backward(rows if of_weights else None, weights if of_rows else None, offs)
        return _made(device, rows, (rows.shape[0], weights.shape[-1]))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_rows, of_weights, *_ = ctx.needs_input_grad
        rows, (experts, width, other) = ctx.shapes
        # Weights are transposed in memory, as a linear layer's; so are their gradients.
        return (
            _made(ctx.device, grad, rows) if of_rows else None,
            _made(ctx.device, grad, (experts, other, width)).mT if of_weights else None,
            None,
            None,
        )


def _made(device: str, like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    aligned = _ALIGNED // like.element_size() if device == "cuda" else 1
    strides = [1, -(-shape[-1] // aligned) * aligned]
    for size in shape[-2:0:-1]:
        strides.append(size * strides[-1])
    return like.new_empty_strided(shape, strides[len(shape) - 1 :: -1])
