"""The search: breadth first from every name, so that the shortest path to each storage is told."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hfmem_widget.sources.heap import tensors
from hfmem_widget.sources.heap.bounds import MOST_OBJECTS, MOST_SECONDS, Bounds, SearchEnded
from hfmem_widget.sources.heap.model import Holders, Remainder
from hfmem_widget.sources.heap.paths import ATOMS, Segment
from hfmem_widget.sources.heap.referents import (
    Look,
    fields_of,
    holds_nothing,
    kept_fields,
    look_into,
    may_hold_nothing,
    unnamed,
)
from hfmem_widget.sources.heap.roots import Rank, Root, is_dunder, user_modules, variables
from hfmem_widget.sources.heap.rows import Arrival, Found, Place, rows_of
from hfmem_widget.sources.storages import storages_of

DEEPEST = 200
"""Names after one another in a path, so that a linked list of a million ends."""

_OTHER_WAYS = 4


def scan(
    namespace: Mapping[str, object],
    allocated: Mapping[str, float] | None = None,
    others: Sequence[Root] = (),
    *,
    most_objects: int = MOST_OBJECTS,
    most_seconds: float = MOST_SECONDS,
) -> Holders:
    """Find which names keep which storages. Runs no code of the objects, and keeps none of them.

    Parameters
    ----------
    namespace : mapping of str to object
        A notebook's variables.
    allocated : mapping of str to float, optional
        Bytes that the allocator has handed out, by device; what nobody explains of it is told.
    others : sequence of Root
        Where else to begin, such as `kernel_roots`.
    most_objects, most_seconds
        Where the search gives up.
    """
    began = time.perf_counter()
    with tensors.unnoticed():
        search = _Search(Bounds(most_objects, most_seconds))
        search.seen[id(namespace)] = namespace
        search.run([*variables(namespace), *others])
        rows = rows_of(search.found)
    explained: dict[str, int] = {}
    for row in rows:
        explained[row.device] = explained.get(row.device, 0) + row.bytes
    remainders = tuple(
        Remainder(device, max(float(size) - explained.get(device, 0), 0.0), ":" not in device)
        for device, size in (allocated or {}).items()
        if size == size  # noqa: PLR0124  (not a NaN)
    )
    bound = search.bounds.reached
    if search.found.too_deep and not bound:
        bound = f"objects more than {DEEPEST} references below a variable were not inspected"
    return Holders(rows, remainders, time.perf_counter() - began, search.bounds.objects, bound)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the objects of one type are looked at: worked out once, since most are alike.

    Nothing here refers to the search, which would keep itself, and with it what it saw.
    """

    look: Callable[[_Search, Place, Any], None] | None = None
    inside: Look | None = None
    is_tensor: bool = False
    is_owner: bool = False
    may_hold_nothing: bool = False


class _Search:
    """One search; what it refers to goes with it."""

    def __init__(self, bounds: Bounds) -> None:
        self.found = Found()
        self.bounds = bounds
        # Whatever was looked at is held until the end, lest another get its address.
        self.seen: dict[int, Any] = {}
        self._waiting: dict[Rank, deque[tuple[Place, Any]]] = {rank: deque() for rank in Rank}
        self._user_modules = user_modules()
        self._kinds: dict[type, _Kind] = {}

    def run(self, roots: Sequence[Root]) -> None:
        """Look at everything that can be reached, in the order of blame."""
        with suppress(SearchEnded):
            # Of a model and a part of it, the model is named.
            for root in sorted(roots, key=_biggest_first):
                self.arrive(Place(None, "", root.rank), root.name, root.value)
            for name, module in self._user_modules.items():
                fields = fields_of(module)
                self.seen[id(fields)] = fields
                for key, value in list(fields.items()):
                    if not is_dunder(key):
                        self.arrive(Place(None, name, Rank.MODULE), f".{key}", value)
            models = self._waiting[Rank.MODEL]
            for queue in self._waiting.values():
                while queue:
                    self._look(*queue.popleft())
                    # A model that was found meanwhile comes first.
                    while models:
                        self._look(*models.popleft())

    def arrive(self, before: Place, segment: Segment, value: Any) -> None:
        """Note that a path goes on to an object, and look into it later unless another one led there."""
        kind = type(value)
        if kind in ATOMS:
            return
        known = self._kinds.get(kind) or self._learn(kind)
        if known.look is None:
            return
        key = id(value)
        is_seen = key in self.seen
        if not is_seen:
            self.bounds.count()
        if known.is_tensor:
            self._note(before.to(segment), value)
        elif not is_seen and known.may_hold_nothing and holds_nothing(value, self._may):
            return
        if is_seen:
            ways = self.found.other_ways.setdefault(key, [])
            if len(ways) < _OTHER_WAYS:
                ways.append(before.to(segment))
            return
        place = before.to(segment)
        if place.depth > DEEPEST:
            self.found.too_deep = True
            return
        self.seen[key] = value
        if not place.is_graph and not place.part:
            place.key = key
        comes_first = known.is_owner and place.rank is Rank.VARIABLE
        self._waiting[Rank.MODEL if comes_first else place.rank].append((place, value))

    def _may(self, kind: type) -> bool:
        return (self._kinds.get(kind) or self._learn(kind)).may_hold_nothing

    def _learn(self, kind: type) -> _Kind:
        """Return how objects of a type are looked at."""
        tensor, module, optimizer = tensors.kinds() or (None, None, None)
        if tensor is not None and issubclass(kind, tensor):
            known = _Kind(_Search._in_tensor, is_tensor=True)
        elif module is not None and issubclass(kind, module):
            known = _Kind(_Search._in_model, is_owner=True)
        elif optimizer is not None and issubclass(kind, optimizer):
            known = _Kind(_Search._in_optimizer, is_owner=True)
        elif tensors.is_node(kind):
            known = _Kind(_Search._in_other, unnamed(tensors.in_node))
        elif tensors.is_saved(kind):
            known = _Kind(_Search._in_other, unnamed(tensors.in_saved))
        else:
            inside = look_into(kind, {"__main__", *self._user_modules})
            known = _Kind(
                None if inside is None else _Search._in_other,
                inside,
                may_hold_nothing=may_hold_nothing(kind, inside),
            )
        self._kinds[kind] = known
        return known

    def _note(self, place: Place, tensor: Any) -> None:
        """Keep which storages a path leads to."""
        for key, device, size, dtype in storages_of(tensor):
            arrivals = self.found.arrivals.setdefault((key, device), [])
            arrivals.append(Arrival(place, size, dtype, tensor))

    def _look(self, place: Place, value: Any) -> None:
        look = self._kinds[type(value)].look
        try:
            if look is not None:
                look(self, place, value)
        except SearchEnded:
            raise
        except Exception:  # noqa: BLE001  (an odd object holds nothing that can be told)
            return

    def _in_other(self, place: Place, value: Any) -> None:
        inside = self._kinds[type(value)].inside
        if inside is not None:
            for segment, held in inside(value):
                self.arrive(place, segment, held)

    def _in_tensor(self, place: Place, tensor: Any) -> None:
        gradient = tensors.gradient_of(tensor)
        if gradient is not None:
            self.arrive(place, ".grad", gradient)
        node = tensors.graph_of(tensor)
        if node is not None:
            self.arrive(place.into_graph(), "", node)
        for segment, held in tensors.beside_tensor(tensor):
            self.arrive(place, segment, held)

    def _in_model(self, place: Place, model: Any) -> None:
        """Count parameters, buffers and gradients as its own; what else it holds, as an object's."""
        rank = Rank.MODEL if place.rank is Rank.VARIABLE else place.rank
        for path, module in list(tensors.modules_in(model)):
            own = place
            if module is not model:
                own = place.to(path)
                own.key = id(module)
                if id(module) in self.seen:
                    self.found.other_ways.setdefault(id(module), []).append(own)
                self.seen[id(module)] = module
                self.bounds.count()
            for kind, name, tensor in tensors.own_tensors(module):
                self.arrive(place.of(kind, path + name, rank), "", tensor)
                gradient = None if tensor is None else tensors.gradient_of(tensor)
                if gradient is not None:
                    self.arrive(place.of("gradients", path + name, rank), "", gradient)
            for segment, held in kept_fields(module, tensors.PARTS_OF_MODULE):
                self.arrive(own, segment, held)

    def _in_optimizer(self, place: Place, optimizer: Any) -> None:
        rank = Rank.MODEL if place.rank is Rank.VARIABLE else place.rank
        for name, held in tensors.states_in(optimizer):
            self.arrive(place.of("optimizer states", name, rank), "", held)
        for segment, held in kept_fields(optimizer, frozenset({"state"})):
            self.arrive(place, segment, held)


def _biggest_first(root: Root) -> tuple[int, int]:
    known = tensors.kinds()
    if known is None or not issubclass(type(root.value), known[1]):
        return root.rank, 0
    return root.rank, -sum(1 for _ in tensors.modules_in(root.value))
