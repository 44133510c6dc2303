"""The models that an optimizer trains: the outermost modules that have its parameters."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hfmem_widget.monitor.process import process_state

SHARE = 0.02
"""Of the time: what looking through the heap may take. A process that trains has half a million objects
there, which take 0.1 s."""

MOST_SEEN = 8


@dataclass
class _Seen:
    # The modules that were asked for their parameters, or to clear their gradients, the newest last.
    modules: list[weakref.ref[Any]] = field(default_factory=list)
    next_search: float = 0.0


def saw(owner: object) -> None:
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
    seen = (reference() for reference in process_state(_Seen).modules)
    known = {id(one): one for one in (*others, *seen) if one is not None}
    return _outermost([one for one in known.values() if not wanted.isdisjoint(_within(one))])


def searched_for(optimizer: Any) -> list[Any] | None:
    """Return the outermost modules there are that an optimizer trains; None where we have just looked."""
    torch: Any = sys.modules.get("torch")
    seen, began = process_state(_Seen), time.perf_counter()
    if torch is None or began < seen.next_search:
        return None
    kind, wanted = torch.nn.Module, _parameters_of(optimizer)
    found = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    owners = {id(one) for one in found if not wanted.isdisjoint(map(id, _own(one)))}
    above: dict[int, list[Any]] = {}
    for one in found:
        for child in children_of(one):
            above.setdefault(id(child), []).append(one)
    waiting, reached = [one for one in found if id(one) in owners], dict[int, Any]()
    while waiting:
        one = waiting.pop()
        if id(one) not in reached:
            reached[id(one)] = one
            waiting += above.get(id(one), ())
    seen.next_search = time.perf_counter() + (time.perf_counter() - began) / SHARE
    return [one for one in reached.values() if id(one) not in above]


def children_of(module: Any) -> list[Any]:
    """Return the modules within a module, one level down."""
    return [child for child in vars(module).get("_modules", {}).values() if child is not None]


def _own(module: Any) -> list[Any]:
    return list(vars(module).get("_parameters", {}).values())


def _within(module: Any) -> Iterator[int]:
    return (id(parameter) for inner in module.modules() for parameter in _own(inner))


def _outermost(modules: list[Any]) -> list[Any]:
    inner = {id(each) for one in modules for each in one.modules() if each is not one}
    return [one for one in modules if id(one) not in inner]


def _parameters_of(optimizer: Any) -> set[int]:
    return {id(one) for group in optimizer.param_groups for one in group["params"]}
