"""Retained sizes: the bytes that are freed when a group of objects is freed."""

import gc
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from sys import getrefcount
from typing import Any, NamedTuple

from hfmem_widget.sources.heap import arrays, tensors
from hfmem_widget.sources.heap.model import ATOMS, NUMBERS, TEXTS
from hfmem_widget.sources.heap.referents import fields_of, kept_fields
from hfmem_widget.sources.heap.roots import is_dunder
from hfmem_widget.sources.heap.search import MOST_OBJECTS, MOST_SECONDS, Key, Search, SearchEnded
from hfmem_widget.sources.storages import MANAGED

_EVERYTHING = 0
"""The group that contains all others, and is never freed."""

_BYTES = TEXTS | {mmap}
"""Types whose objects hold only bytes; shared memory is an `mmap`."""

_OF_A_NUMBER = 32  # bytes of a float, or of an int below 2**60, as CPython allocates them

_HOLDS_ONE = [object()]
_HELD_ONCE = next(map(getrefcount, gc.get_referents(_HOLDS_ONE)))
"""The reference count of an object that only one container holds, as counted here."""


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
    """By group and device: the bytes that nothing outside of the group reaches."""
    objects: int = 0
    bound: str = ""
    """Why the search ended early, as a sentence, so that the bytes are uncertain; empty if it did not."""
    at_most: frozenset[Hashable] = frozenset()
    """The groups of whose bytes other objects may hold a part, unseen."""


def reach(
    groups: Sequence[Group], others: Sequence[object], *, most_seconds: float = MOST_SECONDS
) -> Reach:
    """Return the bytes that freeing each of several groups would free, if `others` and user modules stayed.

    An object that a second group reaches is inspected again, for the smallest group that contains both. So
    each is inspected once per level of nested groups, at most. No code of objects runs, and none is kept.
    """
    parents = [_EVERYTHING]
    numbers: dict[Hashable, int] = {None: _EVERYTHING}
    for group in groups:
        numbers[group.name] = len(parents)
        parents.append(numbers[group.within])
    search = _SearchForRetained(parents, most_seconds)
    roots = [(numbers[group.name], value) for group in groups for value in group.values]
    fields = (
        item for module in search.modules.values() for item in list(fields_of(module).items())
    )
    with tensors.unnoticed(), suppress(SearchEnded):
        for number, value in roots:
            search.arrive(number, value)
        for value in (*others, *(value for name, value in fields if not is_dunder(name))):
            search.arrive(_EVERYTHING, value)
        search.run()
    search.join_overlapping()
    alone: list[dict[str, int]] = [{} for _ in parents]
    for key, (smallest, size) in search.memory.items():
        for number in search.around(smallest):
            alone[number][key[1]] = alone[number].get(key[1], 0) + size
    shared = {n for key in search.may_be_shared for n in search.around(search.memory[key][0])}
    del numbers[None]
    by_name = {name: alone[number] for name, number in numbers.items()}
    at_most = frozenset(name for name, number in numbers.items() if number in shared)
    return Reach(by_name, search.objects, search.bound, at_most)


def _key_of(value: object) -> Key:
    return id(value), MANAGED if type(value) is mmap else "cpu"


class _SearchForRetained(Search):
    def __init__(self, parents: Sequence[int], most_seconds: float) -> None:
        super().__init__(MOST_OBJECTS, most_seconds)
        self.memory: dict[Key, tuple[int, int]] = {}
        """The group that reaches memory, and its bytes."""
        self.may_be_shared: set[Key] = set()
        """The keys of memory that other objects may share, unseen."""
        self._parents = parents
        self._group_of: dict[int, int] = {}
        # Every object is held until the end, so that no other object gets its address.
        self._held: list[Any] = []
        self._waiting: deque[Any] = deque()

    def arrive(self, group: int, value: Any) -> None:
        """Note that a group reaches an object, and look into it later unless that is known."""
        kind = type(value)
        if kind not in _BYTES:
            traits = self.kinds[kind]
            if kind in ATOMS or (traits.look is None and not traits.role):
                return
        before = self._group_of.get(id(value))
        if before is None:
            self.count()
            self._held.append(value)
        elif before in {group, _EVERYTHING}:
            return
        else:
            group = self._around(before, group)
            if group == before:
                return
        self._group_of[id(value)] = group
        self._waiting.append(value)

    def run(self) -> None:
        while self._waiting:
            value = self._waiting.popleft()
            try:
                self._look(self._group_of[id(value)], value)
            except Exception:  # noqa: BLE001, S112  (an odd object is taken as empty)
                continue

    def join_overlapping(self) -> None:
        """Join memory that overlaps, such as that of a tensor that was made of an array."""
        for first, key, size in self.overlapping(self.memory):
            group, _ = self.memory.pop(key)
            around, before = self.memory[first]
            self.memory[first] = self._around(around, group), max(before, size)

    def _look(self, group: int, value: Any) -> None:
        kind = type(value)
        traits = self.kinds[kind]
        if kind in _BYTES:
            key, size = _key_of(value), len(value) if kind is mmap else traits.size_of(value)
            self._note(group, key, size)
            if kind is bytes:
                self.where[key] = id(value), id(value) + size
        elif traits.is_plain:
            self._note_plain(group, _key_of(value), traits.size_of(value), gc.get_referents(value))
        else:
            self._note_memory_of(group, value)
            for held in gc.get_referents(value):  # such as text among a function's variables
                if type(held) in _BYTES:
                    self.arrive(group, held)
            look = kept_fields if traits.role == "array" else traits.look
            for _, held in look(value) if look is not None else ():
                self.arrive(group, held)

    def _note_memory_of(self, group: int, value: Any) -> None:
        traits = self.kinds[type(value)]
        if traits.role == "array":
            value = arrays.owner_of(value)
            if self.kinds[type(value)].role == "tensor":
                self.arrive(group, value)
                return
            base = arrays.base_of(value)
            self.arrive(group, base)
            if type(base) in _BYTES:  # the array has a part of its bytes, or all
                part = arrays.memory_of(value)
                self.where.setdefault(_key_of(base), (part.start, part.start + part.bytes))
                return
            if objects := arrays.objects_in(value):
                self._note_plain(group, (id(value) + 1, "cpu"), 0, objects)  # besides its own bytes
        if traits.role in {"tensor", "array", "buffers"}:
            for key, memory in self.memory_of(value):
                self._note(group, key, memory.bytes)
                if traits.held == "polars":
                    self.may_be_shared.add(key)

    def _note(self, group: int, key: Key, size: int) -> None:
        before, _ = self.memory.get(key, (group, size))
        self.memory[key] = self._around(before, group), size

    def _note_plain(self, group: int, key: Key, size: int, referents: list[Any]) -> None:
        """Note an object's bytes with those of the objects that it alone holds; arrive at all others.

        Most objects are held once, so they count with their holder. Numbers that are held twice do not count.
        """
        waiting: list[Any] = []
        try:
            while True:
                if NUMBERS.issuperset(map(type, referents)):  # millions cost two passes in C
                    size += _OF_A_NUMBER * list(map(getrefcount, referents)).count(_HELD_ONCE)
                    referents = []
                for count, held in zip(map(getrefcount, referents), referents, strict=True):
                    kind = type(held)
                    if count != _HELD_ONCE:
                        if kind not in NUMBERS and self._group_of.get(id(held)) != group:
                            self.arrive(group, held)
                    elif kind in NUMBERS:
                        size += _OF_A_NUMBER
                    elif kind in TEXTS:
                        size += self.kinds[kind].size_of(held)
                    elif (traits := self.kinds[kind]).is_plain and kind is not mmap:
                        size += traits.size_of(held)
                        waiting.append(held)
                    else:
                        self.arrive(group, held)
                if not waiting:
                    return
                self.count()
                referents = gc.get_referents(waiting.pop())
        finally:  # if the search ends in the middle, the bytes so far count
            self._note(group, key, size)

    def around(self, group: int) -> Iterator[int]:
        """Yield a group and the groups that contain it, except `_EVERYTHING`."""
        while group != _EVERYTHING:
            yield group
            group = self._parents[group]

    def _around(self, first: int, second: int) -> int:
        """Return the smallest group that contains two groups, which may be one of them."""
        around = set(self.around(first))
        return next((group for group in self.around(second) if group in around), _EVERYTHING)
