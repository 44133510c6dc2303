"""What a request would free: the bytes that nothing else reaches, found before anything is done."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

from hfmem_widget.features.free.model import Freeable, Release
from hfmem_widget.features.free.request import ERRORS, Request, namespace_of
from hfmem_widget.sources.heap.kept import Slot, errors_kept, outputs_kept
from hfmem_widget.sources.heap.retained import Group, Reach, reach
from hfmem_widget.sources.heap.roots import Rank, cells_of, error_name, variables
from hfmem_widget.text import plain

MOST_VARIABLES = 5
_TOGETHER = "together"

Place = tuple[int, Any]


def planned(request: Request, shell: Any) -> Release:
    """Return what a request would free; nothing is done, and nothing is kept.

    If nothing was named, this has the variables that hold most as well.
    """
    began = time.perf_counter()
    found = _searched(request, shell)
    items = tuple(
        Freeable(name, _parts_of(found, name), found.alone["item", name]) for name in request.items
    )
    names = [name[1] for name in found.alone if isinstance(name, tuple) and name[0] == "variable"]
    holding = [Freeable(plain(name), (), found.alone["variable", name]) for name in names]
    holding = [variable for variable in holding if variable.total]
    return Release(
        items,
        together=found.alone[_TOGETHER],
        variables=tuple(sorted(holding, key=lambda variable: -variable.total)[:MOST_VARIABLES]),
        seconds=time.perf_counter() - began,
        objects=found.objects,
        bound=found.bound,
    )


def _searched(request: Request, shell: Any) -> Reach:
    """Search from everything there is; what it holds on to meanwhile goes with its frame."""
    cells = cells_of(shell)
    groups = [Group(_TOGETHER)]
    for name, slots in request.items.items():
        groups.append(Group(("item", name), within=_TOGETHER))
        # A name's objects by what a person calls them; the copies of one together.
        parts: dict[Hashable, list[Any]] = {}
        first_name: dict[int, str] = {}
        for slot in slots:
            value = slot.value()
            called = first_name.setdefault(id(value), slot.name)
            if name == ERRORS:
                called = error_name(value, cells) or called
            parts.setdefault(called, []).append(value)
        for part, values in parts.items():
            groups.append(Group(("part", name, part), values, within=("item", name)))
    named = {_place(slot) for slots in request.items.values() for slot in slots}
    kept = (*errors_kept(shell), *outputs_kept(shell))
    staying = [slot.value() for slot in kept if _place(slot) not in named]
    # The outputs among the variables are groups of their own, or stay.
    apart = named | {_place(slot) for slot in outputs_kept(shell)}
    namespace = namespace_of(shell)
    for root in variables(namespace):
        if root.rank is Rank.OUTPUT or (id(namespace), root.name) in apart:
            continue
        if request.is_named:
            staying.append(root.value)
        else:
            groups.append(Group(("variable", root.name), (root.value,)))
    return reach(groups, staying)


def _place(slot: Slot) -> Place:
    return id(slot.fields), slot.key


def _parts_of(found: Reach, name: str) -> tuple[str, ...]:
    """Return what an item consists of: what holds bytes, most first; empty for a variable."""
    sizes = {
        key[2]: sum(alone.values())
        for key, alone in found.alone.items()
        if isinstance(key, tuple) and key[:2] == ("part", name)
    }
    by_size = sorted(sizes, key=lambda part: -sizes[part])
    holding = [part for part in by_size if sizes[part]]
    # If several hold the same together, none holds it alone.
    parts = holding or (by_size if found.alone["item", name] else [])
    return tuple(plain(part) for part in parts if part != name)
