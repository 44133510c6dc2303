"""The spans of a session, the highest samples since each open one began, and what their kinds add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hfmem_widget.display import Shown
from hfmem_widget.session.highs import Highs
from hfmem_widget.session.model import FINE_KINDS, Growing, Phase, Span
from hfmem_widget.session.steps import size_of

MOST_READINGS = 40_000
"""Readings kept in spans, over all of them: the more series there are, the fewer spans."""

MOST_ROOTS = 500
MOST_PHASES = 40
"""Phases of an outermost span at most: a user may give any number of names to blocks."""


class SpanTuple(tuple[Span, ...], Shown):
    """Spans, which show themselves as a table."""

    __slots__ = ()
    _shown_by = "hfmem_widget.view.card:spans_bundle"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001  (IPython's)
        # IPython knows how to print tuples, and asks nothing else for their text.
        del cycle
        printer.text(self._repr_mimebundle_()["text/plain"])


def outermost(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that were watched; all others lie within them."""
    return [span for span in spans if span.parent is None]


def inside(spans: Iterable[Span], root: int) -> tuple[Span, ...]:
    """Return the span that has an id, and those within it, of some that are in order of opening."""
    spans_inside: dict[int, Span] = {}
    for span in spans:
        if span.id == root or span.parent in spans_inside:
            spans_inside.setdefault(span.id, span)
    return tuple(spans_inside.values())


class Spans(Growing):
    """Spans in order of opening, by id; `highs` has the highest samples since each open one began, by its id.

    Of one that is open when it is handed in, the highest sample so far is taken from its `before`. `coarse`
    are those that are not of a step.
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
        """Add a span, or replace the one with its id; the highs of one that has not ended are kept."""
        self._by_id[span.id] = span
        if span.kind not in FINE_KINDS:
            self.coarse[span.id] = span
        if span.stop is not None:
            self.highs.drop(span.id)
        elif span.id not in self.highs:
            self.highs.open(span.id, span.before.values)

    def forget_old(self, width: int) -> None:
        """Let the oldest spans go where there are very many for so many series: first those of steps."""
        if len(self._by_id) * max(1, width) <= MOST_READINGS:
            return
        closed = [at for at, span in self._by_id.items() if span.stop is not None]
        fine = [at for at in closed if at not in self.coarse]
        # An eighth at once: looking for them takes as long as there are spans.
        for at in (fine or closed)[: max(1, len(closed) // 8)]:
            del self._by_id[at]
            self.coarse.pop(at, None)


class Phases(Growing):
    """Finished spans added up by kind, with the worst of each, by the id of the outermost around them."""

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
        size = size_of(span.counts)  # very short steps, and passes of models, come in groups
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
