"""Gradient checkpointing on the meta device: layers are computed again in the backward pass.

PyTorch's own asks whether there are GPUs, to keep the state of their random numbers, and runs autograd's
engine. This one does neither, and keeps the same tensors for the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.backward import Accumulated, run_backward

_SWITCH = "gradient_checkpointing"


def checkpoint_layers(model: Any, accumulated: Accumulated) -> None:
    """Have a transformers model compute its layers again in `run_backward`, or raise OptionError.

    Where some are switched on already, these alone: transformers can do so with every second one.
    """
    layers = [module for module in model.modules() if hasattr(module, _SWITCH)]
    layers = [layer for layer in layers if getattr(layer, _SWITCH)] or layers
    if not layers:
        message = f"{type(model).__name__} has no layers that transformers can checkpoint"
        raise OptionError(message)
    for layer in layers:
        layer._gradient_checkpointing_func = partial(_checkpointed, accumulated)  # noqa: SLF001  (transformers' hook)
        setattr(layer, _SWITCH, True)


def is_checkpointed(model: Any) -> bool:
    """Return whether any layer of a model has checkpointing switched on."""
    return any(getattr(module, _SWITCH, False) for module in model.modules())


def _checkpointed(accumulated: Accumulated, function: Callable[..., Any], *args: Any) -> Any:
    named = function.keywords if isinstance(function, partial) else {}
    called = partial(function.func, *function.args) if isinstance(function, partial) else function
    values, structure = tree_flatten((args, dict(named)))
    places = [at for at, value in enumerate(values) if isinstance(value, torch.Tensor)]
    tensors = [values[at] for at in places]
    for at in places:
        values[at] = None

    def run(given: Sequence[torch.Tensor]) -> Any:
        filled = list(values)
        for at, tensor in zip(places, given, strict=True):
            filled[at] = tensor
        positional, keywords = tree_unflatten(filled, structure)
        return called(*positional, **keywords)

    shape: list[Any] = []
    # Without this one, a layer whose parameters alone need gradients would not get into the graph.
    always = torch.empty(0, device="meta", requires_grad=True)
    outputs = [
        # The node of a view keeps this function's node alive until its turn, and nothing else.
        tensor.view_as(tensor)
        for tensor in _Recomputed.apply(run, accumulated, shape, always, *tensors)
    ]
    kept, outer = shape
    return tree_unflatten([outputs.pop(0) if leaf is _TENSOR else leaf for leaf in kept], outer)


_TENSOR = object()


class _Recomputed(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    @staticmethod
    def forward(
        ctx: Any, run: Any, accumulated: Any, shape: list[Any], _always: Any, *tensors: Any
    ) -> Any:
        values, structure = tree_flatten(run(tensors))
        shape += [
            [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in values],
            structure,
        ]
        ctx.run, ctx.accumulated = run, accumulated
        ctx.save_for_backward(*tensors)
        return tuple(value for value in values if isinstance(value, torch.Tensor))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # It has the layer's inputs, and through a cache among them this node: a circle that nobody collects.
        run, ctx.run = ctx.run, None
        inputs = [saved.detach().requires_grad_(saved.requires_grad) for saved in ctx.saved_tensors]
        with torch.enable_grad():
            values = tree_leaves(run(inputs))
        tensors = (value for value in values if isinstance(value, torch.Tensor))
        outputs = [
            (tensor, grad)
            for tensor, grad in zip(tensors, grads, strict=False)
            if grad is not None and tensor.requires_grad
        ]
        del values, tensors
        run_backward(outputs, ctx.accumulated)
        return (None, *(tensor.grad for tensor in inputs))
