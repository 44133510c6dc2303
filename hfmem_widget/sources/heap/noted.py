"""The names of a moment, in texts and figures alone, so that new names and growth are found later."""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from operator import not_
from typing import Any

from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.sources.heap.paths import ATOMS, TEXTS
from hfmem_widget.sources.heap.roots import Root

_FIRST_NAME = re.compile(r"Out\[\d+\]|the error of cell \[\d+\]|[^.\[{\u2192]*[^.\[{\u2192 ]")


def first_name(path: str) -> str:
    """Return the name that a path begins with, such as ``losses`` or ``Out[7]``; else the path."""
    match = _FIRST_NAME.match(path)
    return path if match is None else match[0]


def joined(path: str, rows: Sequence[Holder]) -> Holder:
    """Return one row with the sums of some rows."""
    fields = ("bytes", "tensors", "graph_bytes", "graphs")
    sums = {field: sum(getattr(row, field) for row in rows) for field in fields}
    return replace(rows[0], path=path, **sums)


def lengths_of(namespace: Mapping[str, object]) -> dict[str, int]:
    """Return the length of each list and deque that a variable names."""
    # In C, as in `_bound`.
    are_lists = map({list, deque}.__contains__, map(type, namespace.values()))
    pairs: Iterator[tuple[str, Any]] = zip(namespace, namespace.values(), strict=False)
    return {name: len(items) for name, items in list(compress(pairs, are_lists))}


class NotedNames:
    """The names of a moment, each with the object it named, as a hash of 8 bytes.

    Names of numbers and the like are left out: in a notebook with 100,000 names these are most of them.
    """

    def __init__(self, namespace: Mapping[str, object], others: Iterable[Root] = ()) -> None:
        self._hashes = array("q", map(hash, _bindings(namespace, others)))

    def __len__(self) -> int:
        return len(self._hashes)

    def new(self, namespace: Mapping[str, object], others: Iterable[Root] = ()) -> set[str]:
        """Return the names that are new, or name another object, as far as an address can tell."""
        hashes = set(self._hashes)
        bindings = list(_bindings(namespace, others))
        return {binding[0] for binding in bindings if hash(binding) not in hashes}


def _bindings(namespace: Mapping[str, object], others: Iterable[Root]) -> Iterator[tuple[str, int]]:
    """Return the names that a path can begin with, each with the address of its object."""
    outputs = namespace.get("Out")
    numbered = list(_bound(outputs)) if type(outputs) is dict else []
    return chain(
        _bound(namespace),
        [(f"Out[{number}]", address) for number, address in numbered],
        [(root.name, id(root.value)) for root in others],
    )


def _bound(names: Mapping[Any, object]) -> Iterator[tuple[Any, int]]:
    # In C from end to end: nothing is copied, and no other thread comes in between.
    may_hold = map(not_, map((ATOMS - TEXTS).__contains__, map(type, names.values())))
    return compress(zip(names, map(id, names.values()), strict=False), may_hold)
