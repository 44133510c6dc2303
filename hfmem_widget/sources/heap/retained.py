"""What each of several names keeps alone: the bytes that would be free if it were gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from hfmem_widget.sources.heap import tensors
from hfmem_widget.sources.heap.bounds import MOST_OBJECTS, MOST_SECONDS, Bounds, SearchEnded
from hfmem_widget.sources.heap.paths import ATOMS, Held
from hfmem_widget.sources.heap.referents import (
    Look,
    fields_of,
    holds_nothing,
    look_into,
    may_hold_nothing,
    unnamed,
)
from hfmem_widget.sources.heap.roots import is_dunder, user_modules
from hfmem_widget.sources.storages import storages_of

_EVERYTHING = 0
"""The group that all others lie in, which is never gone."""


class Group(NamedTuple):
    """Objects that may be gone together.

    Attributes
    ----------
    name : hashable
    values : sequence of object
        Besides those of the groups within it.
    within : hashable, optional
        The name of a group before it in the list, with which it goes as well.
    """

    name: Hashable
    values: Sequence[object] = ()
    within: Hashable = None


@dataclass(frozen=True, slots=True)
class Reach:
    """How many bytes each of several groups of objects keeps alone.

    Attributes
    ----------
    alone : mapping of hashable to mapping of str to int
        By group and device: bytes that nothing outside of the group reaches.
    objects : int
        How many objects were looked at.
    bound : str
        Why the search ended early, as a sentence; empty if it did not. The bytes are then not certain.
    """

    alone: Mapping[Hashable, Mapping[str, int]]
    objects: int = 0
    bound: str = ""


def reach(
    groups: Sequence[Group],
    others: Sequence[object],
    *,
    most_objects: int = MOST_OBJECTS,
    most_seconds: float = MOST_SECONDS,
) -> Reach:
    """Find what would be free if one of several groups of objects were gone and everything else stayed.

    An object that a second group reaches as well is looked at again, for the smallest group that both lie
    in; so each is looked at as often as groups lie in one another, at most. No code of the objects is run,
    and none is kept.

    Parameters
    ----------
    groups : sequence of Group
    others : sequence of object
        What stays. What the user's own modules hold is added.
    most_objects, most_seconds
        Where the search gives up.
    """
    modules = user_modules()
    parents = [_EVERYTHING]
    numbers: dict[Hashable, int] = {None: _EVERYTHING}
    for group in groups:
        numbers[group.name] = len(parents)
        parents.append(numbers[group.within])
    walk = _Walk(parents, frozenset(modules), Bounds(most_objects, most_seconds))
    with tensors.unnoticed(), suppress(SearchEnded):
        for group in groups:
            for value in group.values:
                walk.arrive(numbers[group.name], value)
        for value in others:
            walk.arrive(_EVERYTHING, value)
        for module in modules.values():
            for name, value in list(fields_of(module).items()):
                if not is_dunder(name):
                    walk.arrive(_EVERYTHING, value)
        walk.run()
    alone: list[dict[str, int]] = [{} for _ in parents]
    for (_, device), (number, size) in walk.storages.items():
        at = number
        while at != _EVERYTHING:
            alone[at][device] = alone[at].get(device, 0) + size
            at = parents[at]
    return Reach(
        {one.name: alone[numbers[one.name]] for one in groups},
        walk.bounds.objects,
        walk.bounds.reached,
    )


class _Kind(NamedTuple):
    """How the objects of one type are looked at."""

    look: Look | None
    is_tensor: bool = False
    may_hold_nothing: bool = False


class _Walk:
    """One search; what it refers to goes with it."""

    def __init__(self, parents: Sequence[int], modules: Collection[str], bounds: Bounds) -> None:
        self.storages: dict[tuple[int, str], tuple[int, int]] = {}
        self.bounds = bounds
        self._parents = parents
        self._modules = {"__main__", *modules}
        self._group_of: dict[int, int] = {}
        # Whatever was looked at is held until the end, lest another get its address.
        self._held: list[Any] = []
        self._waiting: deque[Any] = deque()
        self._kinds: dict[type, _Kind] = {}

    def arrive(self, group: int, value: Any) -> None:
        """Note that a group reaches an object, and look into it later unless that is known."""
        kind = type(value)
        if kind in ATOMS:
            return
        known = self._kinds.get(kind) or self._learn(kind)
        if known.look is None:
            return
        before = self._group_of.get(id(value))
        if before is None:
            self.bounds.count()
            if known.may_hold_nothing and holds_nothing(value, self._may):
                return
            self._held.append(value)
        elif before in {group, _EVERYTHING}:
            return
        else:
            group = self._around(before, group)
            if group == before:
                return
        self._group_of[id(value)] = group
        self._waiting.append(value)

    def _around(self, one: int, other: int) -> int:
        """Return the smallest group that two lie in, which may be one of them."""
        around = {_EVERYTHING}
        while one != _EVERYTHING:
            around.add(one)
            one = self._parents[one]
        while other not in around:
            other = self._parents[other]
        return other

    def run(self) -> None:
        """Look into everything that can be reached."""
        while self._waiting:
            self._look(self._waiting.popleft())

    def _look(self, value: Any) -> None:
        known = self._kinds[type(value)]
        group = self._group_of[id(value)]
        for key, device, size, _ in storages_of(value) if known.is_tensor else ():
            before, _ = self.storages.get((key, device), (group, size))
            self.storages[key, device] = (self._around(before, group), size)
        try:
            for _, held in known.look(value) if known.look is not None else ():
                self.arrive(group, held)
        except SearchEnded:
            raise
        except Exception:  # noqa: BLE001  (an odd object holds nothing that can be told)
            return

    def _may(self, kind: type) -> bool:
        return (self._kinds.get(kind) or self._learn(kind)).may_hold_nothing

    def _learn(self, kind: type) -> _Kind:
        types = tensors.kinds()
        if types is not None and issubclass(kind, types[0]):
            known = _Kind(_in_tensor, is_tensor=True)
        elif tensors.is_node(kind):
            known = _Kind(unnamed(tensors.in_node))
        elif tensors.is_saved(kind):
            known = _Kind(unnamed(tensors.in_saved))
        else:
            look = look_into(kind, self._modules)
            known = _Kind(look, may_hold_nothing=may_hold_nothing(kind, look))
        self._kinds[kind] = known
        return known


def _in_tensor(tensor: Any) -> Iterator[Held]:
    for held in (tensors.gradient_of(tensor), tensors.graph_of(tensor)):
        if held is not None:
            yield "", held
    yield from tensors.beside_tensor(tensor)
