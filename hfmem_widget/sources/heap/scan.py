"""The search for holders: breadth first from every root, so that the shortest path is found."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any

from hfmem_widget.sources.heap import arrays, tensors
from hfmem_widget.sources.heap.model import Holders, Kind, Remainder
from hfmem_widget.sources.heap.paths import ATOMS, Segment
from hfmem_widget.sources.heap.referents import fields_of, kept_fields
from hfmem_widget.sources.heap.roots import Rank, Root, is_dunder, variables
from hfmem_widget.sources.heap.rows import Arrival, Arrivals, Place, rows_of, text_of
from hfmem_widget.sources.heap.search import MOST_OBJECTS, MOST_SECONDS, Search, SearchEnded
from hfmem_widget.sources.mapped import MappedFiles
from hfmem_widget.sources.storages import MANAGED, storages_of

DEEPEST = 200
"""The longest path, in references, so that a linked list of a million objects ends the search."""

_OTHER_WAYS = 4


def scan(
    namespace: Mapping[str, object],
    allocated: Mapping[str, float] | None = None,
    others: Sequence[Root] = (),
    *,
    most_objects: int = MOST_OBJECTS,
    most_seconds: float = MOST_SECONDS,
    subjects: list[tuple[str, Any]] | None = None,
) -> Holders:
    """Find which names keep which storages. Runs no code of the objects, and keeps none of them.

    The search begins at a notebook's variables, and at other roots such as `kernel_roots`. `allocated` is
    what the allocator has handed out, in bytes by device, of which `Holders.remainders` are the rest. To a
    list of `subjects` the models and optimizers themselves are added, with their paths: for who lets them go.
    """
    began = time.perf_counter()
    with tensors.unnoticed():
        search = _Search(most_objects, most_seconds)
        search.seen[id(namespace)] = namespace
        search.run([*variables(namespace), *others])
        rows = rows_of(search.arrivals, search.other_ways)
        if subjects is not None:
            subjects += [(text_of([place.path()]), value) for place, value in search.subjects]
    explained = Counter(Holders(rows).explained())
    explained["cpu"] -= search.beside_malloc()
    remainders = tuple(
        Remainder(device, max(float(size) - explained[device], 0.0), ":" not in device)
        for device, size in (allocated or {}).items()
        if not math.isnan(size)
    )
    bound = search.bound
    if search.is_too_deep and not bound:
        bound = f"objects more than {DEEPEST} references below a variable were not inspected"
    return Holders(rows, remainders, time.perf_counter() - began, search.objects, bound)


class _Search(Search):
    def __init__(self, most_objects: int, most_seconds: float) -> None:
        super().__init__(most_objects, most_seconds)
        self.arrivals: Arrivals = {}
        self.other_ways: dict[int, list[Place]] = {}
        self.is_too_deep = False
        self.subjects: list[tuple[Place, Any]] = []
        self._mapped = MappedFiles()
        self._lent: dict[tuple[int, str], int] = {}
        self._beside_malloc: set[tuple[int, str]] = set()
        # Whatever was looked at is held until the end, lest another get its address.
        self.seen: dict[int, Any] = {}
        self._waiting: dict[Rank, deque[tuple[Place, Any]]] = {rank: deque() for rank in Rank}

    def run(self, roots: Sequence[Root]) -> None:
        """Look at everything that can be reached, in the order of blame."""
        with suppress(SearchEnded):
            for root in sorted(roots, key=self._order):
                self.arrive(Place(None, "", root.rank), root.name, root.value)
            for name, module in self.modules.items():
                fields = fields_of(module)
                self.seen[id(fields)] = fields
                for key, value in list(fields.items()):
                    if not is_dunder(key):
                        self.arrive(Place(None, name, Rank.MODULE), f".{key}", value)
            models = self._waiting[Rank.MODEL]
            for queue in self._waiting.values():
                while models or queue:
                    # A model that was found meanwhile comes first.
                    self._look(*(models or queue).popleft())
        self._join_what_is_lent()

    def arrive(self, before: Place, segment: Segment, value: Any) -> None:
        """Extend a path to an object, and look into the object later unless it has been reached before."""
        kind = type(value)
        if kind in ATOMS:
            return
        known = self.kinds[kind]
        if known.look is None and not known.role:
            return
        key = id(value)
        is_seen = key in self.seen
        if not is_seen:
            self.count()
        if known.role in {"tensor", "array"}:
            self._note(before.to(segment), value)
        elif not is_seen and known.may_be_empty and self.is_empty(value):
            return
        if is_seen:
            ways = self.other_ways.setdefault(key, [])
            if len(ways) < _OTHER_WAYS:
                ways.append(before.to(segment))
            return
        place = before.to(segment)
        if place.depth > DEEPEST:
            self.is_too_deep = True
            return
        self.seen[key] = value
        if not place.is_graph and not place.part:
            place.key = key
        comes_first = known.role in {"module", "optimizer"} and place.rank is Rank.VARIABLE
        self._waiting[Rank.MODEL if comes_first else place.rank].append((place, value))

    def _note(self, place: Place, tensor: Any) -> None:
        if self.kinds[type(tensor)].role == "array":
            owner = arrays.owner_of(tensor)
            if self.kinds[type(owner)].role == "array":
                self._note_memory(place, "NumPy", arrays.memory_of(owner))
                return
            tensor = owner
        for key, device, size, dtype in storages_of(tensor):
            arrivals = self.arrivals.setdefault((key, device), [])
            arrivals.append(Arrival(place, size, dtype, tensor))
            if device == "cpu" and len(arrivals) == 1 and (lent := arrays.address_lent_to(tensor)):
                self._lent[key, device] = lent

    def _note_memory(self, place: Place, kind: Kind, memory: arrays.Memory) -> None:
        if not memory.bytes:
            return
        if place.kind == "tensors":
            place = place.of(kind, "", place.rank)
            place.depth -= 1  # a view by NumPy is as near as one by PyTorch
        is_mapped = memory.is_lent and self._mapped.hold(memory.key, 0)
        found = memory.key, MANAGED if is_mapped else "cpu"
        self.arrivals.setdefault(found, []).append(
            Arrival(place, memory.bytes, memory.dtype, memory)
        )
        if not memory.is_malloced:
            self._beside_malloc.add(found)

    def beside_malloc(self) -> int:
        """Return the bytes on the host that no C heap counts."""
        known = (found for found in self._beside_malloc if found[1] == "cpu")
        return sum(self.arrivals[found][0].bytes for found in known)

    def _join_what_is_lent(self) -> None:
        """Count a tensor that has an array's memory with the array."""
        if not self._lent:
            return
        own = []
        for key, found in self.arrivals.items():
            array = getattr(found[0].tensor, "array", None)
            if type(found[0].tensor) is arrays.Memory and array is not None:
                start = arrays.address_of(array)
                own.append((start, start + found[0].bytes, key))
        own.sort()
        for lent, address in self._lent.items():
            at = bisect_right(own, address, key=itemgetter(0)) - 1
            if at >= 0 and address < own[at][1]:
                array = self.arrivals[own[at][2]]
                array += [replace(each, bytes=array[0].bytes) for each in self.arrivals.pop(lent)]

    def _order(self, root: Root) -> tuple[int, int]:
        """Return a sort key: the biggest models come first, so that none is named by a part of it."""
        if self.kinds[type(root.value)].role != "module":
            return root.rank, 0
        return root.rank, -sum(1 for _ in tensors.modules_in(root.value))

    def _look(self, place: Place, value: Any) -> None:
        known = self.kinds[type(value)]
        try:
            if known.role == "module":
                self._look_into_module(place, value)
            elif known.role == "optimizer":
                self.subjects.append((place, value))
                for name, held in tensors.states_in(value):
                    self.arrive(place.of("optimizer states", name, _rank(place)), "", held)
                for segment, held in kept_fields(value, frozenset({"state"})):
                    self.arrive(place, segment, held)
            elif known.role == "buffers":
                for memory in arrays.buffers_of(value, known.held):
                    self.count()
                    self._note_memory(place, known.held, memory)
            else:
                if known.role == "frame":  # what is in it is named by it
                    place = place.of(known.held, known.held, place.rank)
                for segment, held in known.look(value) if known.look is not None else ():
                    self.arrive(place, segment, held)
        except Exception:  # noqa: BLE001  (an odd object is taken as empty)
            return

    def _look_into_module(self, place: Place, model: Any) -> None:
        """Follow a model: parameters, buffers and gradients are its own, all else is as in any object."""
        self.subjects.append((place, model))
        for path, module in list(tensors.modules_in(model)):
            own = place
            if module is not model:
                own = place.to(path)
                own.key = id(module)
                if id(module) in self.seen:
                    self.other_ways.setdefault(id(module), []).append(own)
                self.seen[id(module)] = module
                self.count()
            for kind, name, tensor in tensors.own_tensors(module):
                self.arrive(place.of(kind, path + name, _rank(place)), "", tensor)
                gradient = None if tensor is None else tensors.gradient_of(tensor)
                if gradient is not None:
                    self.arrive(place.of("gradients", path + name, _rank(place)), "", gradient)
            for segment, held in kept_fields(module, tensors.PARTS_OF_MODULE):
                self.arrive(own, segment, held)


def _rank(owner: Place) -> Rank:
    return Rank.MODEL if owner.rank is Rank.VARIABLE else owner.rank
