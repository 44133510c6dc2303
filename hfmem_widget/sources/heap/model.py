"""Paths through the heap, and the results of a search: texts and figures alone, which keep nothing alive."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, ClassVar, Final, Literal

from hfmem_widget.display import Shown

Kind = Literal[
    "weights", "buffers", "gradients", "optimizer states", "tensors",
    "NumPy", "pandas", "polars", "Arrow", "PIL", "Python objects", "shared memory",
]  # fmt: skip

ARROW = " \u2192 "

Segment = str | tuple[int] | tuple[str, int]
"""Text; or the index, or the key as text and hash, of an item of a container whose items share a row."""

Held = tuple[Segment, Any]
"""The next segment of a path, and the object it leads to."""

UNNAMED = "objects that no name leads to"
LIBRARY = "the library "
"""Begins the path of memory that a library holds: ``the library torch → torch._dynamo``."""

GRAPH: Final = "<graph>"
"""The step from a tensor to the graph that made it, compared by identity; a graph has a single path."""

TEXTS = frozenset({str, bytes, bytearray})
BIG = 2**16
"""The characters or bytes from which on a text has a row of its own."""

NUMBERS = frozenset({int, float, complex, bool, range, slice, CodeType})
NUMBERS |= {type(None), type(...), type(NotImplemented)}
"""Numbers and other types whose objects hold no object that a person would call memory."""

ATOMS = TEXTS | NUMBERS
"""Types at whose objects every path ends."""

GRAPHS_SHARE = 0.25
"""The least share of a row's bytes that graphs alone keep, for detached tensors to be advised."""

_FIRST_NAME = re.compile(r"Out\[\d+\]|the error of cell \[\d+\]|[^.\[{\u2192]*[^.\[{\u2192 ]")
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def is_big(value: Any) -> bool:
    """Return whether an object is a text with a row of its own."""
    return type(value) in TEXTS and len(value) >= BIG


def is_of_jupyter(module: object) -> bool:
    """Return whether a module of this name runs the notebook and its event loop, or is ours."""
    ours = {"IPython", "asyncio", "ipykernel", "hfmem_widget"}
    return type(module) is str and module.partition(".")[0] in ours


@dataclass(frozen=True, slots=True)
class Holder:
    """One name, or several alike, and the memory that it holds on one device."""

    path: str
    """From a name that a person knows, such as ``losses[0..99]`` or ``the error of cell [7] → train() → x``.
    Text from outside: to be escaped where it is shown."""
    kind: Kind
    device: str  # such as "cuda:0", "cpu"; "managed" for mapped files and pinned memory
    bytes: int
    tensors: int
    """The number of storages of tensors, arrays or buffers, each counted in one row only. Of Python's own
    objects the items of the containers that have the name."""
    shape: tuple[int, ...]  # of the storage with most bytes; of Arrow and polars the whole table's
    dtype: str  # of the storage with most bytes; empty for Arrow and polars
    graph_bytes: int = 0  # the part of `bytes` that autograd graphs alone keep
    graphs: int = 0  # the number of tensors that have those graphs
    also: tuple[str, ...] = ()
    """Other names that reach some of the same memory, which stays until they are gone too."""
    parts: tuple[tuple[str, int], ...] = ()  # the biggest parts, with their bytes
    views: int = 0  # the number of objects with this name that are views of a part of a storage
    copied: int = 0  # the bytes that this name would hold if these were copies
    pattern: str = ""
    """The path without the numbers and keys in brackets, and so the same for any number of them."""

    @property
    def is_of_graphs(self) -> bool:
        """Whether graphs alone keep so much of the bytes that storing detached tensors helps."""
        return GRAPHS_SHARE * self.bytes <= self.graph_bytes > 0


def first_name(path: str) -> str:
    """Return the name that a path begins with, such as ``losses`` or ``Out[7]``; else the path."""
    match = _FIRST_NAME.match(path)
    return path if match is None else match[0]


def joined(path: str, rows: Sequence[Holder]) -> Holder:
    """Return one row with the sums of some rows."""
    fields = ("bytes", "tensors", "graph_bytes", "graphs", "views", "copied")
    sums = {field: sum(getattr(row, field) for row in rows) for field in fields}
    return replace(rows[0], path=path, **sums)


@dataclass(frozen=True, slots=True)
class Remainder:
    """Allocated bytes of a device that belong to no tensor that the search reached."""

    device: str
    bytes: float
    is_host: bool


@dataclass(frozen=True, slots=True)
class Holders(Shown):
    """The names that keep memory, biggest first.

    Attributes
    ----------
    rows : tuple of Holder
    remainders : tuple of Remainder
        One for each device whose allocated bytes are known.
    seconds : float
        The duration of the search.
    objects : int
        The number of objects inspected.
    bound : str
        Why the search ended early, as a sentence; empty if it did not.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.holders.html:holders_bundle"

    rows: tuple[Holder, ...]
    remainders: tuple[Remainder, ...] = ()
    seconds: float = 0.0
    objects: int = 0
    bound: str = ""

    def of(self, device: str) -> Holders:
        """Return the rows and the remainder of one device."""
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.device == device),
            remainders=tuple(rest for rest in self.remainders if rest.device == device),
        )

    def since(self, earlier: Holders) -> Growth:
        """Return the names that hold more now than in an earlier search.

        Paths that differ only in numbers and keys count as one: ``losses[0..49]`` grew to ``losses[0..99]``.
        """
        then = {_key(row): row for row in earlier.rows}
        now = {_key(row): row for row in self.rows}
        # A dict with few keys has a row for each key, a dict with many keys one row for all of them.
        unmatched = Counter[_Key]()
        for key in then.keys() - now.keys():
            unmatched[_without_keys(key)] += then[key].bytes
        rows = []
        for key, row in now.items():
            if key in then:
                before, tensors = then[key].bytes, then[key].tensors
            else:
                before, tensors = min(unmatched[_without_keys(key)], row.bytes), 0
                unmatched[_without_keys(key)] -= before
            more = (row.bytes - before, row.tensors - tensors)
            rows.append(Grown(row.path, row.kind, row.device, *more, row.bytes))
        return Growth(
            tuple(sorted((row for row in rows if row.bytes > 0), key=lambda row: -row.bytes)),
            unmatched.total() - sum(row.bytes for row in rows if row.bytes < 0),
            self.seconds,
            self.bound or earlier.bound,
        )

    def explained(self) -> Counter[str]:
        """Return the bytes of the rows by device."""
        sizes = Counter[str]()
        for row in self.rows:
            sizes[row.device] += row.bytes
        return sizes


_Key = tuple[str, Kind, str]


def _key(row: Holder) -> _Key:
    return row.pattern or row.path, row.kind, row.device


def _without_keys(key: _Key) -> _Key:
    return _IN_BRACKETS.sub("[*]", key[0]), *key[1:]


@dataclass(frozen=True, slots=True)
class Grown:
    """One name, or several alike, that holds more on one device than before; named as in `Holder`."""

    path: str
    kind: Kind
    device: str
    bytes: int  # added
    tensors: int  # storages added; negative where few big ones took the place of many
    now: int  # bytes held at the later moment


@dataclass(frozen=True, slots=True)
class Growth(Shown):
    """The names that hold more than at an earlier moment, those that grew most first.

    Attributes
    ----------
    rows : tuple of Grown
    freed : int
        The bytes by which other names have shrunk.
    seconds : float
        The duration of the later search.
    bound : str
        Why it, or the earlier one, ended early, as a sentence; empty if neither did.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.holders.html:growth_bundle"

    rows: tuple[Grown, ...]
    freed: int = 0
    seconds: float = 0.0
    bound: str = ""
