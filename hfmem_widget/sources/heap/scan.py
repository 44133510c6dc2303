"""The search for holders: breadth first from every root, so that the shortest path is found."""

import gc
import io
import math
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import compress, groupby
from operator import attrgetter
from types import ModuleType
from typing import Any

from hfmem_widget.sources.heap import arrays, model, roots, tensors
from hfmem_widget.sources.heap.model import ATOMS, TEXTS, UNNAMED, Holders, Remainder, Segment
from hfmem_widget.sources.heap.referents import CONTAINERS, FEW_KEYS, fields_of, kept_fields
from hfmem_widget.sources.heap.roots import Precedence, Root, is_dunder, variables
from hfmem_widget.sources.heap.rows import Arrival, Arrivals, PathNode, rows_of, text_of
from hfmem_widget.sources.heap.search import MOST_OBJECTS, MOST_SECONDS, Key, Search, SearchEnded
from hfmem_widget.sources.procfs import shared_memory
from hfmem_widget.sources.storages import MANAGED

LEAST = 2**20  # bytes from which on a name has a row
DEEPEST = 200
"""The longest path, in references, so that a linked list of a million objects ends the search."""

_OTHER_WAYS = 4
_LEAST_SHARE = 0.02  # of the bytes of Python's own objects, from which on a part of one has a row

_OWN_TYPES = {*CONTAINERS, *TEXTS, OrderedDict, array, io.BytesIO, int, float, complex}


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

    `allocated` has the bytes in use by device, of which `Holders.remainders` are the unexplained rest. A
    thorough search goes on to memory that libraries hold, and to memory that no name leads to. A list of
    `subjects` gets the models and optimizers themselves, with their paths; the caller must drop them.
    """
    began = time.perf_counter()
    with ExitStack() as stack:
        # Else our own objects would make it collect the memory that is to be found.
        if gc.isenabled():
            gc.disable()
            stack.callback(gc.enable)
        stack.enter_context(tensors.unnoticed())
        search = _SearchForPaths(most_objects, most_seconds)
        search.seen[id(namespace)] = namespace
        search.run([*variables(namespace), *others], is_thorough=is_thorough)
        rows = rows_of(search.arrivals, search.other_ways)
        if subjects is not None:
            subjects += [(text_of([node.path()]), value) for node, value in search.subjects]
    # Small objects of libraries are not shown.
    beyond = model.LIBRARY, UNNAMED
    rows = tuple(row for row in rows if row.bytes >= LEAST or not row.path.startswith(beyond))
    explained = Holders(rows).explained()
    # Of shared memory, the part counts that is in this process's memory.
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


class _SearchForPaths(Search):
    def __init__(self, most_objects: int, most_seconds: float) -> None:
        super().__init__(most_objects, most_seconds)
        self.arrivals: Arrivals = {}
        self.other_ways: dict[int, list[PathNode]] = {}
        self.is_too_deep = False
        self.subjects: list[tuple[PathNode, Any]] = []
        self._unnamed = 0
        self._own: dict[PathNode, Arrival] = {}
        # Every object is held until the end, so that no other object gets its address.
        self.seen: dict[int, Any] = {}
        # Models come before all other waiting objects.
        self._models, self._waiting = deque[tuple[PathNode, Any]](), deque[tuple[PathNode, Any]]()

    def run(self, names: Sequence[Root], *, is_thorough: bool) -> None:
        with suppress(SearchEnded):
            for precedence, group in groupby(
                sorted(names, key=self._order), key=attrgetter("precedence")
            ):
                for root in group:
                    self.arrive(PathNode(None, "", precedence), root.name, root.value)
                self._look_at_all()
            self._look_into_all(self.modules, Precedence.MODULE)
            if is_thorough:
                self._look_beyond_names()
        # A tensor that has an array's memory counts with the array.
        for first, key, size in self.overlapping(self.arrivals):
            joined = *self.arrivals[first], *self.arrivals.pop(key)
            self.arrivals[first] = [replace(arrival, bytes=size) for arrival in joined]
        self._add_own()

    def _look_into_all(self, modules: Mapping[str, ModuleType], precedence: Precedence) -> None:
        for name, module in modules.items():
            fields = fields_of(module)
            self.seen[id(fields)] = fields
            for key, value in list(fields.items()):
                if not is_dunder(key):
                    self.arrive(PathNode(None, name, precedence), f".{key}", value)
        self._look_at_all()

    def _look_at_all(self) -> None:
        while self._models or self._waiting:
            self._look(*(self._models or self._waiting).popleft())

    def _look_beyond_names(self) -> None:
        """Note memory that the garbage collector knows and no name led to, and the library that holds it."""
        node = PathNode(PathNode(None, "", Precedence.NOBODY), UNNAMED, Precedence.NOBODY)
        for objects in roots.known_to_the_collector():
            roles = {kind: self.kinds[kind].role for kind in set(map(type, objects))}
            have_memory = {
                kind for kind, role in roles.items() if role in {"tensor", "array", "buffers"}
            }
            for held in compress(objects, map(have_memory.__contains__, map(type, objects))):
                if id(held) not in self.seen:
                    self.count()
                    (self._look if roles[type(held)] == "buffers" else self._note)(node, held)
        libraries = roots.modules_of_libraries()
        self.kinds.user_modules |= set(libraries)
        for name, module in libraries.items():
            if self._unnamed < LEAST:
                break
            path = f"{model.LIBRARY}{name.partition('.')[0]}{model.ARROW}{name}"
            self._look_into_all({path: module}, Precedence.LIBRARY)

    def arrive(self, before: PathNode, segment: Segment, value: Any) -> None:
        """Extend a path to an object, and look into the object later unless it has been reached before."""
        traits = self.kinds[type(value)]
        is_text = not before.is_weighed and model.is_big(value)
        if traits.look is None and not traits.role and not is_text:
            return
        key = id(value)
        is_seen = key in self.seen
        if not is_seen:
            self.count()
        if traits.role in {"tensor", "array"}:
            self._note(before.to(segment), value)
        elif not is_seen and traits.is_plain and before.is_weighed and self.is_empty(value):
            return
        if is_seen:
            ways = self.other_ways.setdefault(key, [])
            if len(ways) < _OTHER_WAYS:
                ways.append(before.to(segment))
            return
        node = before.to(segment)
        if node.depth > DEEPEST:
            self.is_too_deep = True
            return
        self.seen[key] = value
        if not node.is_weighed:
            self.apart.add(key)
        if not node.is_whole:
            node.key = key
        is_model = traits.role in {"module", "optimizer"} and node.precedence is Precedence.VARIABLE
        (self._models if is_model else self._waiting).append((node, value))

    def _note(self, node: PathNode, value: Any) -> None:
        is_array = self.kinds[type(value)].role == "array"
        size = arrays.size_of(value, is_array=is_array)
        if is_array:
            value = arrays.owner_of(value)
        traits = self.kinds[type(value)]
        if traits.role != "tensor" and node.kind == "tensors":
            node = node.of(traits.held)
            node.depth -= 1  # a view by NumPy is as near as a view by PyTorch
        for key, memory in self.memory_of(value):
            if traits.role == "buffers":
                self.count()
            if memory.bytes:
                shaped = memory if memory.shape or traits.role != "tensor" else value
                shown = size if node.kind in {"tensors", "NumPy"} else math.inf
                self._add(key, Arrival(node, memory.bytes, memory.dtype, shaped, shown=shown))

    def _add(self, key: Key, arrival: Arrival) -> None:
        before = self.arrivals.setdefault(key, [])
        is_new, is_unnamed = not before, arrival.node.precedence is Precedence.NOBODY
        if is_new and is_unnamed:
            self._unnamed += arrival.bytes
        elif len(before) == 1 and not is_unnamed and before[0].node.precedence is Precedence.NOBODY:
            self._unnamed -= before[0].bytes
        if is_new or not is_unnamed:
            before.append(arrival)

    def _note_own(self, node: PathNode, value: Any) -> None:
        """Note the bytes of one of Python's own objects, with all that is below it unless that has names."""
        traits = self.kinds[type(value)]
        is_own = traits.is_plain or traits.role == "array" or type(value) in ATOMS
        if node.is_weighed or not is_own:
            return
        kind: Any = next((base for base in type(value).__mro__ if base in _OWN_TYPES), object)
        has_few_keys = issubclass(kind, dict) and dict.__len__(value) <= FEW_KEYS
        has_names = kind is object or has_few_keys
        below = not node.is_whole and (not has_names or self.is_empty(value))
        size = self.weigh(value, below=below)
        node.is_weighed = below
        if known := self._own.get(node):
            self._own[node] = replace(known, bytes=known.bytes + size)
            return
        is_container = not node.is_whole and bool(CONTAINERS & {*kind.__mro__})
        items = kind.__len__(value) if is_container else 1
        name = "" if node.is_whole or kind is object else kind.__name__
        name += f" of {items:,} items" if items > 1 else ""
        dtype = ", ".join(filter(None, (name, "about" if self.is_estimate else "")))
        # The key of an array itself is its address.
        memory = arrays.HeapMemory(-id(value), size, (), dtype)
        self._own[node] = Arrival(node, size, dtype, memory, items)

    def _add_own(self) -> None:
        """Add an arrival for each name with many bytes of Python's own objects, its small parts included."""
        least = max(LEAST, _LEAST_SHARE * sum(arrival.bytes for arrival in self._own.values()))
        for node in sorted(self._own, key=attrgetter("depth"), reverse=True):
            held, around = self._own[node], self._own.get(node.before or node)
            if held.bytes < least and around is not None and node.before is not None:
                self._own[node.before] = replace(around, bytes=around.bytes + held.bytes)
            elif held.bytes >= LEAST:
                self._add((held.tensor.key, "cpu"), replace(held, node=node.of("Python objects")))

    def _order(self, root: Root) -> tuple[int, int]:
        """Return a sort key: the biggest models come first, so that none is named by a part of it."""
        if self.kinds[type(root.value)].role != "module":
            return root.precedence, 0
        return root.precedence, -sum(1 for _ in tensors.modules_in(root.value))

    def _look(self, node: PathNode, value: Any) -> None:
        traits = self.kinds[type(value)]
        try:
            self._note_own(node, value)
            if traits.role == "module":
                self._look_into_module(node, value)
            elif traits.role == "optimizer":
                self.subjects.append((node, value))
                for name, held in tensors.states_in(value):
                    self.arrive(node.of("optimizer states", name), "", held)
                for segment, held in kept_fields(value, frozenset({"state"})):
                    self.arrive(node, segment, held)
            elif traits.role == "buffers":
                self._note(node, value)
            else:
                if traits.role == "frame":  # everything in it has its name
                    node = node.of(traits.held, traits.held)
                for segment, held in traits.look(value) if traits.look is not None else ():
                    self.arrive(node, segment, held)
        except Exception:  # noqa: BLE001  (an odd object is taken as empty)
            return

    def _look_into_module(self, node: PathNode, model: Any) -> None:
        """Follow a model: parameters, buffers and gradients are its own, other fields as of any object."""
        self.subjects.append((node, model))
        for path, module in list(tensors.modules_in(model)):
            own = node
            if module is not model:
                own = node.to(path)
                own.key = id(module)
                if id(module) in self.seen:
                    self.other_ways.setdefault(id(module), []).append(own)
                self.seen[id(module)] = module
                self.count()
            for kind, name, tensor in tensors.own_tensors(module):
                self.arrive(node.of(kind, path + name), "", tensor)
                gradient = None if tensor is None else tensors.gradient_of(tensor)
                if gradient is not None:
                    self.arrive(node.of("gradients", path + name), "", gradient)
            for segment, held in kept_fields(module, tensors.PARTS_OF_MODULE):
                self.arrive(own, segment, held)
