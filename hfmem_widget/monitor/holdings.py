"""Counting the bytes of models and optimizers, each storage once, by device and by what it is for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hfmem_widget.labels import plain
from hfmem_widget.session import Contents
from hfmem_widget.sources.storages import MANAGED, states_of, storages_of

ByDevice = dict[str, dict[str, float]]
"""Bytes by device key and `HELD` metric."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What models and optimizers hold.

    Attributes
    ----------
    held : dict
        Bytes by device key, then by metric.
    contents : Contents
    probe : callable
        Returns a parameter that had a gradient, or None.
    """

    held: ByDevice
    contents: Contents
    probe: Callable[[], Any]


@dataclass(slots=True)
class _Counter:
    held: ByDevice = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    dtypes: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    trainable: int = 0
    tensors: int = 0

    def add(self, tensor: Any, metric: str) -> list[tuple[str, int]]:
        """Count what of a tensor was not counted before; return the types and sizes of that."""
        new = []
        for key, device, size, dtype in storages_of(tensor):
            if key not in self.seen:
                self.seen.add(key)
                if device != MANAGED:
                    held = self.held.setdefault(device, {})
                    held[metric] = held.get(metric, 0.0) + size
                new.append((dtype, size))
        return new

    def add_weight(self, parameter: Any) -> None:
        new = self.add(parameter, "weights")
        if new:
            self.tensors += len(new)
            count = parameter.numel()
            self.parameters += count
            if parameter.requires_grad:
                self.trainable += count
            for dtype, size in new:
                self.dtypes[dtype] = self.dtypes.get(dtype, 0) + size


def count(modules: Sequence[Any], optimizers: Sequence[Any]) -> Holdings:
    """Count everything.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
    optimizers : sequence of torch.optim.Optimizer
    """
    counter = _Counter()
    weights = {
        id(one): one
        for one in (
            *(one for module in modules for one in module.parameters()),
            *_parameters_of(optimizers),
        )
    }
    for parameter in weights.values():
        counter.add_weight(parameter)
    for module in modules:
        for buffer in module.buffers():
            counter.add(buffer, "buffers")
    probe = _add_gradients(counter, weights.values())
    states = sum(
        size
        for optimizer in optimizers
        for state in states_of(optimizer)
        for _, size in counter.add(state, "optimizer")
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
    return Holdings(counter.held, contents, _weakly(probe))


def count_gradients(optimizers: Sequence[Any]) -> tuple[ByDevice, Callable[[], Any]]:
    """Count the gradients of what some optimizers optimise; also return a probe, as in `Holdings`."""
    counter = _Counter()
    probe = _add_gradients(counter, _parameters_of(optimizers))
    return counter.held, _weakly(probe)


def states_in(optimizers: Iterable[Any]) -> int:
    """Return how many parameters have states: it changes when states are made, or loaded."""
    return sum(len(optimizer.state) for optimizer in optimizers)


def _add_gradients(counter: _Counter, parameters: Iterable[Any]) -> Any:
    """Count the gradients of some parameters, and return one that has any."""
    probe: Any = None
    for parameter in parameters:
        # Asked for the gradient of what is no leaf, torch warns the user.
        gradient = parameter.grad if parameter.is_leaf else None
        if gradient is not None:
            probe = parameter
            counter.add(gradient, "gradients")
    return probe


def _parameters_of(optimizers: Iterable[Any]) -> Iterator[Any]:
    return (
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _names(subjects: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(plain(type(one).__name__) for one in subjects))


def _weakly(parameter: Any) -> Callable[[], Any]:
    return weakref.ref(parameter) if parameter is not None else lambda: None
