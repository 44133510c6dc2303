"""What was found: texts and figures alone, so that a result keeps nothing alive."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hfmem_widget.display import Shown

Kind = Literal[
    "weights", "buffers", "gradients", "optimizer states", "tensors",
    "NumPy", "pandas", "polars", "Arrow", "PIL", "Python objects", "shared memory",
]  # fmt: skip

GRAPHS_SHARE = 0.25
"""The least share of a row's bytes that graphs alone keep, for detached tensors to be advised."""

_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


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
    """Of how many storages, each counted once in all rows together: of tensors, arrays or buffers. Of
    Python's own objects the items of the containers that have the name."""
    shape: tuple[int, ...]  # of the one with most bytes; of Arrow and polars the whole table's
    dtype: str  # of the one with most bytes; Arrow and polars have none
    graph_bytes: int = 0  # how much of it is kept through autograd graphs alone
    graphs: int = 0  # how many tensors have those graphs
    also: tuple[str, ...] = ()
    """Other names that reach some of the same; the memory stays until they are gone too."""
    parts: tuple[tuple[str, int], ...] = ()  # the biggest within it, with their bytes
    pattern: str = ""
    """The path without the numbers and keys in brackets, the same however many of them there are."""

    @property
    def is_of_graphs(self) -> bool:
        """Whether graphs alone keep so much of it that storing detached tensors helps."""
        return GRAPHS_SHARE * self.bytes <= self.graph_bytes > 0


@dataclass(frozen=True, slots=True)
class Remainder:
    """Bytes that are allocated on a device, and that no tensor that was reached explains."""

    device: str
    bytes: float
    is_host: bool


@dataclass(frozen=True, slots=True)
class Holders(Shown):
    """Which names keep which memory, biggest first.

    Attributes
    ----------
    rows : tuple of Holder
    remainders : tuple of Remainder
        Of each device whose reading was handed in.
    seconds : float
        How long it took to look.
    objects : int
        How many objects were looked at.
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
        """Return what names hold more now than in an earlier search.

        A row is the same in both if its path is, but for the numbers and keys in brackets:
        ``losses[0..49]`` has grown to ``losses[0..99]``.
        """
        then = {_key(row): row for row in earlier.rows}
        now = {_key(row): row for row in self.rows}
        # A dict with few keys has a row for each key, a dict with many keys one row for all of them.
        loose = Counter[_Key]()
        for key in then.keys() - now.keys():
            loose[_without_keys(key)] += then[key].bytes
        rows = []
        for key, row in now.items():
            if key in then:
                before, tensors = then[key].bytes, then[key].tensors
            else:
                before, tensors = min(loose[_without_keys(key)], row.bytes), 0
                loose[_without_keys(key)] -= before
            more = (row.bytes - before, row.tensors - tensors)
            rows.append(Grown(row.path, row.kind, row.device, *more, row.bytes))
        return Growth(
            tuple(sorted((row for row in rows if row.bytes > 0), key=lambda row: -row.bytes)),
            loose.total() - sum(row.bytes for row in rows if row.bytes < 0),
            self.seconds,
            self.bound or earlier.bound,
        )

    def explained(self) -> Mapping[str, int]:
        """Return how many bytes the rows explain, by device."""
        sizes = Counter[str]()
        for row in self.rows:
            sizes[row.device] += row.bytes
        return sizes


_Key = tuple[str, Kind, str]


def _key(row: Holder) -> _Key:
    return row.pattern or row.path, row.kind, row.device


def _without_keys(key: _Key) -> _Key:
    """Return a row's key with ``[*]`` for every index and key in its path."""
    return _IN_BRACKETS.sub("[*]", key[0]), *key[1:]


@dataclass(frozen=True, slots=True)
class Grown:
    """One name, or several alike, that holds more on one device than before; named as in `Holder`."""

    path: str
    kind: Kind
    device: str
    bytes: int  # how many more
    tensors: int  # how many more storages; negative where few big ones took the place of many
    now: int  # bytes it holds at the later moment


@dataclass(frozen=True, slots=True)
class Growth(Shown):
    """Which names hold more than at an earlier moment, those that grew most first.

    Attributes
    ----------
    rows : tuple of Grown
    freed : int
        Bytes that other names hold less than then.
    seconds : float
        How long the later search took.
    bound : str
        Why it, or the earlier one, ended early, as a sentence; empty if neither did.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.features.holders.html:growth_bundle"

    rows: tuple[Grown, ...]
    freed: int = 0
    seconds: float = 0.0
    bound: str = ""
