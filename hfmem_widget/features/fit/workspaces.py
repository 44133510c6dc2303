"""What kernels of a GPU take beside the tensors that a program sees.

Rules follow PyTorch's source: the workspaces of cuBLAS (aten/src/ATen/cuda/CublasHandlePool.cpp), which stay,
and what attention allocates within its backward pass (transformers/cuda/flash_attn/flash_api.cpp and
transformers/cuda/mem_eff_attention/kernel_backward.h), which goes again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import torch

LARGE: Final = 32 << 20
"""From Hopper on; also where the device is unknown, so that no forecast is too low."""

USUAL: Final = (8 << 20) + (128 << 10)
"""Elsewhere: cuBLAS' own ":4096:2:16:8"."""

_LARGE_FROM: Final = 9  # the major compute capability that has the large one

_ATEN: Final = torch.ops.aten
_FLASH: Final = _ATEN._scaled_dot_product_flash_attention_backward.default  # noqa: SLF001  (an operator's name)
_EFFICIENT: Final = _ATEN._scaled_dot_product_efficient_attention_backward.default  # noqa: SLF001  (likewise)
_SOFTMAX: Final = _ATEN._safe_softmax.default  # noqa: SLF001  (likewise)
_FLOAT: Final = 4


def of_cublas(*, training: bool, environ: Mapping[str, str] = os.environ) -> tuple[int, bool]:
    """Return the bytes of cuBLAS' workspaces, and whether they are sure.

    Each thread has one: that of the forward pass, and autograd's for the backward pass. Nothing is
    initialised.
    """
    threads = 2 if training else 1
    chosen = re.findall(r":(\d+):(\d+)", environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if chosen:
        return threads * sum(int(size) * 1024 * int(count) for size, count in chosen), True
    if not torch.cuda.is_initialized():
        return threads * LARGE, False
    major, _ = torch.cuda.get_device_capability()
    return threads * (LARGE if major >= _LARGE_FROM else USUAL), True


def within(func: Any, args: tuple[Any, ...]) -> int:
    """Return the bytes that an operation takes while it runs, beside its results."""
    if func is _SOFTMAX:
        # Which scores are -inf, and in which rows all of them are.
        return int(args[0].numel() + args[0].numel() // max(1, args[0].shape[-1]))
    if func not in {_FLASH, _EFFICIENT}:
        return 0
    _, query, key, value, *_ = args
    batch, heads, length, width = query.shape
    rows = batch * heads * _up(length, 128)
    accumulated = rows * _up(width, 32) * _FLOAT if query.element_size() < _FLOAT else 0
    expanded = 0
    if func is _FLASH and key.shape[1] != heads:
        expanded = 2 * batch * heads * key.shape[2] * width * query.element_size()
    if func is _EFFICIENT and query.element_size() < _FLOAT and max(width, value.shape[-1]) > 128:
        # Beyond what the registers hold, those of keys and values are summed in memory, too.
        widths = _up(width, 128) + _up(value.shape[-1], 128)
        accumulated += batch * heads * _up(key.shape[2], 64) * widths * _FLOAT
    return int(rows * _FLOAT + accumulated + expanded)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
