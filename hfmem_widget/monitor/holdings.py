"""Counting the bytes of models and optimizers, each storage once, by device and by what it is for."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from hfmem_widget.session import Contents
from hfmem_widget.sources import libraries
from hfmem_widget.sources.heap.tensors import unnoticed
from hfmem_widget.sources.storages import HQQ, MANAGED, Storage, scales_of, states_of, storages_of
from hfmem_widget.text import plain

ByDevice = dict[str, dict[str, float]]
"""Bytes by device key and `HELD` metric."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What models and optimizers hold, and libraries for them.

    The `probe` returns a parameter that had a gradient, or None. The `buckets`, in bytes by device, are held
    whether or not there are gradients, which are views of them.
    """

    held: ByDevice
    contents: Contents
    probe: Callable[[], Any]
    buckets: dict[str, float]


class _Counter:
    def __init__(self) -> None:
        self.held: ByDevice = {}
        self.dtypes: Counter[str] = Counter()
        self.parameters = self.trainable = self.tensors = 0
        self.owners: Counter[str] = Counter()
        self._seen: set[int] = set()
        self._gathered: set[int] = set()
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

    def add_buffer(self, owner: str, device: str, size: int) -> None:
        """Count a buffer of a library's."""
        if size > 0:
            held = self.held.setdefault(device, {})
            held["libraries"] = held.get("libraries", 0.0) + size
            self.owners[owner] += size

    def add_gathered(self, owner: str, storages: Sequence[Storage]) -> None:
        """Count buffers that a library has gathered from shards; weights may be views of them."""
        for key, device, size, _ in storages:
            if key not in self._seen:
                self._seen.add(key)
                self._gathered.add(key)
                self.add_buffer(owner, device, size)

    def add_weight(self, parameter: Any) -> None:
        storages = storages_of(parameter)
        if storages and storages[0][0] in self._gathered:
            return
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
                self.dtypes[dtype] += size

    def add_scales(self, scales: Any) -> None:
        """Count the tensors that dequantise a weight, such as scales, which are not parameters."""
        for dtype, size in self.add(storages_of(scales), "weights"):
            self.dtypes[dtype] += size

    def add_gradients(self, parameters: Iterable[Any]) -> Any:
        """Count the gradients of some parameters, and return a parameter that has any."""
        probe: Any = None
        for parameter in parameters:
            # torch warns the user if it is asked for the gradient of a tensor that is not a leaf.
            gradient = parameter.grad if parameter.is_leaf else None
            if gradient is not None:
                probe = parameter
                self.add(storages_of(gradient), "gradients")
        return probe


def count(
    modules: Sequence[Any],
    optimizers: Sequence[Any],
    elsewhere: Sequence[Any] = (),
    first_buckets: libraries.FirstBuckets | None = None,
) -> Holdings:
    """Count everything that some modules and optimizers hold.

    Gradients of optimizers that step `elsewhere`, on another thread, are not read. New buckets are added to
    `first_buckets`, whose bytes change too often to be among the holdings.
    """
    counter = _Counter()
    with unnoticed():
        # First: a parameter that FSDP has gathered for now is a view of a buffer.
        gathered, shards = libraries.sharded_in(modules)
        for owner, storages in gathered:
            counter.add_gathered(owner, storages)
        of_modules = [weight for module in modules for weight in _all_of(module, "parameters")]
        of_modules += shards
        weights = {id(weight): weight for weight in (*of_modules, *_parameters_of(optimizers))}
        for parameter in weights.values():
            counter.add_weight(parameter)
        if HQQ in sys.modules:
            layers = (layer for module in modules for layer in _all_of(module, "modules"))
            for scales in chain.from_iterable(map(scales_of, layers)):
                counter.add_scales(scales)
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
        buckets = _count_buckets(counter, modules, first_buckets)
        workspaces = libraries.workspaces(sys.modules.get("torch"))
        if workspaces is not None:
            counter.add_buffer(libraries.WORKSPACES, *workspaces)
        contents = Contents(
            modules=_names(modules),
            optimizers=_names(optimizers),
            parameters=counter.parameters,
            trainable=counter.trainable,
            dtypes=dict(counter.dtypes),
            tensors=counter.tensors,
            optimizer_bytes=states,
            libraries=dict(counter.owners),
        )
        probe = _found_again(probe, modules, optimizers)
        return Holdings(counter.held, contents, probe, buckets)


def _count_buckets(
    counter: _Counter, modules: Sequence[Any], first: libraries.FirstBuckets | None
) -> dict[str, float]:
    """Count the buckets that are DDP's alone; return the bytes by device of those gradients may share."""
    shared: dict[str, float] = {}
    for device, size, is_shared in libraries.buckets_of(modules):
        if is_shared:
            shared[device] = shared.get(device, 0.0) + size
            counter.owners[libraries.SHARED_BUCKETS] += size
        else:
            counter.add_buffer(libraries.BUCKETS, device, size)
    if first is not None:
        first.see(modules)
        if left := sum(first.left().values()):
            counter.owners[libraries.FIRST_BUCKETS] += left
    return shared


def count_gradients(optimizers: Sequence[Any]) -> tuple[ByDevice, Callable[[], Any]]:
    """Count the gradients of what some optimizers optimise; also return a probe, as in `Holdings`."""
    counter = _Counter()
    with unnoticed():
        probe = counter.add_gradients(_parameters_of(optimizers))
        return counter.held, _found_again(probe, (), optimizers)


def states_in(optimizers: Iterable[Any]) -> int:
    """Return how many states there are: it changes when some are made, or loaded."""
    # Some optimizers make the place of a parameter's states before these.
    return sum(
        1 + (len(states) if isinstance(states, Mapping) else 0)
        for optimizer in optimizers
        for states in list(optimizer.state.values())
    )


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
        # One that cannot be read costs the others nothing.
        with suppress(Exception):
            return list(getattr(owner, kind)(module))
    return []


def _offset_of(tensor: Any) -> int:
    try:
        return int(tensor.storage_offset())
    except Exception:  # noqa: BLE001  (sparse ones have none)
        return 0


def _found_again(
    parameter: Any, modules: Sequence[Any], optimizers: Sequence[Any]
) -> Callable[[], Any]:
    """Return a function that finds a parameter by its place; torch cannot swap one with a weak reference."""
    for optimizer in reversed(optimizers):
        for group, within in reversed(list(enumerate(optimizer.param_groups))):
            for at, candidate in reversed(list(enumerate(within["params"]))):
                if candidate is parameter:
                    return partial(_of_optimizer, weakref.ref(optimizer), group, at)
    for module in reversed(modules):
        for inner in _all_of(module, "modules"):
            for name, candidate in inner._parameters.items():  # noqa: SLF001  (else each is given a long name)
                if candidate is parameter:
                    owner = weakref.ref(inner)
                    return lambda: getattr(owner(), name, None)
    return lambda: None


def _of_optimizer(reference: weakref.ref[Any], group: int, at: int) -> Any:
    optimizer = reference()
    try:
        return None if optimizer is None else optimizer.param_groups[group]["params"][at]
    except LookupError:  # It has others now.
        return None
