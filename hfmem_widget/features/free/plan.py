"""What letting go would free: the bytes that nothing else reaches, found before anything is done."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from hfmem_widget.features.free.model import Freeable, Release
from hfmem_widget.features.free.request import ERRORS, Request, namespace_of
from hfmem_widget.sources.heap.kept import Slot, errors_kept, outputs_kept
from hfmem_widget.sources.heap.retained import Group, Reach, reach
from hfmem_widget.sources.heap.roots import Rank, cells_of, error_name, variables
from hfmem_widget.text import plain

MOST_VARIABLES = 5
MOST_TOLD = 3
_TOGETHER = "together"

Place = tuple[int, Any]


def planned(request: Request, shell: Any) -> Release:
    """Return what a request would free; nothing is done, and nothing is kept.

    Where nothing was named the variables that keep most are told as well.
    """
    began = time.perf_counter()
    found = _searched(request, shell)
    items = tuple(
        Freeable(name, _told(found, name), found.alone["item", name]) for name in request.items
    )
    names = [name[1] for name in found.alone if isinstance(name, tuple) and name[0] == "variable"]
    keeping = [Freeable(plain(name), (), found.alone["variable", name]) for name in names]
    keeping = [one for one in keeping if one.total]
    return Release(
        items,
        together=found.alone[_TOGETHER],
        variables=tuple(sorted(keeping, key=lambda one: -one.total)[:MOST_VARIABLES]),
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
        for part, values in _parts(name, slots, cells).items():
            groups.append(Group(("part", name, part), values, within=("item", name)))
    named = {_place(slot) for slots in request.items.values() for slot in slots}
    staying = [
        slot.value()
        for slot in (*errors_kept(shell), *outputs_kept(shell))
        if _place(slot) not in named
    ]
    for name, value in _variables(shell, named):
        if request.is_named:
            staying.append(value)
        else:
            groups.append(Group(("variable", name), (value,)))
    return reach(groups, staying)


def _parts(name: str, slots: Sequence[Slot], cells: Mapping[str, int]) -> dict[Hashable, list[Any]]:
    """Return a name's objects by what a person calls them; the copies of one together."""
    parts: dict[Hashable, list[Any]] = {}
    first_name: dict[int, str] = {}
    for slot in slots:
        value = slot.value()
        called = first_name.setdefault(id(value), slot.name)
        if name == ERRORS:
            called = error_name(value, cells) or called
        parts.setdefault(called, []).append(value)
    return parts


def _place(slot: Slot) -> Place:
    return id(slot.fields), slot.key


def _variables(shell: Any, named: set[Place]) -> Iterator[tuple[str, Any]]:
    """Yield the variables that were not named; the outputs among them are told apart elsewhere."""
    namespace = namespace_of(shell)
    outputs = {_place(slot) for slot in outputs_kept(shell)}
    for root in variables(namespace):
        place = id(namespace), root.name
        if root.rank is not Rank.OUTPUT and place not in named and place not in outputs:
            yield root.name, root.value


def _told(found: Reach, name: str) -> tuple[str, ...]:
    """Return what an item consists of: what keeps bytes, most first; empty for a variable."""
    sizes = {
        key[2]: sum(alone.values())
        for key, alone in found.alone.items()
        if isinstance(key, tuple) and key[:2] == ("part", name)
    }
    by_size = sorted(sizes, key=lambda one: -sizes[one])
    keeping = [one for one in by_size if sizes[one]]
    # Of several that keep the same together, none keeps it alone.
    told = keeping or (by_size if found.alone["item", name] else [])
    return tuple(plain(one) for one in told if one != name)
