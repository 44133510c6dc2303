"""The bytes of Python's own objects: lists, dicts, texts, numbers, and instances with their fields.

Python's own types report them; no ``__sizeof__`` of a user's class runs.
"""

from __future__ import annotations

import gc
import io
import random
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import MethodDescriptorType
from typing import Any

from hfmem_widget.sources.heap.arrays import objects_in
from hfmem_widget.sources.heap.paths import ATOMS, TEXTS
from hfmem_widget.sources.heap.referents import CONTAINERS, FEW_KEYS, in_object

LEAST = 2**20  # bytes from which on a name has a row
_MOST = 2**14  # objects that are weighed for one name; of more, a random sample of this size
_SPREAD = (
    2 / 3
)  # the exponent that splits the sample between a container's items and their contents
_DEEPEST = 8  # nested containers
_STEP, _SMALL, _WORD = 16, 512, 8
"""CPython rounds small objects up to `_STEP`, which is also the size of its collector's header."""
_IS_COLLECTED = 1 << 14  # the flag of a type whose objects have that header

_OWN_TYPES = {*CONTAINERS, *TEXTS, OrderedDict, array, io.BytesIO, int, float, complex}


def own_type(kind: type) -> type:
    """Return the first of Python's own types with contents among a type's bases; else `object`."""
    return next((base for base in kind.__mro__ if base in _OWN_TYPES), object)


def items_of(value: Any) -> int:
    """Return the number of items of a container; 1 for another object."""
    base: Any = own_type(type(value))
    return base.__len__(value) if CONTAINERS & set(base.__mro__) else 1


def has_named_contents(value: Any) -> bool:
    """Return whether the contents of an object have names: those of fields, or of few keys."""
    kind = own_type(type(value))
    return kind is object or (issubclass(kind, dict) and dict.__len__(value) <= FEW_KEYS)


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


class Scales:
    """Weighs objects for a search; an object with several referrers counts with an equal share for each."""

    kinds: Mapping[type, Any]
    count: Callable[[], None]

    def __init__(self) -> None:
        self._random = random.Random(0)  # noqa: S311  (a sample, by a generator of its own)
        self._above: set[int] = set()
        self.apart: set[int] = set()
        """The addresses of objects that are weighed by themselves, and not with their holders."""
        self.is_estimate = False
        """Whether only a sample of the last object's contents was weighed."""

    def weigh(self, value: Any, *, below: bool) -> int:
        """Return the bytes of an object and of its texts and numbers; with `below`, of all its contents."""
        self.is_estimate = False
        if self.kinds[type(value)].role == "array":
            return round(self._inside(objects_in(value), _DEEPEST, _MOST, of_fields=False))
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
