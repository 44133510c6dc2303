"""The spans of a session, the highest samples since each open one began, and totals by kind."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, TypeVar

from hfmem_widget.display import Shown
from hfmem_widget.session.model import FINE_KINDS, Growing, Phase, Span
from hfmem_widget.session.steps import size_of

NOTHING = -math.inf
"""The highest of no values."""

MOST_ROWS = 64
"""Rows that wait until the highs are asked for: many at once cost hardly more than one."""

Key = TypeVar("Key", bound=Hashable)
Row = Sequence[float]


class Highs(dict[Key, list[Row]]):
    """The highest value of each column of rows, since each key was opened.

    Each key has only the rows that came before the next key was opened, so the cost of a row does not depend
    on the number of open keys. The highs since a key was opened are those of its own rows and of all later
    keys' rows. A closed key's rows go to the key before it.
    """

    def newest(self) -> Key | None:
        """Return the open key that was opened last."""
        return next(reversed(self), None)

    def open(self, key: Key, row: Row) -> None:
        """Open a key: keep the highs from now on, `row` included."""
        self[key] = [row]

    def note(self, *rows: Row) -> None:
        """Add rows, which may be longer than earlier ones; NaN is never a high."""
        for rows_of_newest in reversed(self.values()):
            _add(rows_of_newest, *rows)
            break

    def since(self, key: Key) -> list[float]:
        """Return the highest values since a key was opened, `NOTHING` for none; empty if it is closed."""
        return next((highs for other, highs in self.highs_by_key() if other == key), [])

    def highs_by_key(self) -> Iterator[tuple[Key, list[float]]]:
        """Yield each open key with the highest values since it was opened, the newest first."""
        highs: list[float] = []
        for key, rows in reversed(self.items()):
            own = highest_of(rows)
            rows[:] = [own]
            highs = highest_of([own, highs]) if highs else own
            yield key, highs

    def close(self, key: Key) -> list[float]:
        """Close a key and return the highest values since it was opened."""
        if key == self.newest():  # nearly always true, and half the time of the general way
            highs = highest_of(self.pop(key))
            if self:
                self.note(highs)
            return highs
        highs, order = self.since(key), list(self)
        place, own = order.index(key), self.pop(key)
        if place:
            _add(self[order[place - 1]], own[0])
        return highs

    def drop(self, key: Key) -> None:
        """Close a key, if it is open."""
        if key in self:
            self.close(key)


def _add(rows: list[Row], *new: Row) -> None:
    rows += new
    if len(rows) >= MOST_ROWS:
        rows[:] = [highest_of(rows)]


def highest_of(rows: Sequence[Row]) -> list[float]:
    """Return the highest value of each column, `NOTHING` for none; rows may be of different lengths."""
    # The empty row comes first: `max` returns a NaN only if it is the first argument.
    return list(map(max, zip_longest((), *rows, fillvalue=NOTHING)))


MOST_READINGS = 40_000
"""The most readings in all spans together: the more series, the fewer spans."""

MOST_ROOTS = 500
MOST_PHASES = 40
"""The most phases of an outermost span: a user may name any number of blocks."""


class SpanTuple(tuple[Span, ...], Shown):
    """Spans, which show themselves as a table."""

    __slots__ = ()
    _shown_by = "hfmem_widget.view.card:spans_bundle"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001  (IPython's)
        # IPython has a printer for tuples, and would not ask for the text of the bundle.
        del cycle
        printer.text(self._repr_mimebundle_()["text/plain"])


def outermost(spans: Iterable[Span]) -> list[Span]:
    """Return the spans without a parent, such as cells."""
    return [span for span in spans if span.parent is None]


def inside(spans: Iterable[Span], root: int) -> tuple[Span, ...]:
    """Return the span with id `root` and those within it; `spans` are in order of opening."""
    spans_inside: dict[int, Span] = {}
    for span in spans:
        if span.id == root or span.parent in spans_inside:
            spans_inside.setdefault(span.id, span)
    return tuple(spans_inside.values())


class Spans(Growing):
    """Spans by id, in order of opening.

    `highs` has the highest samples of each open span by its id, beginning with the span's `before`. `coarse`
    has the spans whose kind is not in `FINE_KINDS`.
    """

    _compared = ("_by_id",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._by_id: dict[int, Span] = {}
        self.coarse: dict[int, Span] = {}
        self.highs: Highs[int] = Highs()
        for span in spans:
            self.add(span)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Span]:
        return iter(tuple(self._by_id.values()))

    def __getstate__(self) -> dict[str, Any]:
        known = {"_by_id": self._by_id.copy(), "coarse": self.coarse.copy()}
        return {**known, "highs": deepcopy(self.highs)}

    @property
    def open(self) -> tuple[Span, ...]:
        """The spans that have not ended, outermost first."""
        return tuple(self._by_id[span_id] for span_id in self.highs)

    def get(self, span_id: int | None) -> Span | None:
        """Return a span by its id; None if there is none."""
        return None if span_id is None else self._by_id.get(span_id)

    def within(self, span_id: int) -> tuple[Span, ...]:
        """Return the open spans that were opened in an open span, innermost first."""
        if self.highs.newest() in {None, span_id}:
            return ()
        return inside(self.open, span_id)[:0:-1]

    def add(self, span: Span) -> None:
        """Add a span, or replace the one with the same id; highs are kept for spans that have not ended."""
        self._by_id[span.id] = span
        if span.kind not in FINE_KINDS:
            self.coarse[span.id] = span
        if span.stop is not None:
            self.highs.drop(span.id)
        elif span.id not in self.highs:
            self.highs.open(span.id, span.before.values)

    def forget_old(self, width: int) -> None:
        """Drop the oldest spans if there are too many for `width` series; first those of `FINE_KINDS`."""
        if len(self._by_id) * max(1, width) <= MOST_READINGS:
            return
        closed = [at for at, span in self._by_id.items() if span.stop is not None]
        fine = [at for at in closed if at not in self.coarse]
        # An eighth is dropped at once, since the search takes time in proportion to all spans.
        for at in (fine or closed)[: max(1, len(closed) // 8)]:
            del self._by_id[at]
            self.coarse.pop(at, None)


class Phases(Growing):
    """Totals of finished spans by kind, with the worst of each, by the id of their outermost span."""

    _compared = ("_by_root",)

    def __init__(self, by_root: Mapping[int, Iterable[Phase]] = MappingProxyType({})) -> None:
        self._by_root: dict[int, dict[tuple[str, str], Phase]] = {
            root: {(phase.kind, phase.label): _copy(phase) for phase in phases}
            for root, phases in by_root.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return vars(Phases({root: self.within(root) for root in tuple(self._by_root)}))

    def add(self, root: int, span: Span) -> None:
        """Add a finished span that lies within the outermost span `root`."""
        phases, key = self._by_root.setdefault(root, {}), (span.kind, span.name)
        phase = phases.get(key)
        if phase is None:
            if len(phases) >= MOST_PHASES:
                return
            phase = phases[key] = Phase(*key)
            while len(self._by_root) > MOST_ROOTS:
                del self._by_root[next(iter(self._by_root))]
        size = size_of(span.counts)  # very short steps and forward passes share spans
        phase.count += size
        phase.seconds += span.duration
        phase.steps += (
            size == 1 if span.kind == "step" else span.kind == "forward" and span.name != ""
        )
        for series, peak in span.peaks.items():
            highest = phase.highest.get(series)
            if highest is None or peak.value > highest.peaks[series].value:
                phase.highest[series] = span

    def add_parts(self, root: int, parts: Iterable[str]) -> None:
        """Add the kinds of the parts of a step that lies within the outermost span `root`."""
        phases = self._by_root.get(root, {})
        for kind in parts:
            if (phase := phases.get((kind, ""))) is not None:
                phase.steps += 1

    def within(self, root: int) -> tuple[Phase, ...]:
        """Return the phases within an outermost span, in the order in which the first of each ended."""
        return tuple(map(_copy, tuple(self._by_root.get(root, {}).values())))


def _copy(phase: Phase) -> Phase:
    return replace(phase, highest=phase.highest.copy())
