"""What kernels of a GPU take beside the tensors that a program sees.

Rules follow PyTorch's source. The workspaces of cuBLAS (aten/src/ATen/cuda/CublasHandlePool.cpp) stay. What
attention allocates within its backward pass goes again (transformers/cuda/flash_attn/flash_api.cpp and
transformers/cuda/mem_eff_attention/kernel_backward.h; cuDNN's was measured, for convolutions as well), and
so does what blocks of threads leave for one another that share a sum (native/cuda/Reduce.cuh).
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, Final

import torch

LARGE: Final = 32 << 20
"""Bytes from Hopper on; also where the device is unknown, so that no forecast is too low."""

USUAL: Final = (8 << 20) + (128 << 10)
"""Bytes on older GPUs: cuBLAS' own ":4096:2:16:8"."""

_LARGE_FROM: Final = 9  # the major compute capability that has the large one

_CUDNN_FIRST_SINCE: Final = (2, 11)
_CUDNN_AFTER: Final = 91500  # cuDNN 9.15.0

_VECTOR: Final = 4  # values that a thread takes at once
_THREADS, _WARP, _THREADS_OF_PROCESSOR, _PROCESSORS = 512, 32, 2048, 132
_LEAST, _MOST = 16, 256  # values of a thread before others help it, and before other blocks do

_ATEN: Final = torch.ops.aten
_FLASH: Final = _ATEN._scaled_dot_product_flash_attention_backward.default  # noqa: SLF001  (an operator's name)
_EFFICIENT: Final = _ATEN._scaled_dot_product_efficient_attention_backward.default  # noqa: SLF001  (likewise)
_CUDNN: Final = getattr(_ATEN, "_scaled_dot_product_cudnn_attention_backward", None)
_CONVOLUTION: Final = _ATEN.convolution.default
_CONVOLUTION_BACKWARD: Final = _ATEN.convolution_backward.default
_SUM: Final = _ATEN.sum.dim_IntList
_SOFTMAX: Final = _ATEN._safe_softmax.default  # noqa: SLF001  (likewise)
_SOFTMAX_BACKWARD: Final = _ATEN._softmax_backward_data.default  # noqa: SLF001  (likewise)
_ON_A_GPU_ALONE: Final = {_CONVOLUTION, _CONVOLUTION_BACKWARD, _SUM, _SOFTMAX_BACKWARD}
_FLOAT: Final = 4
_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_FEW_CHANNELS: Final = 64  # of the result, below which nothing was taken


def of_cublas() -> tuple[int, bool]:
    """Return the bytes of a workspace of cuBLAS, and whether they are sure; nothing is initialised.

    Each thread has one: that of the forward pass, and autograd's for the backward pass.
    """
    chosen = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if chosen:
        return sum(int(size) * 1024 * int(count) for size, count in chosen), True
    if not torch.cuda.is_initialized():
        return LARGE, False
    major, _ = torch.cuda.get_device_capability()
    return (LARGE if major >= _LARGE_FROM else USUAL), True


def prefers_cudnn() -> bool:
    """Return whether attention in half precision is cuDNN's, as on Hopper and on data centres' Blackwell.

    As `check_prefer_cudnn_attention` (transformers/cuda/sdp_utils.cpp). An unknown device is taken for one of
    these.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    chosen_not = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0") not in {"", "0"}
    if version < _CUDNN_FIRST_SINCE or chosen_not:
        return False
    if not torch.cuda.is_initialized():
        return True
    is_recent = (torch.backends.cudnn.version() or 0) > _CUDNN_AFTER
    return is_recent and torch.cuda.get_device_capability() in {(9, 0), (10, 0)}


def within(func: Any, args: tuple[Any, ...], results: Any = None, *, on_gpu: bool = True) -> int:
    """Return the bytes that an operation takes while it runs, beside its results."""
    if func in _ON_A_GPU_ALONE:
        return _on_a_gpu(func, args, results) if on_gpu else 0
    if _CUDNN is not None and func is _CUDNN.default:
        return _of_cudnn(*args[1:4])
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


def _on_a_gpu(func: Any, args: tuple[Any, ...], results: Any) -> int:
    if func is _SUM:
        return _of_sum(args[0], args[1])
    if func is _SOFTMAX_BACKWARD:  # the gradient times the result (native/cuda/SoftMax.cu)
        return int(args[0].numel() * args[0].element_size())
    given = (results, *args) if func is _CONVOLUTION else args
    return _of_convolution(*given[:3], groups=given[9])


def _of_convolution(output: Any, values: Any, weight: Any, *, groups: int) -> int:
    """Return what cuDNN takes to have the channels last: a copy of each (docs/measured/memfit.md)."""
    layout = _CHANNELS_LAST.get(values.dim())
    has_layout = layout is not None and values.is_contiguous(memory_format=layout)
    if groups > 1 or has_layout or weight.shape[0] < _FEW_CHANNELS:
        return 0
    return sum(each.numel() * each.element_size() for each in (values, output, weight))


def _of_cudnn(query: Any, key: Any, value: Any) -> int:
    """Return what cuDNN takes: gradients of queries in float32, and those of heads that share a key."""
    batch, heads, length, width = query.shape
    shared = 0
    if key.shape[1] != heads:
        widths = key.shape[-1] + value.shape[-1]
        shared = batch * heads * key.shape[2] * widths * query.element_size()
    return int(batch * heads * length * (width + 1) * _FLOAT + shared)


def _of_sum(values: Any, dims: Any) -> int:
    """Return what a sum over the leading dimensions takes, as of biases' gradients; of others nothing."""
    if sorted(one % values.dim() for one in dims) != list(range(len(dims))) or not dims:
        return 0
    outputs = math.prod(values.shape[len(dims) :])
    inputs = values.numel() // max(1, outputs)
    if outputs < _VECTOR or not values.is_contiguous():
        return 0
    vector = next(size for size in (_VECTOR, 2, 1) if outputs % size == 0)
    most = _THREADS // vector
    columns, rows = _power(outputs // vector, most), _power(inputs, most)
    height = min(rows, most // min(columns, _WARP))
    width = min(columns, most // height)
    a_thread = inputs
    if a_thread < min(height * _LEAST, _MOST):
        return 0
    a_thread = -(-a_thread // height)
    grid = -(-outputs // (vector * width))
    target = _processors() * (_THREADS_OF_PROCESSOR // (width * height))
    if a_thread < _MOST or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-a_thread // _LEAST)), -(-a_thread // _MOST))
    return _FLOAT * outputs * blocks * width * vector if blocks > 1 else 0


def _power(size: int, most: int) -> int:
    """Return the largest power of two that is neither above a size nor above a limit."""
    return most if size >= most else 1 << max(0, size.bit_length() - 1)


def _processors() -> int:
    """Return how many multiprocessors the device has; of an unknown one those of an H100."""
    if not torch.cuda.is_initialized():
        return _PROCESSORS
    return int(torch.cuda.get_device_properties().multi_processor_count)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
