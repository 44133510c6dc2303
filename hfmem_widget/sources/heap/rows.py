"""The rows of a table of holders: alike paths share a row, and each storage is counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hfmem_widget.sources.heap.model import Holder, Kind
from hfmem_widget.sources.heap.paths import ARROW, GRAPH, Segment
from hfmem_widget.sources.heap.roots import Rank

MOST_ALSO = 4
MOST_PARTS = 8
_SAMPLED = 64
_LONGEST = 110
_CALLS_KEPT = 2
_DEEPEST_PART, _NEARLY_ALL = 12, 0.9

Path = list[Segment]
Pattern = tuple[str, ...]


class Place:
    """A path: its last segment, and the place before."""

    __slots__ = (
        *("before", "depth", "is_graph", "is_weighed", "is_whole"),
        *("key", "kind", "part", "rank", "segment"),
    )

    def __init__(self, before: Place | None, segment: Segment, rank: Rank) -> None:
        self.before = before
        self.segment: Segment = "" if segment is GRAPH else segment
        self.rank = rank
        self.depth: int = 0 if before is None else before.depth + 1
        self.is_graph: bool = segment is GRAPH or (before is not None and before.is_graph)
        self.kind: Kind = "tensors" if before is None else before.kind
        self.part: str = "" if before is None else before.part
        # Within a graph, what a model owns and what a library holds, all paths are this one.
        self.is_whole: bool = self.is_graph or bool(self.part)
        self.is_whole |= rank is Rank.LIBRARY and self.depth > 1
        # What libraries hold is looked through for memory of other kinds alone.
        self.is_weighed: bool = rank is Rank.LIBRARY if before is None else before.is_weighed
        self.key = 0

    def to(self, segment: Segment) -> Place:
        """Return the next place, which is the same one within a whole."""
        if self.is_graph or (self.is_whole and segment is not GRAPH):
            return self
        return Place(self, segment, self.rank)

    def of(self, kind: Kind, part: str, rank: Rank) -> Place:
        """Return the place of a model's or an optimizer's own tensor."""
        place = Place(self, "", rank)
        place.kind, place.part, place.is_whole = kind, part, place.is_whole or bool(part)
        return place

    def back(self) -> Iterator[Place]:
        """Yield this place and those before it, back to the name."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.before

    def path(self) -> Path:
        """Return the path, from the name on."""
        return [place.segment for place in self.back() if place.segment][::-1]

    def order(self) -> tuple[int, int, bool]:
        """Return a sort key: of several places, the lowest is named."""
        return self.rank, self.depth, self.is_graph


@dataclass(frozen=True, slots=True)
class Arrival:
    """A path that led to a storage."""

    place: Place
    bytes: int
    dtype: str
    tensor: Any
    items: int = 1


Arrivals = dict[tuple[int, str], list[Arrival]]
"""By a storage's key and device, in the order of the search."""

OtherWays = Mapping[int, Sequence[Place]]
"""By an object's address: places from which it was reached again."""

_Group = list[tuple[Path, Arrival, list[Arrival]]]
"""Storages with alike paths: the path of each, the arrival that is named, and all arrivals."""


def rows_of(found: Arrivals, other_ways: OtherWays) -> tuple[Holder, ...]:
    """Return the rows, biggest first."""
    groups: dict[tuple[Pattern, Kind, str], _Group] = {}
    for (_, device), arrivals in found.items():
        owner = min(arrivals, key=lambda arrival: arrival.place.order())
        path = owner.place.path()
        group = groups.setdefault((_pattern(path), owner.place.kind, device), [])
        group.append((path, owner, arrivals))
    rows = [_row(*key, group, other_ways) for key, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _row(pattern: Pattern, kind: Kind, device: str, group: _Group, other_ways: OtherWays) -> Holder:
    paths = [path for path, _, _ in group]
    owners = [owner for _, owner, _ in group]
    others: list[Place] = []
    for _, owner, arrivals in group:
        if len(others) < _SAMPLED:
            others += [each.place for each in arrivals if each is not owner][:_SAMPLED]
    biggest = max(owners, key=lambda owner: owner.bytes)
    through_graphs = [owner for owner in owners if owner.place.is_graph]
    return Holder(
        path=text_of(paths),
        kind=kind,
        device=device,
        bytes=sum(owner.bytes for owner in owners),
        tensors=sum(owner.items for owner in owners),
        shape=_shape_of(biggest.tensor),
        dtype=biggest.dtype,
        graph_bytes=sum(owner.bytes for owner in through_graphs),
        graphs=len({id(owner.place) for owner in through_graphs}),
        also=_also(pattern, [*others, *_ways_round(owners, other_ways)]),
        parts=_parts(owners, paths),
        pattern="".join(pattern),
    )


def _ways_round(owners: Sequence[Arrival], other_ways: OtherWays) -> Iterator[Place]:
    """Yield the other places from which objects on the owners' paths were reached, without cycles."""
    seen: set[int] = set()
    for owner in owners[:_SAMPLED]:
        for place in owner.place.back():
            if id(place) in seen:
                break
            seen.add(id(place))
            if place.key:
                for way in other_ways.get(place.key, ()):
                    if all(step.key != place.key for step in way.back()):
                        yield way


def _also(pattern: Pattern, others: Sequence[Place]) -> tuple[str, ...]:
    paths: dict[Pattern, list[Path]] = {}
    for other in sorted(others, key=Place.order):
        path = other.path()
        # A path within the row itself is no other name; nor is another path through the same error.
        of_one_error = other.rank is Rank.ERROR and path[0] == pattern[0]
        is_name = not of_one_error and other.rank is not Rank.NOBODY
        if _pattern(path)[: len(pattern)] != pattern and is_name:
            paths.setdefault(_pattern(path), []).append(path)
    return tuple(map(text_of, islice(paths.values(), MOST_ALSO)))


def _parts(owners: Sequence[Arrival], paths: Sequence[Path]) -> tuple[tuple[str, int], ...]:
    sizes: Counter[str] = Counter()
    total = sum(owner.bytes for owner in owners)
    for deeper in range(2, _DEEPEST_PART):
        sizes.clear()
        for owner, path in zip(owners, paths, strict=True):
            # The part of a model that a parameter belongs to: ".layers[3]" of ".layers[3].mlp.weight".
            names = owner.place.part.split(".")
            name = ".".join(names[: min(deeper, max(len(names) - 1, 2))])
            sizes[name or text_of([path])] += owner.bytes
        # A wrapper, such as PEFT's, DDP's or a compiled model, has all or nearly all of it in one part.
        if max(sizes.values()) < _NEARLY_ALL * total:
            break
    return tuple(sizes.most_common(MOST_PARTS)) if len(sizes) > 1 else ()


def _pattern(path: Path) -> Pattern:
    return tuple("[*]" if isinstance(segment, tuple) else segment for segment in path)


def text_of(paths: Sequence[Path]) -> str:
    """Return alike paths as one, such as ``losses[0..99]``; a long one is shortened in the middle."""
    text = ""
    for place, segment in enumerate(paths[0]):
        if isinstance(segment, tuple):
            keys = {key for path in paths for key in path[place]}
            text += f"[{_keys_text(keys)}]"
        else:
            text += segment
    calls = text.split(ARROW)
    if len(text) > _LONGEST and len(calls) > 2 * _CALLS_KEPT:
        text = ARROW.join((*calls[:_CALLS_KEPT], "\u2026", *calls[-_CALLS_KEPT:]))
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}\u2026{text[-half:]}"


def _keys_text(keys: set[Any]) -> str:
    if len(keys) == 1:
        return str(*keys)
    numbers = sorted(key for key in keys if isinstance(key, int))
    if len(numbers) == len(keys):
        whole = numbers[-1] - numbers[0] + 1 == len(numbers)
        return f"{numbers[0]}..{numbers[-1]}" + ("" if whole else f", {len(numbers):,} of them")
    return f"{min(map(str, keys))}, \u2026 {len(keys):,} keys"


def _shape_of(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in tensor.shape)
    except Exception:  # noqa: BLE001  (nested tensors have none)
        return ()
