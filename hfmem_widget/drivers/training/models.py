"""The models that an optimizer trains: the outermost modules that have its parameters."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

SHARE = 0.02
"""Of the time: what looking through the heap may take. A process that trains has half a million objects
there, which take 0.1 s."""

MOST_SEEN = 8

_seen: list[weakref.ref[Any]] = []
"""The modules that were asked for their parameters, or to clear their gradients, the newest last."""

_next_search = 0.0


def saw(owner: object) -> None:
    """Remember a module, weakly: an optimizer is mostly made of the parameters of what is trained."""
    module = sys.modules.get("torch.nn")
    if module is None or not issubclass(type(owner), module.Module):
        return
    if not any(known() is owner for known in _seen):
        _seen.append(weakref.ref(owner))
        del _seen[:-MOST_SEEN]


def trained_by(optimizer: Any, others: Iterable[Any]) -> list[Any]:
    """Return the outermost of the modules seen lately, and of others, that an optimizer trains."""
    wanted = _parameters_of(optimizer)
    known = {
        id(one): one for one in (*others, *(reference() for reference in _seen)) if one is not None
    }
    return _outermost([one for one in known.values() if not wanted.isdisjoint(_within(one))])


def searched_for(optimizer: Any) -> list[Any] | None:
    """Return the outermost modules there are that an optimizer trains; None where we have just looked."""
    global _next_search  # noqa: PLW0603  (a process has one heap)
    torch: Any = sys.modules.get("torch")
    began = time.perf_counter()
    if torch is None or began < _next_search:
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
    _next_search = time.perf_counter() + (time.perf_counter() - began) / SHARE
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
