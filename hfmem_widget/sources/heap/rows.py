"""From the paths to each storage to rows: alike paths told as one, each storage counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hfmem_widget.sources.heap.model import Holder, Kind
from hfmem_widget.sources.heap.paths import ARROW, Segment
from hfmem_widget.sources.heap.roots import Rank

MOST_ALSO = 4
MOST_PARTS = 8
_SAMPLED = 64
_LONGEST = 110
_CALLS_KEPT = 2

Pattern = tuple[str, ...]


class Place:
    """A step of a path; it knows the one before, and so the whole."""

    __slots__ = ("before", "depth", "is_graph", "key", "kind", "part", "rank", "segment")

    def __init__(self, before: Place | None, segment: Segment, rank: Rank) -> None:
        self.before = before
        self.segment = segment
        self.rank = rank
        self.depth: int = 0 if before is None else before.depth + 1
        self.is_graph: bool = before is not None and before.is_graph
        self.kind: Kind = "tensors" if before is None else before.kind
        self.part: str = "" if before is None else before.part
        self.key = 0

    def to(self, segment: Segment) -> Place:
        """Return the place one step further; a graph, and what a model owns, have no path within."""
        return self if self.is_graph or self.part else Place(self, segment, self.rank)

    def into_graph(self) -> Place:
        """Return the place of the graph that made a tensor."""
        step = Place(self, "", self.rank)
        step.is_graph = True
        return self if self.is_graph else step

    def of(self, kind: Kind, part: str, rank: Rank) -> Place:
        """Return the place of a model's or an optimizer's own tensor."""
        step = Place(self, "", rank)
        step.kind, step.part = kind, part
        return step

    def segments(self) -> list[Segment]:
        """Return the path, from the name on."""
        told: list[Segment] = []
        place: Place | None = self
        while place is not None:
            if place.segment:
                told.append(place.segment)
            place = place.before
        return told[::-1]

    def order(self) -> tuple[int, int, bool]:
        """Return what the one to name has least of."""
        return self.rank, self.depth, self.is_graph


@dataclass(frozen=True, slots=True)
class Arrival:
    """A path that led to a storage."""

    place: Place
    bytes: int
    dtype: str
    tensor: Any


@dataclass(slots=True)
class Found:
    """What a search found.

    Attributes
    ----------
    arrivals : dict
        By storage and device, in the order of the search.
    other_ways : dict
        By an object's address: places from which it was reached again.
    too_deep : bool
    """

    arrivals: dict[tuple[int, str], list[Arrival]] = field(default_factory=dict)
    other_ways: dict[int, list[Place]] = field(default_factory=dict)
    too_deep: bool = False


@dataclass(slots=True)
class _Group:
    kind: Kind
    device: str
    paths: list[list[Segment]] = field(default_factory=list)
    owners: list[Arrival] = field(default_factory=list)
    others: list[Place] = field(default_factory=list)


def rows_of(found: Found) -> tuple[Holder, ...]:
    """Return the rows, biggest first."""
    groups: dict[tuple[Pattern, Kind, str], _Group] = {}
    for (_, device), arrivals in found.arrivals.items():
        first = min(arrivals, key=lambda one: one.place.order())
        path = first.place.segments()
        kind = first.place.kind
        group = groups.setdefault((_pattern(path), kind, device), _Group(kind, device))
        group.paths.append(path)
        group.owners.append(first)
        if len(group.others) < _SAMPLED:
            group.others += [one.place for one in arrivals if one is not first][:_SAMPLED]
    rows = [_row(group, pattern, found) for (pattern, _, _), group in groups.items()]
    return tuple(sorted(rows, key=lambda one: -one.bytes))


def _row(group: _Group, pattern: Pattern, found: Found) -> Holder:
    biggest = max(group.owners, key=lambda one: one.bytes)
    through = [one for one in group.owners if one.place.is_graph]
    return Holder(
        path=_told_together(group.paths),
        kind=group.kind,
        device=group.device,
        bytes=sum(one.bytes for one in group.owners),
        tensors=len(group.owners),
        shape=_shape_of(biggest.tensor),
        dtype=biggest.dtype,
        graph_bytes=sum(one.bytes for one in through),
        graphs=len({id(one.place) for one in through}),
        also=_also(group, pattern, found),
        parts=_parts(group),
        pattern="".join(pattern),
    )


def _also(group: _Group, pattern: Pattern, found: Found) -> tuple[str, ...]:
    others = list(group.others)
    seen: set[int] = set()
    for arrival in group.owners[:_SAMPLED]:
        place: Place | None = arrival.place
        while place is not None and id(place) not in seen:
            seen.add(id(place))
            if place.key:
                ways = found.other_ways.get(place.key, ())
                others += [way for way in ways if not _goes_through(way, place.key)]
            place = place.before
    paths: dict[Pattern, list[list[Segment]]] = {}
    for other in sorted(others, key=Place.order):
        path = other.segments()
        # Within itself is no other name, and what one error keeps goes together.
        of_one_error = other.rank is Rank.ERROR and path[0] == pattern[0]
        if _pattern(path)[: len(pattern)] != pattern and not of_one_error:
            paths.setdefault(_pattern(path), []).append(path)
    return tuple(map(_told_together, list(paths.values())[:MOST_ALSO]))


def _goes_through(place: Place | None, key: int) -> bool:
    """Tell a way back into itself from another way."""
    while place is not None:
        if place.key == key:
            return True
        place = place.before
    return False


def _parts(group: _Group) -> tuple[tuple[str, int], ...]:
    sizes: Counter[str] = Counter()
    for arrival, path in zip(group.owners, group.paths, strict=True):
        part = arrival.place.part
        sizes[_first_level(part) if part else _told_together([path])] += arrival.bytes
    return tuple(sizes.most_common(MOST_PARTS)) if len(sizes) > 1 else ()


def _first_level(part: str) -> str:
    """Return the part of a model that a parameter belongs to: ``.layers[3]`` of ``.layers[3].mlp.weight``."""
    names = part.split(".")
    return f".{names[1]}" if len(names) > 2 else part


def _pattern(path: Sequence[Segment]) -> Pattern:
    return tuple("[*]" if isinstance(one, tuple) else one for one in path)


def _told_together(paths: Sequence[Sequence[Segment]]) -> str:
    """Return alike paths as one, such as ``losses[0..99]``."""
    text = ""
    for at, segment in enumerate(paths[0]):
        if isinstance(segment, tuple):
            keys = {path[at][0] for path in paths}
            text += f"[{_keys_text(keys)}]"
        else:
            text += segment
    return text if len(text) <= _LONGEST else _shortened(text)


def _shortened(text: str) -> str:
    """Return a long path without calls in its middle; if that does not do, without letters there."""
    calls = text.split(ARROW)
    if len(calls) > 2 * _CALLS_KEPT:
        text = ARROW.join((*calls[:_CALLS_KEPT], "\u2026", *calls[-_CALLS_KEPT:]))
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}\u2026{text[-half:]}"


def _keys_text(keys: set[Any]) -> str:
    numbers = sorted(key for key in keys if isinstance(key, int))
    if len(keys) == 1:
        return str(next(iter(keys)))
    if len(numbers) == len(keys):
        whole = numbers[-1] - numbers[0] + 1 == len(numbers)
        return f"{numbers[0]}..{numbers[-1]}" + ("" if whole else f", {len(numbers):,} of them")
    return f"{min(map(str, keys))}, \u2026 {len(keys):,} keys"


def _shape_of(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in tensor.shape)
    except Exception:  # noqa: BLE001  (nested tensors have none)
        return ()
