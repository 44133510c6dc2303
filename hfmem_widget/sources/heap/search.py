"""The base of both searches of the heap: how objects are followed and weighed, and the bounds of a search.

The bytes of Python's own objects are those that their types report; no ``__sizeof__`` of a user's class runs.
"""

import functools
import gc
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from types import MethodDescriptorType
from typing import Any, Literal, NamedTuple

from hfmem_widget.sources.heap import arrays, tensors
from hfmem_widget.sources.heap.model import ATOMS, Kind
from hfmem_widget.sources.heap.referents import CONTAINERS, Look, in_object, look_into, unnamed
from hfmem_widget.sources.heap.roots import user_modules
from hfmem_widget.sources.procfs import MappedFiles
from hfmem_widget.sources.storages import MANAGED, shapes_in, storages_of

Key = tuple[int, str]
"""Identifies memory: its address, or that of the object that owns it, and the device."""

MOST_OBJECTS = 3_000_000
MOST_SECONDS = 10.0

_BETWEEN_LOOKS_AT_THE_CLOCK = 256
_LEVELS = 3
_NOTHING = ATOMS | {type}
_CACHE = type(functools.lru_cache(len))
_FEW_REFERENTS = 16
"""The most referents of an object that is looked through at once: an instance, its dict, a list in that."""

_MOST = 2**14  # objects that are weighed for one name; of more, a random sample of this size
_SPREAD = 2 / 3  # the exponent that splits the sample between items and their contents
_DEEPEST = 8  # nested containers
_STEP, _SMALL, _WORD = 16, 512, 8
"""CPython rounds small objects up to `_STEP`, which is also the size of its collector's header."""
_IS_COLLECTED = 1 << 14  # the flag of a type whose objects have that header


def _counted(items: list[Any]) -> Iterator[tuple[Any, int]]:
    for held in items:
        yield held, sys.getrefcount(held)


def _rounded(size: int) -> int:
    return -(-size // _STEP) * _STEP if size <= _SMALL else size


_basic, _dict_at = (vars(type)[name].__get__ for name in ("__basicsize__", "__dictoffset__"))
_plain = type("Plain", (), {})()
_COUNTS_FIELDS = object.__sizeof__(_plain) > _basic(type(_plain))
"""Whether Python's size of an object includes its fields, as in newer versions."""


def basic_size(value: object) -> int:
    """Return the bytes of an object itself, without memory that it has elsewhere."""
    return _rounded(_basic(type(value)))


def sizer(kind: type) -> Callable[[Any], int]:
    """Return a function for the bytes of a type's objects, as CPython allocates them, by a method in C."""
    methods = (vars(base).get("__sizeof__") for base in kind.__mro__)
    own = next(method for method in methods if type(method) is MethodDescriptorType)
    header = _STEP if kind.__flags__ & _IS_COLLECTED else 0
    return lambda value: _rounded(own(value) + header)


_OURS = next(_counted([object()]))[1]


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
            is_plain = is_container or look is in_object or type_ is _CACHE
            size_of = sizer(type_) if is_plain or type_ in ATOMS else basic_size
            traits = Traits(look, is_plain=is_plain, size_of=size_of)
        self[type_] = traits
        return traits


class Search:
    """The bounds and the known types of one search; everything it refers to is freed with it."""

    def __init__(self, most_objects: int, most_seconds: float) -> None:
        self.modules = user_modules()
        self.kinds: TraitsOfTypes = TraitsOfTypes(self.modules)
        self.objects = 0
        """Objects counted so far."""
        self.bound = ""
        """The bound that was reached, as a sentence; empty if none was."""
        self.where: dict[Key, tuple[int, int]] = {}
        """The addresses of the beginning and the end of memory that other objects may share."""
        self.apart: set[int] = set()
        """The addresses of objects that are weighed by themselves, and not with their holders."""
        self.is_estimate = False
        """Whether only a sample of the last object's contents was weighed."""
        self._random = random.Random(0)  # noqa: S311  (a sample, by a generator of its own)
        self._above: set[int] = set()
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
            storages = storages_of(value)
            shapes = shapes_in(value) if len(storages) > 1 else {}
            for number, device, size, dtype in storages:
                start, is_shared = arrays.lent_or_shared(value) if device == "cpu" else (0, False)
                memory = arrays.HeapMemory(number, size, shapes.get(number, ()), dtype, start)
                yield self._keyed(memory, MANAGED if is_shared else device)
            return
        is_array = traits.role == "array"
        memories = [arrays.memory_of(value)] if is_array else arrays.buffers_of(value, traits.held)
        for memory in memories:
            is_mapped = memory.is_lent and self._mapped.hold(memory.start)
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

    def weigh(self, value: Any, *, below: bool) -> int:
        """Return the bytes of an object with its texts and numbers; with `below`, of all its contents.

        Contents that several objects refer to count with an equal share for each.
        """
        self.is_estimate = False
        if self.kinds[type(value)].role == "array":
            return round(self._inside(arrays.objects_in(value), _DEEPEST, _MOST, of_fields=False))
        return round(self._weigh(value, _DEEPEST if below else 0, _MOST))

    def _weigh(self, value: Any, deeper: int, most: int) -> float:
        kind = type(value)
        traits = self.kinds[kind]
        size: int = traits.size_of(value)
        if not traits.is_plain:  # an atom, or memory with rows of another kind
            return size
        self.count()
        items, of_fields = gc.get_referents(value), traits.look is in_object
        if of_fields and _dict_at(kind) and not _COUNTS_FIELDS:
            size += _rounded(_WORD * len(items))
        if issubclass(kind, dict) and len(items) < 2 * dict.__len__(value):
            items += dict.keys(value)  # the collector does not know keys that are texts
        self._above.add(id(value))
        inside = self._inside(items, deeper, most, of_fields=of_fields)
        self._above.discard(id(value))
        return size + inside

    def _inside(self, items: list[Any], deeper: int, most: int, *, of_fields: bool) -> float:
        number = len(items)
        is_flat = ATOMS.issuperset(set(map(type, items)))
        sampled = min(number, most if is_flat else max(round(most**_SPREAD), 1))
        if sampled < number:
            self.is_estimate = True
            items[:] = self._random.sample(items, sampled)  # in place: no other list refers to them
        inside = 0.0
        for held, references in _counted(items):
            is_own = type(held) in ATOMS or (of_fields and type(held) is dict)
            if (is_own or deeper) and id(held) not in self._above and id(held) not in self.apart:
                share = self._weigh(held, max(deeper - 1, 0), max(most // sampled, 1))
                inside += share / max(references - _OURS, 1)
        return inside * number / sampled if sampled else 0.0
