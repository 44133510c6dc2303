"""The rows of a table of holders: alike paths share a row, and each storage is counted once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import eq
from typing import Any

from hfmem_widget.sources.heap.model import ARROW, GRAPH, Holder, Kind, Segment
from hfmem_widget.sources.heap.roots import Precedence

MOST_ALSO = 4
MOST_PARTS = 8
_SAMPLED = 64
_LONGEST = 110
_CALLS_KEPT = 2
_DEEPEST_PART, _NEARLY_ALL = 12, 0.9

Path = list[Segment]
Pattern = tuple[str, ...]


class PathNode:
    """The last segment of a path, linked to the node before it."""

    __slots__ = (
        *("before", "depth", "is_graph", "is_weighed", "is_whole"),
        *("key", "kind", "part", "precedence", "segment"),
    )

    def __init__(self, before: PathNode | None, segment: Segment, precedence: Precedence) -> None:
        self.before = before
        self.segment: Segment = "" if segment is GRAPH else segment
        self.precedence = precedence
        self.depth: int = 0 if before is None else before.depth + 1
        self.is_graph: bool = segment is GRAPH or (before is not None and before.is_graph)
        self.kind: Kind = "tensors" if before is None else before.kind
        self.part: str = "" if before is None else before.part
        # Within a graph, a part of a model and memory of a library, all paths are this one.
        self.is_whole: bool = self.is_graph or bool(self.part)
        self.is_whole |= precedence is Precedence.LIBRARY and self.depth > 1
        # Below a library, Python's own objects are not weighed.
        self.is_weighed: bool = before.is_weighed if before else precedence is Precedence.LIBRARY
        self.key = 0

    def to(self, segment: Segment) -> PathNode:
        """Return the next node; within a whole this same node."""
        if self.is_graph or (self.is_whole and segment is not GRAPH):
            return self
        return PathNode(self, segment, self.precedence)

    def of(self, kind: Kind, part: str = "") -> PathNode:
        """Return the node of memory of a kind; a model's or an optimizer's own is named first."""
        is_own = kind in {"weights", "buffers", "gradients", "optimizer states"}
        is_models = is_own and self.precedence is Precedence.VARIABLE
        node = PathNode(self, "", Precedence.MODEL if is_models else self.precedence)
        node.kind, node.part, node.is_whole = kind, part, node.is_whole or bool(part)
        return node

    def back(self) -> Iterator[PathNode]:
        """Yield this node and those before it, back to the name."""
        node: PathNode | None = self
        while node is not None:
            yield node
            node = node.before

    def path(self) -> Path:
        """Return the path, from the name on."""
        return [node.segment for node in self.back() if node.segment][::-1]

    def order(self) -> tuple[int, int, bool]:
        """Return a sort key: of several nodes, the lowest names the memory."""
        return self.precedence, self.depth, self.is_graph


@dataclass(frozen=True, slots=True)
class Arrival:
    """A path that led to a storage."""

    node: PathNode
    bytes: int
    dtype: str
    tensor: Any
    items: int = 1
    shown: float = math.inf  # the bytes that a view shows, of an object that is one


Arrivals = dict[tuple[int, str], list[Arrival]]
"""By a storage's key and device, in the order of the search."""

OtherWays = Mapping[int, Sequence[PathNode]]
"""By an object's address: the nodes from which it was reached again."""

_Group = list[tuple[Path, Arrival, list[Arrival]]]
"""Storages with alike paths: the path of each, the arrival that names it, and all its arrivals."""


def rows_of(all_arrivals: Arrivals, other_ways: OtherWays) -> tuple[Holder, ...]:
    """Return the rows, biggest first."""
    groups: dict[tuple[Pattern, Kind, str], _Group] = {}
    for (_, device), arrivals in all_arrivals.items():
        owner = min(arrivals, key=lambda arrival: arrival.node.order())
        path = owner.node.path()
        group = groups.setdefault((_pattern(path), owner.node.kind, device), [])
        group.append((path, owner, arrivals))
    rows = [_row(*key, group, other_ways) for key, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _row(pattern: Pattern, kind: Kind, device: str, group: _Group, other_ways: OtherWays) -> Holder:
    paths = [path for path, _, _ in group]
    # Every view of a storage keeps it.
    alike = [
        (arrival, path)
        for _, _, arrivals in group
        for arrival in arrivals
        if _pattern(path := arrival.node.path()) == pattern
    ]
    owners = [owner for _, owner, _ in group]
    others: list[PathNode] = []
    for _, owner, arrivals in group:
        if len(others) < _SAMPLED:
            others += [arrival.node for arrival in arrivals if arrival is not owner][:_SAMPLED]
    biggest = max(owners, key=lambda owner: owner.bytes)
    through_graphs = [owner for owner in owners if owner.node.is_graph]
    return Holder(
        path=text_of([path for _, path in alike]),
        kind=kind,
        device=device,
        bytes=sum(owner.bytes for owner in owners),
        tensors=sum(owner.items for owner in owners),
        shape=_shape_of(biggest.tensor),
        dtype=biggest.dtype,
        graph_bytes=sum(owner.bytes for owner in through_graphs),
        graphs=len({id(owner.node) for owner in through_graphs}),
        also=_also(pattern, [*others, *_ways_round(owners, other_ways)]),
        parts=_parts(owners, paths),
        views=sum(arrival.shown < arrival.bytes for arrival, _ in alike),
        copied=sum(_copied(pattern, arrivals) for _, _, arrivals in group),
        pattern="".join(pattern),
    )


def _copied(pattern: Pattern, arrivals: Sequence[Arrival]) -> int:
    """Return what would be held of a storage if each of its views was a copy: all, where others hold it."""
    held, shown = arrivals[0].bytes, sum(arrival.shown for arrival in arrivals)
    is_less = shown < held and all(_pattern(one.node.path()) == pattern for one in arrivals)
    return int(shown) if is_less else held


def _ways_round(owners: Sequence[Arrival], other_ways: OtherWays) -> Iterator[PathNode]:
    """Yield the other nodes from which objects on the owners' paths were reached, without cycles."""
    seen: set[int] = set()
    for owner in owners[:_SAMPLED]:
        for node in owner.node.back():
            if id(node) in seen:
                break
            seen.add(id(node))
            if node.key:
                for way in other_ways.get(node.key, ()):
                    if all(step.key != node.key for step in way.back()):
                        yield way


def _also(pattern: Pattern, others: Sequence[PathNode]) -> tuple[str, ...]:
    paths: dict[Pattern, list[Path]] = {}
    for other in sorted(others, key=PathNode.order):
        known = _pattern(path := other.path())
        # A path within the row itself, or to it, is not another name; nor one through the same error.
        of_one_error = other.precedence is Precedence.ERROR and path[0] == pattern[0]
        is_name = not of_one_error and other.precedence is not Precedence.NOBODY
        if is_name and not all(map(eq, known, pattern)):
            paths.setdefault(known, []).append(path)
    return tuple(map(text_of, islice(paths.values(), MOST_ALSO)))


def _parts(owners: Sequence[Arrival], paths: Sequence[Path]) -> tuple[tuple[str, int], ...]:
    sizes: Counter[str] = Counter()
    total = sum(owner.bytes for owner in owners)
    for deeper in range(2, _DEEPEST_PART):
        sizes.clear()
        for owner, path in zip(owners, paths, strict=True):
            # The part of a model that has a parameter: ".layers[3]" for ".layers[3].mlp.weight".
            names = owner.node.part.split(".")
            name = ".".join(names[: min(deeper, max(len(names) - 1, 2))])
            sizes[name or text_of([path])] += owner.bytes
        # A wrapper, such as PEFT's, DDP's or a compiled model, has nearly all bytes in one part: go deeper.
        if max(sizes.values()) < _NEARLY_ALL * total:
            break
    return tuple(sizes.most_common(MOST_PARTS)) if len(sizes) > 1 else ()


def _pattern(path: Path) -> Pattern:
    return tuple("[*]" if isinstance(segment, tuple) else segment for segment in path)


def text_of(paths: Sequence[Path]) -> str:
    """Return alike paths as one, such as ``losses[0..99]``; a long one is shortened in the middle."""
    text = "".join(
        f"[{_keys_text({path[depth] for path in paths})}]"
        if isinstance(segment, tuple)
        else segment
        for depth, segment in enumerate(paths[0])
    )
    calls = text.split(ARROW)
    if len(text) > _LONGEST and len(calls) > 2 * _CALLS_KEPT:
        text = ARROW.join((*calls[:_CALLS_KEPT], "\u2026", *calls[-_CALLS_KEPT:]))
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}\u2026{text[-half:]}"


def _keys_text(keys: set[Any]) -> str:
    texts = [key for key, *_ in keys]
    if len(keys) == 1:
        return str(*texts)
    numbers = sorted(key for key in texts if isinstance(key, int))
    if len(numbers) == len(keys):
        whole = numbers[-1] - numbers[0] + 1 == len(numbers)
        return f"{numbers[0]}..{numbers[-1]}" + ("" if whole else f", {len(numbers):,} of them")
    return f"{min(map(str, texts))}, \u2026 {len(keys):,} keys"


def _shape_of(tensor: Any) -> tuple[int, ...]:
    with suppress(Exception):  # nested tensors have none
        return tuple(map(int, tensor.shape))
    return ()
