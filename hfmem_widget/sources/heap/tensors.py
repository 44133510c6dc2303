"""The referents of tensors, graphs, models and optimizers, read from PyTorch without running a hook."""

# ruff: noqa: SLF001  (subclasses may override the public names)

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from types import GetSetDescriptorType
from typing import Any

from hfmem_widget.sources.heap.model import ATOMS, GRAPH, Held, Kind
from hfmem_widget.sources.heap.referents import fields_of, kept_fields

PARTS_OF_MODULE = frozenset({"_parameters", "_buffers", "_modules"})


def unnoticed() -> AbstractContextManager[object]:
    """Return a context in which reading a tensor's attributes runs no ``__torch_function__``."""
    disable = type_in("torch", "_C.DisableTorchFunction")
    return nullcontext() if disable is None else disable()


def kinds() -> tuple[Any, ...]:
    """Return the types of tensors, modules and optimizers, for `issubclass`; () for each before torch is."""
    types = [type_in("torch", name) for name in ("Tensor", "nn.Module", "optim.Optimizer")]
    return tuple(types) if all(types) else ((), (), ())


def type_in(library: str, path: str) -> type | None:
    """Return a class of an imported library; None if the library is not imported or has no such class."""
    value: Any = sys.modules.get(library)
    for name in path.split("."):
        # Not `getattr` on the module: its `__getattr__` may raise anything for an unknown name.
        value = getattr(value, "__dict__", {}).get(name)
    return value if isinstance(value, type) else None


def in_tensor(tensor: Any) -> Iterator[Held]:
    """Yield a tensor's gradient, its graph, its hooks and its attributes."""
    gradient = gradient_of(tensor)
    if gradient is not None:
        yield ".grad", gradient
    base: Any = sys.modules["torch"]._C.TensorBase
    try:
        node = base.grad_fn.__get__(tensor)
    except Exception:  # noqa: BLE001  (torch raises for a view whose base was changed)
        node = None
    if node is not None:
        yield GRAPH, node
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        getter = getattr(base, name, None)
        hooks = None if getter is None else getter.__get__(tensor)
        if hooks is not None:
            yield f".{name}", hooks
    yield from kept_fields(tensor)


def gradient_of(tensor: Any) -> Any:
    """Return a tensor's gradient or None, without torch's warning about tensors that are not leaves."""
    base: Any = sys.modules["torch"]._C.TensorBase
    with suppress(Exception):  # an odd tensor has none
        if base.is_leaf.__get__(tensor) or base.retains_grad.__get__(tensor):
            return base.grad.__get__(tensor)
    return None


def is_node(kind: type) -> bool:
    """Return whether a type is that of an autograd graph's nodes, whichever class PyTorch made for them."""
    return any(
        type(vars(base).get("next_functions")) is GetSetDescriptorType for base in kind.__mro__
    )


def in_node(node: Any) -> Iterator[Any]:
    """Yield a node's next nodes, and the tensors it saved for the backward pass, still packed."""
    for below, _ in node.next_functions:
        if below is not None:
            yield below
    for kind in type(node).__mro__:
        for name, getter in list(vars(kind).items()):
            if type(getter) is not GetSetDescriptorType:
                continue
            if name == "variable" and type(node).__name__ == "AccumulateGrad":
                yield getter.__get__(node)
            elif name.startswith("_raw_saved_"):
                try:
                    saved = getter.__get__(node)
                except RuntimeError:  # freed by a backward pass
                    continue
                yield from saved if type(saved) is tuple else (saved,)
    yield from fields_of(node).values()


def in_saved(saved: Any) -> Iterator[Any]:
    """Yield the saved tensor, or what a hook packed it into, and the hook; `unpack` would run a hook."""
    for name in ("data", "unpack_hook"):
        with suppress(Exception):  # a value that cannot be read stays unexplained
            held = getattr(saved, name, None)
            if type(held) not in ATOMS:
                yield held


def modules_in(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield a model's modules, the model first, each once, with their paths such as ``.layers[0].mlp``."""
    seen = {id(root)}
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        yield path, module
        inner = fields_of(module).get("_modules")
        for name, child in reversed(list(dict.items(inner))) if isinstance(inner, dict) else ():
            if child is not None and id(child) not in seen and type(name) is str:
                seen.add(id(child))
                waiting.append((path + (f"[{name}]" if name.isdecimal() else f".{name}"), child))


def own_tensors(module: Any) -> Iterator[tuple[Kind, str, Any]]:
    """Yield one module's parameters and buffers, without those of the modules within it."""
    kind: Kind
    for kind, name in (("weights", "_parameters"), ("buffers", "_buffers")):
        own = fields_of(module).get(name)
        for key, tensor in list(dict.items(own)) if isinstance(own, dict) else ():
            yield kind, f".{key}", tensor


def states_in(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield an optimizer's states with their names, such as ``exp_avg``."""
    states = fields_of(optimizer).get("state")
    for state in list(dict.values(states)) if isinstance(states, dict) else ():
        for name, held in list(dict.items(state)) if isinstance(state, dict) else ():
            if type(held) not in ATOMS:
                yield str(name) if type(name) in ATOMS else "\u2026", held
