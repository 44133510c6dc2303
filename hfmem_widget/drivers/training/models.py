"""The models that an optimizer trains: the outermost modules that have its parameters."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hfmem_widget.monitor.process import Part, process_state

SHARE = 0.02
"""Of the time: what looking through the heap may take. A process that trains has half a million objects
there, which take 0.1 s."""

MOST_SEEN = 8


@dataclass(slots=True)
class _Seen(Part):
    # The modules that were asked for their parameters, or to clear their gradients, the newest last.
    modules: list[weakref.ref[Any]] = field(default_factory=list)
    next_search: float = 0.0


def note_module(owner: object) -> None:
    """Remember a module, weakly: an optimizer is mostly made of the parameters of what is trained."""
    nn = sys.modules.get("torch.nn")
    if nn is None or not issubclass(type(owner), nn.Module):
        return
    modules = process_state(_Seen).modules
    if not any(module() is owner for module in modules):
        modules.append(weakref.ref(owner))
        del modules[:-MOST_SEEN]


def trained_by(optimizer: Any, others: Iterable[Any]) -> list[Any]:
    """Return the outermost of the modules seen lately, and of others, that an optimizer trains."""
    wanted = _parameters_of(optimizer)
    seen = (module() for module in process_state(_Seen).modules)
    modules = {id(module): module for module in (*others, *seen) if module is not None}
    return _outermost([m for m in modules.values() if not wanted.isdisjoint(_within(m))])


def searched_for(optimizer: Any) -> list[Any] | None:
    """Return the outermost modules there are that an optimizer trains; None where we have just looked."""
    torch: Any = sys.modules.get("torch")
    seen, began = process_state(_Seen), time.perf_counter()
    if torch is None or began < seen.next_search:
        return None
    kind, wanted = torch.nn.Module, _parameters_of(optimizer)
    modules = [module for module in gc.get_objects() if issubclass(type(module), kind)]
    owners = {id(module) for module in modules if not wanted.isdisjoint(map(id, _own(module)))}
    above: dict[int, list[Any]] = {}
    for module in modules:
        for child in children_of(module):
            above.setdefault(id(child), []).append(module)
    waiting, reached = [module for module in modules if id(module) in owners], dict[int, Any]()
    while waiting:
        module = waiting.pop()
        if id(module) not in reached:
            reached[id(module)] = module
            waiting += above.get(id(module), ())
    seen.next_search = time.perf_counter() + (time.perf_counter() - began) / SHARE
    return [module for module in reached.values() if id(module) not in above]


def children_of(module: Any) -> list[Any]:
    """Return the modules within a module, one level down."""
    return [child for child in vars(module).get("_modules", {}).values() if child is not None]


def _own(module: Any) -> list[Any]:
    return list(vars(module).get("_parameters", {}).values())


def _within(module: Any) -> Iterator[int]:
    return (id(parameter) for inner in module.modules() for parameter in _own(inner))


def _outermost(modules: list[Any]) -> list[Any]:
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]


def _parameters_of(optimizer: Any) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
