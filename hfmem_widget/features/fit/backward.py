"""A backward pass that does not run autograd's engine, and checkpointing within it.

On a machine with GPUs the engine's first run starts a thread for each of them: CUDA is asked how many there
are, and from then on no forked child can train. A graph on the meta device needs none of that. Here its nodes
are called one after the other, latest first, as the engine does. Each is dropped when it is done, which frees
what it had saved.

PyTorch's own checkpointing works as it is, where it keeps no state of random numbers. Its older, reentrant
way runs the engine: the one here in its place does not, and keeps the same tensors for the same time.
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
"""Takes a tensor whose gradient has just been set or added to."""


def run_backward(
    outputs: list[tuple[torch.Tensor, torch.Tensor | None]],
    accumulated: Accumulated = lambda _: None,
) -> None:
    """Give every leaf that the outputs depend on its gradient, and call `accumulated` with each.

    The outputs, with their gradients or None, are emptied, so that nothing here keeps the graph; nor should
    the caller.
    """
    walk = _Walk(accumulated)
    while outputs:
        output, grad = outputs.pop()
        if output.grad_fn is not None:
            walk.begin(output, torch.ones_like(output) if grad is None else grad)
        del output, grad
    with torch.no_grad(), as_if_in_the_engine():
        walk.run()


class _Walk:
    def __init__(self, accumulated: Accumulated) -> None:
        self._accumulated = accumulated
        self._awaited: dict[Any, int] = {}
        self._grads: dict[Any, dict[int, torch.Tensor]] = {}
        self._holders: Counter[int] = Counter()  # by identity: nodes that await the same tensor
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
        self._count()
        ready: list[tuple[int, int, Any]] = []
        tickets = count()  # no two entries are alike, so nodes are never compared
        for node in self._roots:
            if not self._awaited[node]:
                heapq.heappush(ready, (_order(node), next(tickets), node))
        self._roots.clear()
        while ready:
            node = heapq.heappop(ready)[2]
            del self._awaited[node]
            edges, made = self._call(node)
            self._owners.pop(node, None)
            del node  # and with it what it had saved, before gradients are added up
            for at, (following, number) in enumerate(edges):
                if following is None:
                    continue
                if at < len(made) and made[at] is not None:
                    self._give(following, number, made[at])
                    made[at] = None
                self._awaited[following] -= 1
                if not self._awaited[following]:
                    heapq.heappush(ready, (_order(following), next(tickets), following))

    def _keep(self, node: Any, owner: Any) -> None:
        """Keep the owner of a node written in Python: before torch 2.13 the node's object did not."""
        if isinstance(node, BackwardCFunction):
            self._owners[node] = owner

    def _count(self) -> None:
        """Count how many others each node has to wait for."""
        waiting, seen = list(dict.fromkeys(self._roots)), set(self._roots)
        while waiting:
            for following, _ in waiting.pop().next_functions:
                if following is None:
                    continue
                self._awaited[following] = self._awaited.get(following, 0) + 1
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)

    def _call(self, node: Any) -> tuple[Sequence[Any], list[torch.Tensor | None]]:
        """Call a node, and return its edges with what it makes for each of them, as that is awaited there."""
        given = self._grads.pop(node, {})
        if hasattr(node, "variable"):
            while given:
                self._accumulate(node.variable, given.popitem()[1])
            return (), []
        expected = _expected(node)
        # A function written in Python takes at least the gradients it is given.
        inputs = max(given, default=-1) + 1 if expected is None else len(expected)
        grads = [given.get(at) for at in range(inputs)]
        given.clear()
        results = node.apply(*grads) if isinstance(node, BackwardCFunction) else node(*grads)
        made = list(results) if isinstance(results, tuple) else [results]
        del results
        edges = node.next_functions
        if len(made) > len(edges):
            # Inputs of a function that are not tensors have no edge, and get no gradient.
            made = [grad for grad in made if grad is not None] or made
        for at, (following, number) in enumerate(edges):
            self._keep(following, node)
            if at < len(made) and made[at] is not None:
                if following is None:
                    made[at] = None
                    continue
                made[at] = _as_expected(following, number, made[at])
                self._holders[id(made[at])] += 1
        # The engine keeps what came in until all that comes out has its shape and type.
        while grads:
            self._let_go(grads.pop())
        return edges, made

    def _give(self, node: Any, at: int, grad: torch.Tensor) -> None:
        """Add a gradient to what a node awaits: in place where nothing else has that memory."""
        held = self._grads.setdefault(node, {})
        before = held.get(at)
        if before is None:
            held[at] = grad
            return
        if self._is_alone(before) and _is_dense(before):
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


# torch 2.6 has it only where it was built for CUDA; without it nothing is added in place.
_users = getattr(torch._C, "_storage_Use_Count", lambda _storage: _ITS_OWN + 1)  # noqa: SLF001
_ITS_OWN = 2
"""Users of a storage that one tensor has: that tensor, and the object in Python."""


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements lie side by side, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _is_laid_out_alike(grad: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Return whether a gradient may be kept as it is; else the engine makes a copy."""
    sizes = zip(grad.stride(), leaf.stride(), leaf.shape, strict=True)
    return all(own == other for own, other, size in sizes if size != 1)


def _order(node: Any) -> int:
    """Return the rank of a node: first gradients to keep, then what was computed last."""
    return -(2**63) if hasattr(node, "variable") else -int(node._sequence_nr())  # noqa: SLF001  (graph's order)


def _expected(node: Any) -> Any:
    """Return what the engine validates gradients against, if the node has it."""
    try:
        return node._input_metadata  # noqa: SLF001  (shapes and types of a node are nowhere public)
    except RuntimeError:  # before torch 2.13, those written in Python
        return None


def _as_expected(node: Any, at: int, grad: torch.Tensor) -> torch.Tensor:
    """Sum what was broadcast, and cast what was promoted, as the engine does between nodes."""
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
    """Have a transformers model compute its layers again in `run_backward`, or raise OptionError.

    Where some are switched on already, these alone: transformers can do so with every second one.
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
    """Return PyTorch's checkpointing, with all but tensors kept in a list alone.

    A cache among a layer's arguments may hold the node that holds these: a circle that nobody collects. With
    `reentrant`, which is called with each gradient, it is PyTorch's older checkpointing.
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
    """Return whether a layer is, or would be, checkpointed in the older way."""
    chosen = getattr(getattr(layer, "_gradient_checkpointing_func", None), "keywords", {})
    version: str = sys.modules["transformers"].__version__
    return bool(chosen.get("use_reentrant", int(version.partition(".")[0]) < 5))


@contextmanager
def as_if_in_the_engine() -> Iterator[None]:
    """Have a checkpoint compute its layer once for all that was saved, as in the engine's backward pass."""
    task, thread = torch._C._current_graph_task_id, threading.get_ident()  # noqa: SLF001  (asked by torch's checkpoint)

    def own_task() -> int:
        number: int = task()
        return OWN_TASK if number == -1 and threading.get_ident() == thread else number

    torch._C._current_graph_task_id = own_task  # noqa: SLF001
    try:
        yield
    finally:
        torch._C._current_graph_task_id = task  # noqa: SLF001


OWN_TASK = 1 << 30  # the engine's count from 0


def is_checkpointed(model: Any) -> bool:
    """Return whether any layer of a model has checkpointing switched on."""
    return any(getattr(module, _SWITCH, False) for module in model.modules())


def _reentrant(
    accumulated: Accumulated, run: Callable[..., Any], tensors: Sequence[torch.Tensor]
) -> Any:
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
