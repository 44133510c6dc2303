"""The models that an optimizer trains: the outermost modules that have its parameters."""

import gc
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hfmem_widget.monitor.process import Part, process_state

SHARE = 0.02
"""The share of the time that searching the heap may take: half a million objects take 0.1 s."""

MOST_SEEN = 8


@dataclass(slots=True)
class _Seen(Part):
    # The modules whose parameters or gradients were accessed last, the newest last.
    modules: list[weakref.ref[Any]] = field(default_factory=list)
    next_search: float = 0.0


def note_module(owner: object) -> None:
    """Keep a weak reference to a module: most optimizers get the parameters of the module that is trained."""
    nn = sys.modules.get("torch.nn")
    if nn is None or not issubclass(type(owner), nn.Module):
        return
    modules = process_state(_Seen).modules
    if not any(module() is owner for module in modules):
        modules.append(weakref.ref(owner))
        del modules[:-MOST_SEEN]


def trained_by(optimizer: Any, others: Iterable[Any]) -> list[Any]:
    """Return the outermost modules that an optimizer trains, of those noted lately and of `others`."""
    wanted = _parameters_of(optimizer)
    recent = (module() for module in process_state(_Seen).modules)
    modules = {id(module): module for module in (*others, *recent) if module is not None}
    trained = [module for module in modules.values() if not wanted.isdisjoint(_within(module))]
    inner = {id(child) for module in trained for child in module.modules() if child is not module}
    return [module for module in trained if id(module) not in inner]


def searched_for(optimizer: Any) -> list[Any] | None:
    """Return the outermost modules on the heap that an optimizer trains; None soon after another search."""
    torch: Any = sys.modules.get("torch")
    state, began = process_state(_Seen), time.perf_counter()
    if torch is None or began < state.next_search:
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
    state.next_search = time.perf_counter() + (time.perf_counter() - began) / SHARE
    return [module for module in reached.values() if id(module) not in above]


def children_of(module: Any) -> list[Any]:
    """Return the modules within a module, one level down."""
    return [child for child in vars(module).get("_modules", {}).values() if child is not None]


def _own(module: Any) -> list[Any]:
    return list(vars(module).get("_parameters", {}).values())


def _within(module: Any) -> Iterator[int]:
    return (id(parameter) for inner in module.modules() for parameter in _own(inner))


def _parameters_of(optimizer: Any) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
