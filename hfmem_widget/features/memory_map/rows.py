"""How segments are laid out as bars in rows, on one scale, and blocks too fine to see are put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from hfmem_widget.features.memory_map.fragmentation import LABELS, Piece, Place
from hfmem_widget.features.memory_map.segments import Segment

WIDTH = 720
"""Units across; a unit is about a pixel where there is room."""

ROWS = 8
"""Rows that would hold everything if nothing were left free at their ends."""

GAP = 2.0
"""Units between neighbouring bars."""

NARROW = 5.0
"""Units below which a segment has no bar of its own: such ones stand end to end."""

COARSE_BARS = 8
"""Times as many where there is little room for pieces."""


SLIVER = 0.1
"""Of the finest length: what is shorter waits to be drawn with what comes after it."""

Pieces = tuple[Piece, ...]

_ORDER = {name: place for place, name in enumerate(LABELS)}


@dataclass(frozen=True, slots=True)
class Bar:
    """A segment, or several narrow ones end to end.

    Attributes
    ----------
    pieces : tuple of (str, int)
        Names of parts and bytes, from left to right.
    segments : tuple of Segment
        What it stands for; the same ones where narrow segments take several bars.
    row : int
        From 0, at the top of its place.
    left : float
        Units.
    """

    pieces: Pieces
    segments: tuple[Segment, ...]
    row: int = 0
    left: float = 0.0

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(size for _, size in self.pieces)


@dataclass(frozen=True, slots=True)
class Layout:
    """Bars of all places of a device.

    Attributes
    ----------
    full : float
        Bytes across all of the width.
    places : tuple of (Place, tuple of Bar)
    finest : float
        Neighbouring blocks that are smaller than so many bytes were put together.
    """

    full: float
    places: tuple[tuple[Place, tuple[Bar, ...]], ...]
    finest: float


def layout(places: Sequence[Place], most: int) -> Layout:
    """Lay out the segments of a device in at most about `most` pieces."""
    total = sum(place.reserved for place in places)
    largest = max((place.segments[0].size for place in places), default=0)
    full = _full_width(largest, total / ROWS)
    made_of: list[Sequence[Pieces]] = [place.pieces for place in places]
    coarse = 1.0
    while True:
        finest = coarse * full / WIDTH
        # What was put together stays together, so each round has fewer pieces than the one before.
        made_of = [[_joined(merged(one, finest)) for one in place] for place in made_of]
        laid = tuple(
            (place, _bars(place, one, full, coarse))
            for place, one in zip(places, made_of, strict=True)
        )
        count = sum(len(bar.pieces) for _, bars in laid for bar in bars)
        if count <= most or coarse > WIDTH:
            return Layout(full, laid, finest)
        coarse *= 2


def _full_width(largest: int, wanted: float) -> float:
    """Return the bytes across a row: at least those wanted, and as many of the largest bars as fit whole."""
    if not largest:
        return 1.0
    abreast = max(1, math.ceil(wanted / largest))
    return abreast * largest * WIDTH / (WIDTH - (abreast - 1) * GAP)


def merged(found: Iterable[Piece], finest: float) -> Iterator[Piece]:
    """Put neighbours together that are alike, or too small to be seen; the sums stay what they are."""
    waiting = _Waiting(finest)
    for name, run in groupby(found, key=_name):
        size = sum(size for _, size in run)
        if size >= finest:
            yield from waiting.drain()
            yield name, size
        elif waiting.take(name, size):
            yield from waiting.drain()
    yield from waiting.drain(everything=True)


class _Waiting:
    """Small pieces that wait until they are together as long as the finest that is drawn."""

    def __init__(self, finest: float) -> None:
        self._finest = finest
        self._sums: dict[str, int] = {}

    def take(self, name: str, size: int) -> bool:
        """Take a piece in, and say whether there is enough."""
        self._sums[name] = self._sums.get(name, 0) + size
        return sum(self._sums.values()) >= self._finest

    def drain(self, *, everything: bool = False) -> Iterator[Piece]:
        """Yield what there is; what would be a sliver waits for more of its kind."""
        least = 0 if everything else self._finest * SLIVER
        ready = {name: size for name, size in self._sums.items() if size >= least}
        self._sums = {name: size for name, size in self._sums.items() if size < least}
        yield from sorted(ready.items(), key=lambda one: _ORDER[one[0]])


def _bars(place: Place, made_of: Sequence[Pieces], full: float, coarse: float) -> tuple[Bar, ...]:
    finest, narrow = coarse * full / WIDTH, min(coarse, COARSE_BARS) * NARROW * full / WIDTH
    wide = sum(one.size >= narrow for one in place.segments)
    bars = [
        Bar(made, (one,)) for one, made in zip(place.segments[:wide], made_of[:wide], strict=True)
    ]
    narrow_ones = place.segments[wide:]
    if narrow_ones:
        strip = _joined(merged(chain.from_iterable(made_of[wide:]), finest))
        bars += [Bar(part, narrow_ones) for part in _cut(strip, int(full))]
    return tuple(_placed(bars, full))


def _placed(bars: Iterable[Bar], full: float) -> Iterator[Bar]:
    """Yield bars in rows as words in lines: each in the first row that has room for it."""
    ends: list[float] = []
    for bar in bars:
        width = bar.size * WIDTH / full
        row = next((row for row, end in enumerate(ends) if end + width <= WIDTH + 0.01), len(ends))
        if row == len(ends):
            ends.append(0.0)
        yield replace(bar, row=row, left=ends[row])
        ends[row] += width + GAP


def _cut(found: Sequence[Piece], size: int) -> Iterator[Pieces]:
    """Yield pieces in stretches of `size` bytes; the last one may be shorter."""
    stretch: list[Piece] = []
    room = size
    for name, whole in found:
        left = whole
        while left:
            taken = min(left, room)
            stretch.append((name, taken))
            left -= taken
            room -= taken
            if not room:
                yield tuple(stretch)
                stretch, room = [], size
    if stretch:
        yield tuple(stretch)


def _joined(found: Iterable[Piece]) -> Pieces:
    return tuple((name, sum(size for _, size in run)) for name, run in groupby(found, key=_name))


def _name(piece: Piece) -> str:
    return piece[0]
