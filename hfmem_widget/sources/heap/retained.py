"""Retained sizes: the bytes that are freed if a group of objects is freed."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from hfmem_widget.sources.heap import arrays, tensors
from hfmem_widget.sources.heap.own import LEAST
from hfmem_widget.sources.heap.paths import is_big
from hfmem_widget.sources.heap.referents import fields_of
from hfmem_widget.sources.heap.roots import is_dunder
from hfmem_widget.sources.heap.search import MOST_OBJECTS, MOST_SECONDS, Search, SearchEnded
from hfmem_widget.sources.storages import storages_of

_EVERYTHING = 0
"""The group that contains all others, and is never freed."""


class Group(NamedTuple):
    """Objects that may be freed together, with those of the groups within this group."""

    name: Hashable
    values: Sequence[object] = ()
    within: Hashable = None
    """The name of an earlier group that contains this one."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The retained sizes of several groups of objects."""

    alone: Mapping[Hashable, Mapping[str, int]]
    """By group and device: bytes that nothing outside of the group reaches."""
    objects: int = 0
    bound: str = ""
    """Why the search ended early, as a sentence, so that the bytes are not certain; empty if it did not."""


def reach(
    groups: Sequence[Group],
    others: Sequence[object],
    *,
    most_objects: int = MOST_OBJECTS,
    most_seconds: float = MOST_SECONDS,
) -> Reach:
    """Return what would be freed if one of several groups were freed, and `others` and user modules stayed.

    An object that a second group reaches is looked at again, for the smallest group that contains both. So
    each is looked at once per level of nested groups, at most. No code of objects is run, and none is kept.
    """
    parents = [_EVERYTHING]
    numbers: dict[Hashable, int] = {None: _EVERYTHING}
    for group in groups:
        numbers[group.name] = len(parents)
        parents.append(numbers[group.within])
    search = _Search(parents, most_objects, most_seconds)
    with tensors.unnoticed(), suppress(SearchEnded):
        for group in groups:
            for value in group.values:
                search.arrive(numbers[group.name], value)
        for value in others:
            search.arrive(_EVERYTHING, value)
        for module in search.modules.values():
            for name, value in list(fields_of(module).items()):
                if not is_dunder(name):
                    search.arrive(_EVERYTHING, value)
        search.run()
    search.join_what_is_lent()
    alone: list[dict[str, int]] = [{} for _ in parents]
    for (_, device), (smallest, size) in search.storages.items():
        group_number = smallest
        while group_number != _EVERYTHING:
            alone[group_number][device] = alone[group_number].get(device, 0) + size
            group_number = parents[group_number]
    by_name = {group.name: alone[numbers[group.name]] for group in groups}
    return Reach(by_name, search.objects, search.bound)


class _Search(Search):
    def __init__(self, parents: Sequence[int], most_objects: int, most_seconds: float) -> None:
        super().__init__(most_objects, most_seconds)
        self.storages: dict[tuple[int, str], tuple[int, int]] = {}
        self._parents = parents
        self._lent: dict[tuple[int, str], int] = {}
        """By storages that have an array's memory, its address."""
        self._lenders: dict[int, tuple[int, int]] = {}
        """By the address of an array's memory, its end, and which group reaches it."""
        self._group_of: dict[int, int] = {}
        # Whatever was looked at is held until the end, lest another get its address.
        self._held: list[Any] = []
        self._waiting: deque[Any] = deque()

    def arrive(self, group: int, value: Any, *, is_weighed: bool = False) -> None:
        """Note that a group reaches an object, and look into it later unless that is known."""
        known = self.kinds[type(value)]
        if known.look is None and (is_weighed or not is_big(value)):
            return
        before = self._group_of.get(id(value))
        if before is None:
            self.count()
            if is_weighed and known.may_be_empty and self.is_empty(value):
                return
            self._held.append(value)
            if not is_weighed:
                self.apart.add(id(value))
        elif before in {group, _EVERYTHING}:
            return
        else:
            group = self._around(before, group)
            if group == before:
                return
        self._group_of[id(value)] = group
        self._waiting.append(value)

    def run(self) -> None:
        """Look into everything that can be reached."""
        while self._waiting:
            value = self._waiting.popleft()
            group = self._group_of[id(value)]
            known = self.kinds[type(value)]
            if id(value) in self.apart and (known.may_be_empty or known.look is None):
                # An object of Python's own, with all of them below it; the key of no tensor is negative.
                own = -id(value), "cpu"
                before, size = self.storages.get(own) or (group, self.weigh(value, below=True))
                self.storages[own] = self._around(before, group), size if size >= LEAST else 0
            if known.role == "tensor":
                for key, device, size, _ in storages_of(value):
                    if device == "cpu" and (lent := arrays.address_lent_to(value)):
                        self._lent[key, device] = lent
                    before, _ = self.storages.get((key, device), (group, size))
                    self.storages[key, device] = (self._around(before, group), size)
            try:
                if known.role == "array":
                    self._look_at_array(group, value)
                for _, held in known.look(value) if known.look is not None else ():
                    self.arrive(group, held, is_weighed=known.may_be_empty)
            except Exception:  # noqa: BLE001, S112  (an odd object is taken as empty)
                continue

    def join_what_is_lent(self) -> None:
        """Keep tensors that have an array's memory with the array."""
        starts = sorted(self._lenders)
        for key, address in self._lent.items():
            at = bisect_right(starts, address) - 1
            if at >= 0 and address < self._lenders[starts[at]][0]:
                group, size = self.storages[key]
                self.storages[key] = self._around(group, self._lenders[starts[at]][1]), size

    def _look_at_array(self, group: int, value: Any) -> None:
        owner = arrays.owner_of(value)
        if self.kinds[type(owner)].role == "tensor":
            self.arrive(group, owner)
            return
        start = arrays.address_of(owner)
        stop = start + arrays.memory_of(owner).bytes
        _, before = self._lenders.get(start, (stop, group))
        self._lenders[start] = stop, self._around(before, group)

    def _around(self, first: int, second: int) -> int:
        """Return the smallest group that contains two groups, which may be one of them."""
        around = {_EVERYTHING}
        while first != _EVERYTHING:
            around.add(first)
            first = self._parents[first]
        while second not in around:
            second = self._parents[second]
        return second
