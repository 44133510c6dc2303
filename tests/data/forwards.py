"""What a model may be called with, and where: batches and modes that work unwatched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Raises:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Odd(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise RuntimeError("get")


class Shapeless:
    @property
    def shape(self) -> Any:
        raise RuntimeError("shape")


class Takes(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    def forward(self, *_: Any, attention_mask: Any = None, **__: Any) -> Any:
        return torch.zeros(1) if attention_mask is None else attention_mask + 1


def nested() -> Any:
    layer = torch.nn.Linear(4, 4)
    return layer, lambda: layer(torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]))


def called_with(*args: Any, **kwargs: Any) -> Any:
    module = Takes()
    return module, lambda: module(*args, **kwargs)


def under_vmap() -> Any:
    module = Takes()
    ids, mask = torch.ones(3, 2, 4, dtype=torch.int64), torch.ones(3, 2, 4, dtype=torch.int64)
    return module, lambda: torch.vmap(lambda i, m: module(input_ids=i, attention_mask=m))(ids, mask)


def under_fake_tensors() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    module = Takes()

    def call() -> Any:
        with FakeTensorMode():
            return module(
                input_ids=torch.ones(2, 3, dtype=torch.int64), attention_mask=torch.ones(2, 3)
            )

    return module, call


def under_a_function_mode() -> Any:
    class Refuses(TorchFunctionMode):  # type: ignore[misc]  # torch is not checked here
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") in {"sum", "__get__"}:
                raise RuntimeError("only what the model does")
            return func(*args, **(kwargs or {}))

    module = Takes()
    ids = torch.ones(2, 3, dtype=torch.int64)

    def call() -> Any:
        with Refuses():
            return module(input_ids=ids, attention_mask=ids)

    return module, call


FORWARDS: dict[str, Callable[[], Any]] = {
    "nested tensors": nested,
    "a shape that raises": lambda: called_with(Shapeless()),
    "a mapping whose get raises": lambda: called_with(Odd(input_ids=torch.ones(2, 3))),
    "vmap": under_vmap,
    "fake tensors": under_fake_tensors,
    "a function mode": under_a_function_mode,
    "an object that raises": lambda: called_with(Raises()),
}
