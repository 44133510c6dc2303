"""Operations on the meta device that keep the same tensors as a real device's kernels.

By default, meta tensors do not follow a device's kernels: attention multiplies out its scores, dropout keeps
a mask of the activations' type, and autocast ignores them. Casts follow the lists in PyTorch's documentation
of `torch.amp`.

transformers multiplies all experts of a mixture at once, by `grouped_mm`, for which PyTorch's own rule on the
meta device takes only bfloat16. A token's experts depend on values; the amount of work does not: a token is a
row for each of its experts.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from types import FunctionType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from hfmem_widget.features.fit.allocator import round_up
from hfmem_widget.features.fit.liger import adds_in_place
from hfmem_widget.features.fit.live_bytes import device_in, values_of
from hfmem_widget.features.fit.workspaces import prefers_cudnn

_ASKING: Final = {"__format__", "any", "as_tensor", "equal", "numpy", "tensor"}
_HALF: Final = {torch.bfloat16, torch.float16}

_LOWER: Final = {
    *("__matmul__", "__rmatmul__", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bilinear"),
    *("bmm", "chain_matmul", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
    *("conv_transpose3d", "einsum", "linear", "matmul", "mm", "multi_dot", "mv", "prelu"),
    *("scaled_dot_product_attention",),
}
"""What autocast computes in half precision."""

_FULL: Final = {
    "cuda": {
        *("__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "asin", "cosh", "erfinv"),
        *("exp", "expm1", "log", "log10", "log1p", "log2", "pow", "reciprocal", "rsqrt", "sinh"),
        *("tan", "dist", "norm", "normalize", "renorm"),
        *("cosine_similarity", "group_norm", "layer_norm", "log_softmax", "softmax", "softmin"),
        *("softplus", "binary_cross_entropy_with_logits", "cosine_embedding_loss"),
        *("hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss"),
        *("mse_loss", "multi_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss"),
        *("soft_margin_loss", "triplet_margin_loss", "cdist", "logsumexp"),
        *("multilabel_margin_loss", "pdist", "_upsample_bicubic2d_aa"),
        *(
            "_upsample_bilinear2d_aa",
            "upsample_bicubic2d",
            "upsample_bilinear2d",
            "upsample_linear1d",
        ),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d"),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    },
    "cpu": {
        *("binary_cross_entropy", "cosine_embedding_loss", "cross_entropy", "ctc_loss"),
        *("huber_loss", "mse_loss", "multi_margin_loss", "nll_loss", "poisson_nll_loss", "prod"),
        *("smooth_l1_loss", "triplet_margin_loss"),
    },
}
"""What autocast computes in float32, by device."""

_FULL_INSIDE: Final = {
    "cumprod",
    "cumsum",
    "linalg_matrix_norm",
    "linalg_vector_norm",
    "prod",
    "sum",
}
"""What autocast on a GPU computes in float32; the inputs stay as they are."""

_LARGEST_HEAD: Final = 256  # elements of the widest heads that the flash kernel takes
_ALIGNED_MASK: Final = 8  # elements; strides of the efficient kernel's masks are multiples of it

_ATTENTION: Final = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""The positional arguments of `scaled_dot_product_attention`."""

_GROUPED: Final = {"_grouped_mm", "grouped_mm", "grouped_mm_fallback"}
"""The names of a grouped matrix product: PyTorch's up to 2.9 and since, and transformers' own."""


class AsOnDevice(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Does operations on meta tensors as a device does, with autocast to a half precision if given."""

    def __init__(self, device: str, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self._device = device
        self._autocast = autocast
        self._keeps_casts = autocast is not None
        self.casts: dict[int, torch.Tensor] = {}  # of weights, kept as long as autocast keeps them
        self.routes = False  # whether experts were among the operations

    def leave_autocast(self) -> None:
        """Drop the casts; the recomputation in the backward pass makes its own."""
        self.casts.clear()
        self._keeps_casts = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _ASKING:
            return _value_of_tensor(func, args, kwargs)
        if self._autocast is not None:
            args, kwargs = self._cast(name, args, kwargs)
        if name == "scaled_dot_product_attention":
            return _attention(self._device, func, *args, **kwargs)
        if name in _GROUPED:
            self.routes = True
            return _grouped_product(self._device, *args, **kwargs)
        if name == "mm" and self._device == "cuda" and adds_in_place(sys._getframe(1), args[0]):  # noqa: SLF001  (the caller)
            return args[0].new_empty((), dtype=torch.float32).expand(len(args[0]), args[1].shape[1])
        if name == "ctc_loss":
            return _ctc_loss(*args, **kwargs)
        if self._device == "cuda" and name == "dropout":
            func = partial(_dropout, func)
        elif self._device == "cuda" and name == "cross_entropy" and self._autocast is not None:
            func = partial(_cross_entropy, func)
        with self if (opened := _opened(func)) else nullcontext():
            return (opened or func)(*args, **kwargs)

    def _cast(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in _LOWER:
            return tree_map(self._to_half, (args, kwargs))
        if name in _FULL[self._device]:
            return tree_map(_to_full, (args, kwargs))
        if self._device == "cuda" and name in _FULL_INSIDE and args and _is_float(args[0]):
            kwargs["dtype"] = kwargs.get("dtype") or torch.float32
        return args, kwargs

    def _to_half(self, value: Any) -> Any:
        if not _is_float(value) or value.dtype == self._autocast:
            return value
        is_kept = value.is_leaf and value.requires_grad and not value._is_view()  # noqa: SLF001  (nowhere public)
        if not (self._keeps_casts and is_kept):
            return value.to(self._autocast)
        if id(value) not in self.casts:
            self.casts[id(value)] = value.to(self._autocast)
        return self.casts[id(value)]


def _opened(func: Any) -> Any:
    """Return a copy of a function of `torch.nn.functional` whose operations reach the mode; None for others.

    Such functions, as `interpolate`, ask whether a mode is active and then pass themselves to it as a whole.
    The copy gets the answer that none is.
    """
    if not isinstance(func, FunctionType) or func.__globals__ is not vars(torch.nn.functional):
        return None
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    namespace = func.__globals__ | dict.fromkeys(names, lambda *_: False)
    opened = FunctionType(
        func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__
    )
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened


def _value_of_tensor(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a result that depends on values, by those of a tensor, or by assumed ones on the meta device."""
    name = func.__name__
    if name in {"tensor", "as_tensor"}:
        is_tensor = bool(args) and isinstance(args[0], torch.Tensor)
        return func(*args, **kwargs) if is_tensor else _from_numbers(func, args, kwargs)
    if name == "equal":
        both = [values_of(one) for one in args]
        return None not in both and func(*(one.host for one in both if one is not None))
    values = values_of(args[0])
    if name != "any":
        return func(*args) if values is None else getattr(values.host, name)(*args[1:])
    if values is None and len(args) == 1 and not kwargs:
        return torch.zeros((), dtype=torch.bool)  # nothing is padded, packed or out of range
    return func(*args, **kwargs)


def _from_numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a tensor of numbers that keeps its values also on the meta device."""
    known = {id(one): values_of(one) for one in tree_leaves(args) if isinstance(one, torch.Tensor)}
    if device_in(kwargs) != "meta" or None in known.values():
        return func(*args, **kwargs)
    numbers = {key: values.host.tolist() for key, values in known.items() if values is not None}
    args = tree_map(lambda one: numbers.get(id(one), one), args)
    return func(*args, **(kwargs | {"device": "cpu"})).to("meta")


def _is_float(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _to_full(value: Any) -> Any:
    return value.float() if _is_float(value) else value


def _dropout(func: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the mask as bytes, as a GPU does."""
    given = dict(zip(("p", "training", "inplace"), args, strict=False)) | kwargs
    share = given.get("p", 0.5)
    if given.get("training", True) and not given.get("inplace") and 0 < share < 1:
        return torch.native_dropout(values, share, train=True)[0]
    return func(values, *args, **kwargs)


def _attention(device: str, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel that the device would; its further results are for the backward pass."""
    given = dict(zip(_ATTENTION, args, strict=False)) | kwargs
    query, key, value = (given[name] for name in _ATTENTION[:3])
    mask, dropout = given.get("attn_mask"), given.get("dropout_p", 0.0)
    is_causal = given.get("is_causal", False)
    grouped = given.get("enable_gqa", False) and query.shape[-3] != key.shape[-3]
    kernel = _kernel(device, query, value, mask, dropout, grouped=grouped)
    if not kernel and dropout and device == "cuda" and not grouped:
        return _multiplied_out(query, key, value, mask, dropout, scale=given.get("scale"))
    if not kernel:
        return func(*args, **kwargs)
    bias = None if mask is None else _bias(mask, query, key, padded=kernel == "efficient_attention")
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}")
    if kernel in {"cudnn_attention", "efficient_attention"}:
        kept = {"compute_log_sumexp": True, "dropout_p": dropout, "is_causal": is_causal}
        return operator(query, key, value, bias, **kept)[0]
    masked = {"attn_mask": bias} if kernel == "flash_attention_for_cpu" else {}
    return operator(query, key, value, dropout, is_causal, **masked)[0]


def _multiplied_out(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, *, scale: float | None
) -> Any:
    """Do attention without a kernel, in float32, with a dropout mask of bytes, as a GPU does."""
    dtype = query.dtype
    query, key, value = map(_to_full, (query, key, value))
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    scores = (query * factor) @ (key.mT * factor)
    if mask is not None:
        scores.add_(torch.empty_like(mask, dtype=query.dtype) if mask.dtype == torch.bool else mask)
    shares = torch.ops.aten._safe_softmax(scores, -1)  # noqa: SLF001  (an operator's name)
    del scores
    return (torch.native_dropout(shares, dropout, train=True)[0] @ value).to(dtype)


def _kernel(
    device: str, query: Any, value: Any, mask: Any, dropout_p: float, *, grouped: bool
) -> str:
    """Return the name of the kernel that PyTorch chooses; empty if only a kernel with scores can run.

    As in transformers/sdp_utils_cpp.h and transformers/cuda/sdp_utils.cpp of PyTorch.
    """
    if query.dim() != 4 or (not grouped and query.shape[:2] != value.shape[:2]):
        return ""
    # Only the efficient kernel returns a mask's gradient, or takes one of three dimensions. No kernel takes
    # a mask that is not contiguous in its rows, as T5's.
    is_plain = mask is None or (not mask.requires_grad and mask.dim() in {2, 4})
    if device == "cuda" and mask is not None and mask.stride(-1) != 1:
        return ""
    is_even = query.shape[-1] == value.shape[-1]
    widths = (query.shape[-1], value.shape[-1])
    is_aligned = max(widths) <= _LARGEST_HEAD and not any(width % 8 for width in widths)
    if device == "cuda" and query.dtype in _HALF and is_aligned and prefers_cudnn() and is_plain:
        return "cudnn_attention"
    if device == "cpu":
        return "flash_attention_for_cpu" if dropout_p == 0.0 and is_even and is_plain else ""
    if is_even and query.dtype in _HALF and mask is None and query.shape[-1] <= _LARGEST_HEAD:
        return "flash_attention"
    # Only the flash kernel takes heads that share keys and values.
    is_whole = not any(width * query.element_size() % 16 for width in widths)
    return "efficient_attention" if is_whole and not grouped else ""


def _bias(mask: Any, query: Any, key: Any, *, padded: bool) -> Any:
    """Return a mask as kernels add it; the efficient kernel pads its rows."""
    bias = torch.empty_like(mask, dtype=query.dtype) if mask.dtype == torch.bool else mask
    if padded and any(one % _ALIGNED_MASK for one in bias.stride()[:-1]):
        length = bias.shape[-1]
        padding = (0, _ALIGNED_MASK - length % _ALIGNED_MASK)
        bias = torch.nn.functional.pad(bias, padding)[..., :length]
    return bias.expand(*query.shape[:2], query.shape[-2], key.shape[-2])


def _cross_entropy(func: Any, values: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Cast as a GPU's autocast does: only the second of its two operations is done in float32.

    PyTorch asks the first, `log_softmax`, for a result of the input's type.
    """
    names = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.pop("label_smoothing", 0.0) or target.is_floating_point():
        return func(_to_full(values), target, *args, **kwargs)
    shares = torch.nn.functional.log_softmax(values, 0 if values.dim() == 1 else 1)
    return torch.nn.functional.nll_loss(_to_full(shares), target, **given)


def _ctc_loss(log_probs: Any, targets: Any, *_: Any, **__: Any) -> Any:
    return _CtcLoss.apply(log_probs, targets.shape[-1])


class _CtcLoss(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """PyTorch's own kernel, for which the meta device has no rule.

    It keeps the probabilities of each path to a place in the text, and makes as many in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, log_probs: Any, length: int) -> Any:
        steps, batch, _ = log_probs.shape
        ctx.save_for_backward(log_probs, log_probs.new_empty(batch, steps, 2 * length + 1))
        return log_probs.new_empty(())

    @staticmethod
    def backward(ctx: Any, _grad: Any) -> Any:
        log_probs, ways = ctx.saved_tensors
        back = torch.empty_like(ways)
        grad = torch.empty_like(log_probs)
        del back
        return grad, None


def _grouped_product(device: str, rows: Any, weights: Any, offs: Any, **_: Any) -> torch.Tensor:
    """Return the product of rows, sorted by expert and ending at `offs`, with the experts' weights."""
    product: torch.Tensor = _GroupedProduct.apply(rows, weights, offs, device)
    return product


class _GroupedProduct(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Keeps and makes the same tensors as PyTorch's."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weights: Any, offs: Any, device: str) -> Any:
        ctx.device, ctx.shapes = device, (rows.shape, weights.shape)
        of_rows, of_weights, *_ = ctx.needs_input_grad
        ctx.save_for_backward(rows if of_weights else None, weights if of_rows else None, offs)
        return _empty(device, rows, (rows.shape[0], weights.shape[-1]))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_rows, of_weights, *_ = ctx.needs_input_grad
        rows, (experts, width, other) = ctx.shapes
        # Weights are transposed in memory, as a linear layer's; so are their gradients.
        return (
            _empty(ctx.device, grad, rows) if of_rows else None,
            _empty(ctx.device, grad, (experts, other, width)).mT if of_weights else None,
            None,
            None,
        )


def _empty(device: str, like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a result whose rows begin at multiples of 16 bytes on a GPU."""
    strides = [1, round_up(shape[-1], 16 // like.element_size() if device == "cuda" else 1)]
    for size in shape[-2:0:-1]:
        strides.append(size * strides[-1])
    return like.new_empty_strided(shape, strides[len(shape) - 1 :: -1])
