"""Gradient checkpointing on the meta device: computed again in the backward pass instead of kept.

PyTorch's own asks whether there are GPUs, to keep the state of their random numbers, and runs autograd's
engine; here neither is wanted. What is kept, and what comes and goes, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.backward import Accumulated, run_backward

_SWITCH = "gradient_checkpointing"


def checkpoint_layers(model: Any, accumulated: Accumulated) -> None:
    """Have a transformers model compute its layers again in `run_backward`.

    Parameters
    ----------
    model : torch.nn.Module
        On the meta device; it is changed.
    accumulated : callable
        As `run_backward` takes it.

    Raises
    ------
    OptionError
        If it has nothing that can be checkpointed.
    """
    layers = [module for module in model.modules() if hasattr(module, _SWITCH)]
    if not layers:
        message = f"{type(model).__name__} has no layers that transformers can checkpoint"
        raise OptionError(message)
    for layer in layers:
        layer._gradient_checkpointing_func = partial(_checkpointed, accumulated)  # noqa: SLF001  (transformers' hook)
        setattr(layer, _SWITCH, True)


def is_checkpointed(model: Any) -> bool:
    """Return whether a model has checkpointing switched on somewhere."""
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
    # Without it, nothing of what only parameters need would get into the graph.
    always = torch.empty(0, device="meta", requires_grad=True)
    outputs = [
        # A view of each, whose node keeps this function's alive until it is its turn, and nothing else.
        one.view_as(one)
        for one in _Recomputed.apply(run, accumulated, shape, always, *tensors)
    ]
    kept, outer = shape
    return tree_unflatten([outputs.pop(0) if one is _TENSOR else one for one in kept], outer)


_TENSOR = object()


class _Recomputed(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    @staticmethod
    def forward(
        ctx: Any, run: Any, accumulated: Any, shape: list[Any], _always: Any, *tensors: Any
    ) -> Any:
        values, structure = tree_flatten(run(tensors))
        shape += [[_TENSOR if isinstance(one, torch.Tensor) else one for one in values], structure]
        ctx.run, ctx.accumulated = run, accumulated
        ctx.save_for_backward(*tensors)
        return tuple(one for one in values if isinstance(one, torch.Tensor))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        with torch.enable_grad():
            values, _ = tree_flatten(ctx.run(inputs))
        outputs = [
            (one, grad)
            for one, grad in zip(
                [one for one in values if isinstance(one, torch.Tensor)], grads, strict=False
            )
            if grad is not None and one.requires_grad
        ]
        del values
        run_backward(outputs, ctx.accumulated)
        return (None, *(one.grad for one in inputs))
