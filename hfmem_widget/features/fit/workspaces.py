"""The workspaces of a GPU's kernels: memory that they take beside the tensors that a program sees.

The rules follow PyTorch's source. The workspaces of cuBLAS (aten/src/ATen/cuda/CublasHandlePool.cpp) stay.
Those of attention's backward pass are freed within it (transformers/cuda/flash_attn/flash_api.cpp and
transformers/cuda/mem_eff_attention/kernel_backward.h; cuDNN's were measured, also of convolutions), and so
are those in which blocks of threads share a sum (native/cuda/Reduce.cuh).
"""

import math
import os
import re
from typing import Any, Final

import torch

from hfmem_widget.features.fit.allocator import round_up

LARGE: Final = 32 << 20
"""Bytes from Hopper on; also where the device is unknown, so that no forecast is too low."""

USUAL: Final = (8 << 20) + (128 << 10)
"""Bytes on older GPUs: cuBLAS' own ":4096:2:16:8"."""

_THREADS, _WARP, _THREADS_OF_PROCESSOR, _PROCESSORS_OF_H100 = 512, 32, 2048, 132
_LEAST, _MOST = 16, 256  # values of a thread before other threads, and other blocks, help it

_ATEN: Final = torch.ops.aten
_FLASH: Final = _ATEN._scaled_dot_product_flash_attention_backward.default  # noqa: SLF001  (an operator's name)
_EFFICIENT: Final = _ATEN._scaled_dot_product_efficient_attention_backward.default  # noqa: SLF001  (likewise)
_CUDNN: Final = _ATEN._scaled_dot_product_cudnn_attention_backward.default  # noqa: SLF001  (likewise)
_CONVOLUTION: Final = _ATEN.convolution.default
_CONVOLUTION_BACKWARD: Final = _ATEN.convolution_backward.default
_SUM: Final = _ATEN.sum.dim_IntList
_SOFTMAX: Final = _ATEN._safe_softmax.default  # noqa: SLF001  (likewise)
_SOFTMAX_BACKWARD: Final = _ATEN._softmax_backward_data.default  # noqa: SLF001  (likewise)
_FLOAT: Final = 4


def of_cublas() -> tuple[int, bool]:
    """Return the bytes of a workspace of cuBLAS, and whether they are certain; nothing is initialised.

    Each thread has a workspace: the main one, and autograd's for the backward pass.
    """
    chosen = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if chosen:
        return sum(int(size) * 1024 * int(count) for size, count in chosen), True
    if not torch.cuda.is_initialized():
        return LARGE, False
    major, _ = torch.cuda.get_device_capability()
    return (LARGE if major >= 9 else USUAL), True


def prefers_cudnn() -> bool:
    """Return whether PyTorch takes cuDNN's attention in half precision, as on H100 and B200.

    As `check_prefer_cudnn_attention` (transformers/cuda/sdp_utils.cpp), from torch 2.11 on. An unknown device
    is taken for one of these.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    is_deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0") not in {"", "0"}
    if version < (2, 11) or is_deprioritized:
        return False
    if not torch.cuda.is_initialized():
        return True
    is_recent = (torch.backends.cudnn.version() or 0) > 91500  # 9.15.0
    return is_recent and torch.cuda.get_device_capability() in {(9, 0), (10, 0)}


def within(func: Any, args: tuple[Any, ...], results: Any = None, *, on_gpu: bool = True) -> int:
    """Return the bytes that an operation takes while it runs, beside its results."""
    if func is _SOFTMAX:
        # One mask of the scores that are -inf, and one of the rows in which all are.
        return int(args[0].numel() + args[0].numel() // max(1, args[0].shape[-1]))
    if func is _SUM and on_gpu:
        return _of_sum(args[0], args[1])
    if func is _SOFTMAX_BACKWARD and on_gpu:
        return int(args[0].nbytes)  # the gradient times the result (native/cuda/SoftMax.cu)
    if func in {_CONVOLUTION, _CONVOLUTION_BACKWARD} and on_gpu:
        given = (results, *args) if func is _CONVOLUTION else args
        return _of_convolution(*given[:3], groups=given[9])
    return _of_attention(func, *args[1:4]) if func in {_FLASH, _EFFICIENT, _CUDNN} else 0


def _of_attention(func: Any, query: Any, key: Any, value: Any) -> int:
    batch, heads, length, width = query.shape
    if func is _CUDNN:  # gradients of queries in float32, and those of heads that share a key
        widths = key.shape[-1] + value.shape[-1] if key.shape[1] != heads else 0
        shared = batch * heads * key.shape[2] * widths * query.element_size()
        return int(batch * heads * length * (width + 1) * _FLOAT + shared)
    rows = batch * heads * round_up(length, 128)
    accumulated = rows * round_up(width, 32) * _FLOAT if query.element_size() < _FLOAT else 0
    expanded = 0
    if func is _FLASH and key.shape[1] != heads:
        expanded = 2 * batch * heads * key.shape[2] * width * query.element_size()
    if func is _EFFICIENT and query.element_size() < _FLOAT and max(width, value.shape[-1]) > 128:
        # The gradients of keys and values exceed the registers, and are summed in memory, too.
        widths = round_up(width, 128) + round_up(value.shape[-1], 128)
        accumulated += batch * heads * round_up(key.shape[2], 64) * widths * _FLOAT
    return int(rows * _FLOAT + accumulated + expanded)


def _of_convolution(output: Any, values: Any, weight: Any, *, groups: int) -> int:
    """Return the bytes of cuDNN's copies with channels last; none below 64 (docs/measured/memfit.md)."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim())
    has_layout = layout is not None and values.is_contiguous(memory_format=layout)
    if groups > 1 or has_layout or weight.shape[0] < 64:
        return 0
    return int(values.nbytes + output.nbytes + weight.nbytes)


def _of_sum(values: Any, dims: Any) -> int:
    """Return the bytes for a sum over leading dimensions, such as a bias's gradient; 0 for others."""
    if sorted(dim % values.dim() for dim in dims) != list(range(len(dims))) or not dims:
        return 0
    outputs = math.prod(values.shape[len(dims) :])
    inputs = values.numel() // max(1, outputs)
    if outputs < 4 or not values.is_contiguous():
        return 0
    vector = next(size for size in (4, 2, 1) if outputs % size == 0)  # values of a thread at once
    most = _THREADS // vector
    columns, rows = (
        min(most, 1 << max(0, size.bit_length() - 1)) for size in (outputs // vector, inputs)
    )
    height = min(rows, most // min(columns, _WARP))
    width = min(columns, most // height)
    a_thread = inputs
    if a_thread < min(height * _LEAST, _MOST):
        return 0
    a_thread = -(-a_thread // height)
    grid = -(-outputs // (vector * width))
    processors = _PROCESSORS_OF_H100
    if torch.cuda.is_initialized():
        processors = torch.cuda.get_device_properties().multi_processor_count
    target = processors * (_THREADS_OF_PROCESSOR // (width * height))
    if a_thread < _MOST or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-a_thread // _LEAST)), -(-a_thread // _MOST))
    return _FLOAT * outputs * blocks * width * vector if blocks > 1 else 0
