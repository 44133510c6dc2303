"""The base of both searches of the heap: how objects of a type are followed, and the bounds of a search."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from hfmem_widget.sources.heap import arrays, tensors
from hfmem_widget.sources.heap.model import Kind
from hfmem_widget.sources.heap.own import Scales, basic_size, sizer
from hfmem_widget.sources.heap.paths import ATOMS
from hfmem_widget.sources.heap.referents import CONTAINERS, Look, in_object, look_into, unnamed
from hfmem_widget.sources.heap.roots import user_modules
from hfmem_widget.sources.procfs import MappedFiles
from hfmem_widget.sources.storages import MANAGED, storages_of

Key = tuple[int, str]
"""Identifies memory: its address, or that of the object that owns it, and the device."""

MOST_OBJECTS = 3_000_000
MOST_SECONDS = 10.0

_BETWEEN_LOOKS_AT_THE_CLOCK = 256
_LEVELS = 3
_NOTHING = ATOMS | {type}
_FEW_REFERENTS = 16
"""The most referents of an object that is looked through at once: an instance, its dict, a list in that."""


class SearchEnded(BaseException):
    """A bound was reached. It is not an `Exception`, so that it ends all loops of a search."""


class Traits(NamedTuple):
    """How the objects of one type are followed; `look` is None if they hold nothing of interest."""

    look: Look | None
    role: Literal[arrays.Role, "tensor", "module", "optimizer"] = ""
    is_plain: bool = False
    held: Kind = "tensors"
    size_of: Callable[[Any], int] = basic_size


class TraitsOfTypes(dict[type, Traits]):
    """The `Traits` of each type, computed once. It refers to no search, which would keep itself."""

    def __init__(self, modules: Collection[str]) -> None:
        super().__init__()
        self.user_modules = {"__main__", *modules}

    def __missing__(self, type_: type) -> Traits:
        tensor, module, optimizer = tensors.kinds()
        look = look_into(type_, self.user_modules)
        if issubclass(type_, tensor):
            traits = Traits(tensors.in_tensor, "tensor")
        elif tensors.is_node(type_):
            traits = Traits(unnamed(tensors.in_node))
        elif type_ is tensors.type_in("torch", "_C._autograd.SavedTensor"):
            traits = Traits(unnamed(tensors.in_saved))
        elif role := (role_and_kind := arrays.role_of(type_))[0]:
            traits = Traits(arrays.LOOKS.get(role), role, held=role_and_kind[1])
        elif issubclass(type_, module):
            traits = Traits(look, "module")
        elif issubclass(type_, optimizer):
            traits = Traits(look, "optimizer")
        else:
            is_container = look is not None and bool(CONTAINERS & {*type_.__mro__})
            is_plain = is_container or look is in_object
            size_of = sizer(type_) if is_plain or type_ in ATOMS else basic_size
            traits = Traits(look, is_plain=is_plain, size_of=size_of)
        self[type_] = traits
        return traits


class Search(Scales):
    """The bounds and the known types of one search; everything it refers to is freed with it."""

    def __init__(self, most_objects: int, most_seconds: float) -> None:
        super().__init__()
        self.modules = user_modules()
        self.kinds: TraitsOfTypes = TraitsOfTypes(self.modules)
        self.objects = 0
        """Objects counted so far."""
        self.bound = ""
        """The bound that was reached, as a sentence; empty if none was."""
        self.where: dict[Key, tuple[int, int]] = {}
        """The addresses of the beginning and the end of memory that other objects may share."""
        self._mapped = MappedFiles()
        self._most_objects = most_objects
        self._until = time.perf_counter() + most_seconds

    def count(self) -> None:
        """Count an object; raise `SearchEnded` if there are too many, or time is up."""
        self.objects += 1
        if self.objects >= self._most_objects:
            self.bound = f"the search ended early, after {self.objects:,} objects"
        elif self.objects % _BETWEEN_LOOKS_AT_THE_CLOCK == 0 and time.perf_counter() > self._until:
            self.bound = f"the search ran out of time after {self.objects:,} objects"
        if self.bound:
            raise SearchEnded

    def memory_of(self, value: Any) -> Iterator[tuple[Key, arrays.HeapMemory]]:
        """Yield the memory of a tensor, a table, an image, or an array that is not a view."""
        traits = self.kinds[type(value)]
        if traits.role == "tensor":
            for number, device, size, dtype in storages_of(value):
                start, is_shared = arrays.lent_or_shared(value) if device == "cpu" else (0, False)
                memory = arrays.HeapMemory(number, size, (), dtype, start)
                yield self._keyed(memory, MANAGED if is_shared else device)
            return
        is_array = traits.role == "array"
        memories = [arrays.memory_of(value)] if is_array else arrays.buffers_of(value, traits.held)
        for memory in memories:
            is_mapped = memory.is_lent and self._mapped.hold(memory.start, 0)
            yield self._keyed(memory, MANAGED if is_mapped else "cpu")

    def _keyed(self, memory: arrays.HeapMemory, device: str) -> tuple[Key, arrays.HeapMemory]:
        key = memory.key, device
        if memory.start and memory.bytes:
            self.where[key] = memory.start, memory.start + memory.bytes
        return key, memory

    def overlapping(self, keys: Collection[Key]) -> Iterator[tuple[Key, Key, int]]:
        """Yield memory that overlaps other memory, such as a tensor that was made of an array.

        Yields the memory that begins first, the part, and the bytes from the beginning to the part's end.
        """
        first, end = (0, ""), 0
        spans = [item for item in self.where.items() if item[0] in keys]
        for key, (start, stop) in sorted(spans, key=itemgetter(1)):
            if start >= end:
                first, end = key, stop
            else:
                end = max(end, stop)
                yield first, key, end - self.where[first][0]

    def is_empty(self, value: object, deeper: int = _LEVELS) -> bool:
        """Return whether a plain object holds only numbers and text, as most do.

        The garbage collector knows everything that it holds, without creating its ``__dict__``. At most
        `deeper` levels are looked through, and only objects with few referents.
        """
        referents = gc.get_referents(value)
        if _NOTHING.issuperset(map(type, referents)):  # one pass in C
            return True
        deeper = deeper if len(referents) <= _FEW_REFERENTS else 0
        for held in referents:
            kind = type(held)
            if kind in _NOTHING:
                continue
            if deeper and self.kinds[kind].is_plain:
                if not self.is_empty(held, deeper - 1):
                    return False
            elif not issubclass(kind, type):
                return False
        return True
