"""A backward pass that does not run autograd's engine, and checkpointing within it.

On a machine with GPUs the engine's first run starts a thread for each of them. For that it asks CUDA for
their number, after which no forked child can train. A graph on the meta device does not need the engine: here
its nodes are called one after the other, latest first, as the engine calls them. Each is dropped when it is
done, which frees its saved tensors.

PyTorch's own checkpointing works here, if it keeps no state of random numbers. Its older, reentrant form runs
the engine; the replacement here does not, and keeps the same tensors for the same time.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import checkpoint

from hfmem_widget.errors import OptionError

Accumulated = Callable[[torch.Tensor], None]
"""Gets each tensor whose gradient was set or added to."""


def run_backward(
    outputs: list[tuple[torch.Tensor, torch.Tensor | None]],
    accumulated: Accumulated = lambda _: None,
) -> None:
    """Set the gradient of every leaf that the outputs depend on, and call `accumulated` with each leaf.

    `outputs`, tensors with their gradients or None, is emptied, so that only the caller could keep
    the graph alive.
    """
    walk = _Walk(accumulated)
    while outputs:
        output, grad = outputs.pop()
        if output.grad_fn is not None:
            walk.begin(output, torch.ones_like(output) if grad is None else grad)
        del output, grad
    task, thread = torch._C._current_graph_task_id, threading.get_ident()  # noqa: SLF001  (asked by torch's checkpoint)

    def own_task() -> int:
        number: int = task()
        is_own = number == -1 and threading.get_ident() == thread
        return 1 << 30 if is_own else number  # the engine's count from 0

    # So that a checkpoint recomputes its layer once for all saved tensors, as in the engine's backward pass.
    torch._C._current_graph_task_id = own_task  # noqa: SLF001
    try:
        with torch.no_grad():
            walk.run()
    finally:
        torch._C._current_graph_task_id = task  # noqa: SLF001


class _Walk:
    def __init__(self, accumulated: Accumulated) -> None:
        self._accumulated = accumulated
        self._awaited: dict[Any, int] = {}  # the number of nodes for which each node waits
        self._grads: dict[Any, dict[int, torch.Tensor]] = {}
        self._holders: Counter[int] = Counter()  # nodes that await a tensor, by its identity
        self._roots: list[Any] = []
        self._owners: dict[Any, Any] = {}

    def begin(self, output: torch.Tensor, grad: torch.Tensor) -> None:
        node = output.grad_fn
        self._roots.append(node)
        self._awaited.setdefault(node, 0)
        self._keep(node, output)
        self._holders[id(grad)] += 1
        self._give(node, output.output_nr, grad)

    def run(self) -> None:
        self._count_awaited()
        ready: list[tuple[int, int, Any]] = []
        tickets = count()  # makes entries unique, so that nodes are never compared
        for node in self._roots:
            if not self._awaited[node]:
                heapq.heappush(ready, (_order(node), next(tickets), node))
        self._roots.clear()
        while ready:
            node = heapq.heappop(ready)[2]
            del self._awaited[node]
            edges, grads = self._call(node)
            self._owners.pop(node, None)
            del node  # which frees its saved tensors before gradients are added up
            for at, (following, number) in enumerate(edges):
                if following is None:
                    continue
                if at < len(grads) and grads[at] is not None:
                    self._give(following, number, grads[at])
                    grads[at] = None
                self._awaited[following] -= 1
                if not self._awaited[following]:
                    heapq.heappush(ready, (_order(following), next(tickets), following))

    def _keep(self, node: Any, owner: Any) -> None:
        """Keep the owner of a node written in Python, which itself does not before torch 2.13."""
        if isinstance(node, BackwardCFunction):
            self._owners[node] = owner

    def _count_awaited(self) -> None:
        pending, seen = list(dict.fromkeys(self._roots)), set(self._roots)
        while pending:
            for following, _ in pending.pop().next_functions:
                if following is not None:
                    self._awaited[following] = self._awaited.get(following, 0) + 1
                    if following not in seen:
                        seen.add(following)
                        pending.append(following)

    def _call(self, node: Any) -> tuple[Sequence[Any], list[torch.Tensor | None]]:
        """Call a node, and return its edges and their gradients, with the shapes and types expected there."""
        given = self._grads.pop(node, {})
        if hasattr(node, "variable"):
            while given:
                self._accumulate(node.variable, given.popitem()[1])
            return (), []
        expected = _expected(node)
        # A function written in Python takes at least its known gradients.
        inputs = max(given, default=-1) + 1 if expected is None else len(expected)
        grads = [given.get(at) for at in range(inputs)]
        given.clear()
        results = node.apply(*grads) if isinstance(node, BackwardCFunction) else node(*grads)
        made = list(results) if isinstance(results, tuple) else [results]
        del results
        edges = node.next_functions
        if len(made) > len(edges):
            # Inputs of a function that are not tensors have no edge and no gradient.
            made = [grad for grad in made if grad is not None] or made
        for at, (following, number) in enumerate(edges):
            self._keep(following, node)
            if at < len(made) and made[at] is not None:
                if following is None:
                    made[at] = None
                    continue
                made[at] = _as_expected(following, number, made[at])
                self._holders[id(made[at])] += 1
        # The engine keeps the incoming gradients until all outgoing ones have their shape and type.
        while grads:
            self._let_go(grads.pop())
        return edges, made

    def _give(self, node: Any, at: int, grad: torch.Tensor) -> None:
        """Add a gradient to the sum that a node awaits: in place where nothing else shares its memory."""
        held = self._grads.setdefault(node, {})
        before = held.get(at)
        if before is None:
            held[at] = grad
            return
        # Its elements must be contiguous, in any order of dimensions.
        if self._is_alone(before) and torch.ops.aten.is_non_overlapping_and_dense.default(before):
            before.add_(grad)
        else:
            held[at] = before + grad
            self._holders[id(held[at])] += 1
            self._let_go(before)
        self._let_go(grad)

    def _let_go(self, grad: torch.Tensor | None) -> None:
        if grad is not None:
            self._holders[id(grad)] -= 1
            if not self._holders[id(grad)]:
                del self._holders[id(grad)]

    def _is_alone(self, grad: torch.Tensor) -> bool:
        """Return whether no other node awaits a gradient, and no other tensor shares its memory."""
        storage = grad.untyped_storage()
        return self._holders[id(grad)] == 1 and _users(storage._cdata) == _ITS_OWN  # noqa: SLF001

    def _accumulate(self, leaf: torch.Tensor, grad: torch.Tensor) -> None:
        if leaf.grad is not None:
            leaf.grad.add_(grad)
        elif self._holders[id(grad)] == 1 and _is_laid_out_alike(grad, leaf):
            leaf.grad = grad.detach()
        else:
            leaf.grad = grad.clone()
        self._let_go(grad)
        self._accumulated(leaf)


# torch 2.6 has this function only in builds for CUDA; without it nothing is added in place.
_users = getattr(torch._C, "_storage_Use_Count", lambda _storage: _ITS_OWN + 1)  # noqa: SLF001
_ITS_OWN = 2
"""Users of a storage with one tensor: the tensor, and its object in Python."""


def _is_laid_out_alike(grad: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Return whether a gradient has its leaf's layout; of others the engine makes a copy."""
    sizes = zip(grad.stride(), leaf.stride(), leaf.shape, strict=True)
    return all(own == other for own, other, size in sizes if size != 1)


def _order(node: Any) -> int:
    """Return the rank of a node: gradients of leaves first, then the latest operations."""
    return -(2**63) if hasattr(node, "variable") else -int(node._sequence_nr())  # noqa: SLF001  (graph's order)


def _expected(node: Any) -> Any:
    """Return the shapes and types that the engine expects of a node's gradients; None if unknown."""
    try:
        return node._input_metadata  # noqa: SLF001  (shapes and types of a node are nowhere public)
    except RuntimeError:  # before torch 2.13, those written in Python
        return None


def _as_expected(node: Any, at: int, grad: torch.Tensor) -> torch.Tensor:
    """Sum broadcast gradients, and cast promoted ones, as the engine does between nodes."""
    if hasattr(node, "variable"):
        shape, dtype = node.variable.shape, node.variable.dtype
    else:
        expected = _expected(node)
        if expected is None:
            return grad
        shape, dtype = tuple(expected[at].shape), expected[at].dtype
    if tuple(grad.shape) != tuple(shape):
        grad = grad.sum_to_size(tuple(shape))
    return grad.to(dtype)


_SWITCH = "gradient_checkpointing"


@contextmanager
def checkpoint_layers(model: Any, accumulated: Accumulated) -> Iterator[None]:
    """Checkpoint the layers of a transformers model within the block, or raise OptionError.

    Where some layers are checkpointed already, only these: transformers can do so with every second one.
    """
    layers = [module for module in model.modules() if hasattr(module, _SWITCH)]
    layers = [layer for layer in layers if getattr(layer, _SWITCH)] or layers
    if not layers:
        raise OptionError(f"{type(model).__name__} has no layers that transformers can checkpoint")
    calls: list[Callable[..., Any]] = []
    for layer in layers:
        again = _again(calls, accumulated if _is_reentrant(layer) else None)
        layer._gradient_checkpointing_func = again  # noqa: SLF001  (transformers' hook)
        setattr(layer, _SWITCH, True)
    try:
        yield
    finally:
        calls.clear()


def _again(calls: list[Callable[..., Any]], reentrant: Accumulated | None) -> Callable[..., Any]:
    """Return PyTorch's checkpointing, or its older form with `reentrant`, which gets each gradient.

    Arguments that are not tensors are kept in `calls` only. A cache among a layer's arguments may hold the
    node that holds them: a cycle that would never be collected.
    """

    def checkpointed(function: Callable[..., Any], *args: Any) -> Any:
        places = [at for at, each in enumerate(args) if isinstance(each, torch.Tensor)]
        others = [None if at in places else each for at, each in enumerate(args)]
        number = len(calls)

        def filled(*tensors: torch.Tensor) -> Any:
            given = dict(zip(places, tensors, strict=True))
            return function(*(given.get(at, each) for at, each in enumerate(others)))

        def run(*tensors: torch.Tensor) -> Any:
            return calls[number](*tensors)

        calls.append(filled)
        tensors = [args[at] for at in places]
        del args
        if reentrant is not None:
            return _reentrant(reentrant, run, tensors)
        return checkpoint(
            run, *tensors, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )

    return checkpointed


def _is_reentrant(layer: Any) -> bool:
    """Return whether a layer is, or would be, checkpointed in the older form."""
    chosen = getattr(getattr(layer, "_gradient_checkpointing_func", None), "keywords", {})
    version: str = sys.modules["transformers"].__version__
    return bool(chosen.get("use_reentrant", int(version.partition(".")[0]) < 5))


def is_checkpointed(model: Any) -> bool:
    """Return whether any layer of a model has checkpointing switched on."""
    return any(getattr(module, _SWITCH, False) for module in model.modules())


def _reentrant(
    accumulated: Accumulated, run: Callable[..., Any], tensors: Sequence[torch.Tensor]
) -> Any:
    shape: list[Any] = []
    # Without this input, a layer whose parameters alone need gradients would not be in the graph.
    always = torch.empty(0, device="meta", requires_grad=True)
    outputs = [
        # The node of a view keeps only this function's node alive until its turn.
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
        values, structure = tree_flatten(run(*tensors))
        shape += [
            [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in values],
            structure,
        ]
        ctx.run, ctx.accumulated = run, accumulated
        ctx.save_for_backward(*tensors)
        return tuple(value for value in values if isinstance(value, torch.Tensor))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inputs = [saved.detach().requires_grad_(saved.requires_grad) for saved in ctx.saved_tensors]
        with torch.enable_grad():
            values = tree_leaves(ctx.run(*inputs))
        tensors = (value for value in values if isinstance(value, torch.Tensor))
        outputs = [
            (tensor, grad)
            for tensor, grad in zip(tensors, grads, strict=False)
            if grad is not None and tensor.requires_grad
        ]
        del values, tensors
        run_backward(outputs, ctx.accumulated)
        return (None, *(tensor.grad for tensor in inputs))
