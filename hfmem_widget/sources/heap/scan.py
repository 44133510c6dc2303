"""The search for holders: breadth first from every root, so that the shortest path is found."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress, groupby
from operator import attrgetter
from types import ModuleType
from typing import Any

from hfmem_widget.sources.heap import arrays, own, paths, roots, tensors
from hfmem_widget.sources.heap.model import Holders, Remainder
from hfmem_widget.sources.heap.own import LEAST
from hfmem_widget.sources.heap.paths import ATOMS, UNNAMED, Segment
from hfmem_widget.sources.heap.referents import fields_of, kept_fields
from hfmem_widget.sources.heap.roots import Rank, Root, is_dunder, variables
from hfmem_widget.sources.heap.rows import Arrival, Arrivals, Place, rows_of, text_of
from hfmem_widget.sources.heap.search import MOST_OBJECTS, MOST_SECONDS, Key, Search, SearchEnded
from hfmem_widget.sources.mapped import shared_memory
from hfmem_widget.sources.storages import MANAGED

DEEPEST = 200
"""The longest path, in references, so that a linked list of a million objects ends the search."""

_OTHER_WAYS = 4
_LEAST_SHARE = 0.02  # of Python's own objects: what a part of one must be to have a row
_NOTED = {"tensor", "array", "buffers"}


def scan(
    namespace: Mapping[str, object],
    allocated: Mapping[str, float] | None = None,
    others: Sequence[Root] = (),
    *,
    most_objects: int = MOST_OBJECTS,
    most_seconds: float = MOST_SECONDS,
    is_thorough: bool = False,
    subjects: list[tuple[str, Any]] | None = None,
) -> Holders:
    """Find which names keep which storages. Runs no code of the objects, and keeps none of them.

    The search begins at a notebook's variables, and at other roots such as `kernel_roots`. `allocated` is
    what the allocator has handed out, in bytes by device, of which `Holders.remainders` are the rest.
    A thorough search goes on to what libraries hold, and to what no name leads to. To a list of `subjects`
    the models and optimizers themselves are added, with their paths: for who lets them go.
    """
    began = time.perf_counter()
    with Search.undisturbed(), tensors.unnoticed():
        search = _Search(most_objects, most_seconds)
        search.seen[id(namespace)] = namespace
        search.run([*variables(namespace), *others], is_thorough=is_thorough)
        rows = rows_of(search.arrivals, search.other_ways)
        if subjects is not None:
            subjects += [(text_of([place.path()]), value) for place, value in search.subjects]
    # What libraries hold by the byte is nobody's concern.
    rows = tuple(row for row in rows if row.bytes >= LEAST or not paths.is_beyond_names(row.path))
    explained = Counter(Holders(rows).explained())
    # Of what is no file's, as much counts as is in this process's memory.
    explained["cpu"] += min(shared_memory(), explained[MANAGED])
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
        self._unnamed = 0
        self._own: dict[Place, Arrival] = {}
        # Whatever was looked at is held until the end, lest another get its address.
        self.seen: dict[int, Any] = {}
        # A model that was found meanwhile comes first.
        self._models, self._waiting = deque[tuple[Place, Any]](), deque[tuple[Place, Any]]()

    def run(self, names: Sequence[Root], *, is_thorough: bool) -> None:
        """Look at everything that can be reached, in the order of blame."""
        with suppress(SearchEnded):
            for rank, group in groupby(sorted(names, key=self._order), key=attrgetter("rank")):
                for root in group:
                    self.arrive(Place(None, "", rank), root.name, root.value)
                self._look_at_all()
            self._look_into_all(self.modules, Rank.MODULE)
            if is_thorough:
                self._look_beyond_names()
        self._join_overlapping()
        self._tell_own()

    def _look_into_all(self, modules: Mapping[str, ModuleType], rank: Rank) -> None:
        for name, module in modules.items():
            fields = fields_of(module)
            self.seen[id(fields)] = fields
            for key, value in list(fields.items()):
                if not is_dunder(key):
                    self.arrive(Place(None, name, rank), f".{key}", value)
        self._look_at_all()

    def _look_at_all(self) -> None:
        while self._models or self._waiting:
            self._look(*(self._models or self._waiting).popleft())

    def _look_beyond_names(self) -> None:
        """Note what the garbage collector knows of and no name led to, and which library holds it."""
        place = Place(Place(None, "", Rank.NOBODY), UNNAMED, Rank.NOBODY)
        for found in roots.known_to_the_collector():
            roles = {kind: self.kinds[kind].role for kind in set(map(type, found))}
            noted = {kind for kind, role in roles.items() if role in _NOTED}
            for held in compress(found, map(noted.__contains__, map(type, found))):
                if id(held) not in self.seen:
                    self.count()
                    (self._look if roles[type(held)] == "buffers" else self._note)(place, held)
        libraries = roots.modules_of_libraries()
        self.kinds.user_modules |= set(libraries)
        for name, module in libraries.items():
            if self._unnamed < LEAST:
                break
            self._look_into_all({paths.library_name(name): module}, Rank.LIBRARY)

    def arrive(self, before: Place, segment: Segment, value: Any) -> None:
        """Extend a path to an object, and look into the object later unless it has been reached before."""
        kind = type(value)
        known = self.kinds[kind]
        if known.look is None and not known.role and (before.is_weighed or not paths.is_big(value)):
            return
        key = id(value)
        is_seen = key in self.seen
        if not is_seen:
            self.count()
        if known.role in {"tensor", "array"}:
            self._note(before.to(segment), value)
        elif not is_seen and known.is_plain and before.is_weighed and self.is_empty(value):
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
        if not place.is_weighed:
            self.apart.add(key)
        if not place.is_whole:
            place.key = key
        comes_first = known.role in {"module", "optimizer"} and place.rank is Rank.VARIABLE
        (self._models if comes_first else self._waiting).append((place, value))

    def _note(self, place: Place, value: Any) -> None:
        if self.kinds[type(value)].role == "array":
            value = arrays.owner_of(value)
        known = self.kinds[type(value)]
        if known.role != "tensor" and place.kind == "tensors":
            place = place.of(known.held, "", place.rank)
            place.depth -= 1  # a view by NumPy is as near as one by PyTorch
        for key, memory in self.memory_of(value):
            if known.role == "buffers":
                self.count()
            if memory.bytes:
                shaped = value if known.role == "tensor" else memory
                self._add(key, Arrival(place, memory.bytes, memory.dtype, shaped))

    def _add(self, found: Key, arrival: Arrival) -> None:
        """Note that a path led to memory."""
        before = self.arrivals.setdefault(found, [])
        is_new, is_unnamed = not before, arrival.place.rank is Rank.NOBODY
        if is_new and is_unnamed:
            self._unnamed += arrival.bytes
        elif len(before) == 1 and not is_unnamed and before[0].place.rank is Rank.NOBODY:
            self._unnamed -= before[0].bytes
        if is_new or not is_unnamed:
            before.append(arrival)

    def _note_own(self, place: Place, value: Any) -> None:
        """Note how big an object of Python's own is: with all below it if nothing of that has a name."""
        known = self.kinds[type(value)]
        is_own = known.is_plain or known.role == "array" or type(value) in ATOMS
        if place.is_weighed or not is_own:
            return
        below = not place.is_whole and (not own.names_what_it_holds(value) or self.is_empty(value))
        size = self.weigh(value, below=below)
        place.is_weighed = below
        known_before = self._own.get(place)
        if known_before is not None:
            self._own[place] = replace(known_before, bytes=known_before.bytes + size)
            return
        items = 1 if place.is_whole else own.items_of(value)
        own_type = own.own_type(type(value))
        name = "" if place.is_whole or own_type is object else own_type.__name__
        name += f" of {items:,} items" if items > 1 else ""
        dtype = ", ".join(filter(None, (name, "about" if self.is_estimate else "")))
        # The key of an array itself is its address.
        memory = arrays.Memory(-id(value), size, (), dtype)
        self._own[place] = Arrival(place, size, dtype, memory, items)

    def _tell_own(self) -> None:
        """Give a row to each name that holds much of Python's own objects, its small parts included."""
        least = max(LEAST, _LEAST_SHARE * sum(each.bytes for each in self._own.values()))
        for place in sorted(self._own, key=attrgetter("depth"), reverse=True):
            held, around = self._own[place], self._own.get(place.before or place)
            if held.bytes < least and around is not None and place.before is not None:
                self._own[place.before] = replace(around, bytes=around.bytes + held.bytes)
            elif held.bytes >= LEAST:
                of_its_kind = place.of("Python objects", "", place.rank)
                self._add((held.tensor.key, "cpu"), replace(held, place=of_its_kind))

    def _join_overlapping(self) -> None:
        """Count a tensor that has an array's memory with the array."""
        for first, key, size in self.overlapping(self.arrivals):
            joined = *self.arrivals[first], *self.arrivals.pop(key)
            self.arrivals[first] = [replace(each, bytes=size) for each in joined]

    def _order(self, root: Root) -> tuple[int, int]:
        """Return a sort key: the biggest models come first, so that none is named by a part of it."""
        if self.kinds[type(root.value)].role != "module":
            return root.rank, 0
        return root.rank, -sum(1 for _ in tensors.modules_in(root.value))

    def _look(self, place: Place, value: Any) -> None:
        known = self.kinds[type(value)]
        try:
            self._note_own(place, value)
            if known.role == "module":
                self._look_into_module(place, value)
            elif known.role == "optimizer":
                self.subjects.append((place, value))
                for name, held in tensors.states_in(value):
                    self.arrive(place.of("optimizer states", name, _rank(place)), "", held)
                for segment, held in kept_fields(value, frozenset({"state"})):
                    self.arrive(place, segment, held)
            elif known.role == "buffers":
                self._note(place, value)
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
