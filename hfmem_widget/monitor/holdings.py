"""Counting the bytes of models and optimizers, each storage once, by device and by what it is for."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from hfmem_widget.session import Contents
from hfmem_widget.sources.storages import MANAGED, Storage, states_of, storages_of
from hfmem_widget.text import plain

ByDevice = dict[str, dict[str, float]]
"""Bytes by device key and `HELD` metric."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What models and optimizers hold; `probe` returns a parameter that had a gradient, or None."""

    held: ByDevice
    contents: Contents
    probe: Callable[[], Any]


class _Counter:
    def __init__(self) -> None:
        self.held: ByDevice = {}
        self.dtypes: dict[str, int] = {}
        self.parameters = self.trainable = self.tensors = 0
        self._seen: set[int] = set()
        self._places: set[tuple[int, int]] = set()

    def add(self, storages: Sequence[Storage], metric: str) -> list[tuple[str, int]]:
        """Count storages that were not counted before; return their types and sizes."""
        new = []
        for key, device, size, dtype in storages:
            if key not in self._seen:
                self._seen.add(key)
                if device != MANAGED:
                    held = self.held.setdefault(device, {})
                    held[metric] = held.get(metric, 0.0) + size
                new.append((dtype, size))
        return new

    def add_weight(self, parameter: Any) -> None:
        storages = storages_of(parameter)
        new = self.add(storages, "weights")
        # Several may lie side by side in one storage, as those of an LSTM do.
        place = (storages[0][0], _offset_of(parameter)) if storages else None
        if place is not None and place not in self._places:
            self._places.add(place)
            self.tensors += max(1, len(new))
            count = parameter.numel()
            self.parameters += count
            if parameter.requires_grad:
                self.trainable += count
            for dtype, size in new:
                self.dtypes[dtype] = self.dtypes.get(dtype, 0) + size

    def add_gradients(self, parameters: Iterable[Any]) -> Any:
        """Count the gradients of some parameters, and return a parameter that has any."""
        probe: Any = None
        for parameter in parameters:
            # Asked for the gradient of what is no leaf, torch warns the user.
            gradient = parameter.grad if parameter.is_leaf else None
            if gradient is not None:
                probe = parameter
                self.add(storages_of(gradient), "gradients")
        return probe


def count(
    modules: Sequence[Any], optimizers: Sequence[Any], elsewhere: Sequence[Any] = ()
) -> Holdings:
    """Count everything that some modules and optimizers hold.

    Those of the optimizers that step `elsewhere`, on another thread, are not asked for gradients.
    """
    counter = _Counter()
    with unnoticed():
        of_modules = [each for module in modules for each in _all_of(module, "parameters")]
        weights = {id(each): each for each in (*of_modules, *_parameters_of(optimizers))}
        for parameter in weights.values():
            counter.add_weight(parameter)
        for module in modules:
            for buffer in _all_of(module, "buffers"):
                counter.add(storages_of(buffer), "buffers")
        others = {id(parameter) for parameter in _parameters_of(elsewhere)}
        probe = counter.add_gradients(
            parameter for key, parameter in weights.items() if key not in others
        )
        states = sum(
            size
            for optimizer in optimizers
            for state in states_of(optimizer)
            for _, size in counter.add(storages_of(state), "optimizer")
        )
        contents = Contents(
            modules=_names(modules),
            optimizers=_names(optimizers),
            parameters=counter.parameters,
            trainable=counter.trainable,
            dtypes=counter.dtypes,
            tensors=counter.tensors,
            optimizer_bytes=states,
        )
        return Holdings(counter.held, contents, _found_again(probe, modules, optimizers))


def count_gradients(optimizers: Sequence[Any]) -> tuple[ByDevice, Callable[[], Any]]:
    """Count the gradients of what some optimizers optimise; also return a probe, as in `Holdings`."""
    counter = _Counter()
    with unnoticed():
        probe = counter.add_gradients(_parameters_of(optimizers))
        return counter.held, _found_again(probe, (), optimizers)


def has_gradient(parameter: Any) -> bool:
    """Return whether a parameter that a probe returned has a gradient; False of None."""
    with unnoticed():
        return getattr(parameter, "grad", None) is not None


def states_in(optimizers: Iterable[Any]) -> int:
    """Return how many parameters have states: it changes when states are made, or loaded."""
    return sum(len(optimizer.state) for optimizer in optimizers)


def _parameters_of(optimizers: Iterable[Any]) -> Iterator[Any]:
    return (
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _names(subjects: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(plain(type(subject).__name__) for subject in subjects))


def _all_of(module: Any, kind: str) -> list[Any]:
    """Return a module's parameters, buffers or modules; by torch's own method where its class' fails."""
    for owner in (type(module), sys.modules["torch"].nn.Module):
        try:
            return list(getattr(owner, kind)(module))
        except Exception:  # noqa: BLE001, S112  (one that cannot be read costs the others nothing)
            continue
    return []


def _offset_of(tensor: Any) -> int:
    try:
        return int(tensor.storage_offset())
    except Exception:  # noqa: BLE001  (sparse ones have none)
        return 0


def unnoticed() -> AbstractContextManager[object]:
    """Return what keeps our looking from function modes and subclasses of the user's own."""
    torch: Any = sys.modules.get("torch")
    return nullcontext() if torch is None else torch._C.DisableTorchFunction()  # noqa: SLF001  (nowhere else)


def _found_again(
    parameter: Any, modules: Sequence[Any], optimizers: Sequence[Any]
) -> Callable[[], Any]:
    """Return what finds a parameter by its place; torch swaps none that has a weak reference to it."""
    for optimizer in reversed(optimizers):
        for group, within in reversed(list(enumerate(optimizer.param_groups))):
            for at, each in reversed(list(enumerate(within["params"]))):
                if each is parameter:
                    return partial(_of_optimizer, weakref.ref(optimizer), group, at)
    for module in reversed(modules):
        for inner in _all_of(module, "modules"):
            for name, each in inner._parameters.items():  # noqa: SLF001  (else each is given a long name)
                if each is parameter:
                    return partial(_of_module, weakref.ref(inner), name)
    return lambda: None


def _of_module(reference: weakref.ref[Any], name: str) -> Any:
    return getattr(reference(), name, None)


def _of_optimizer(reference: weakref.ref[Any], group: int, at: int) -> Any:
    optimizer = reference()
    try:
        return None if optimizer is None else optimizer.param_groups[group]["params"][at]
    except LookupError:  # It has others now.
        return None
