"""The spans of a session, and the highest samples since each that is open began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from hfmem_widget.session.highs import Highs
from hfmem_widget.session.model import FINE_KINDS, Span
from hfmem_widget.session.same import same

MOST_READINGS = 40_000
"""Readings kept in spans, over all of them: the more series there are, the fewer spans."""


class Spans:
    """Spans in order of opening, by id.

    Parameters
    ----------
    spans : iterable of Span
        In order of opening. Of one that is open, the highest sample so far is taken from its `before`.
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._by_id: dict[int, Span] = {}
        self._open: Highs[int] = Highs()
        for span in spans:
            self.add(span)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._by_id.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        return same(self._by_id, other._by_id)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __getstate__(self) -> dict[str, Any]:
        return {"_by_id": self._by_id.copy(), "_open": deepcopy(self._open)}

    @property
    def open(self) -> tuple[Span, ...]:
        """The spans that have not ended, outermost first."""
        return tuple(self._by_id[span_id] for span_id in self._open)

    @property
    def innermost(self) -> int | None:
        """The id of the open span that was opened last."""
        return self._open.newest()

    def get(self, span_id: int | None) -> Span | None:
        """Return a span by its id; None if there is none."""
        return None if span_id is None else self._by_id.get(span_id)

    def is_open(self, span_id: int) -> bool:
        """Return whether there is such a span and it has not ended."""
        return span_id in self._open

    def within(self, span_id: int) -> tuple[Span, ...]:
        """Return the open spans that were opened in an open span, innermost first."""
        if self.innermost in {None, span_id}:
            return ()
        inside: dict[int, Span] = {}
        for span in self.open:
            if span.parent == span_id or span.parent in inside:
                inside[span.id] = span
        return tuple(reversed(inside.values()))

    def highs(self, span_id: int) -> list[float]:
        """Return the highest sample of each series since an open span began; empty once it has ended."""
        return self._open.since(span_id)

    def take_highs(self, span_id: int) -> list[float]:
        """Return them for the last time: the span is about to end."""
        return self._open.close(span_id)

    def note(self, values: Sequence[float]) -> None:
        """Take the values of a sample into the highs of the open spans."""
        self._open.note(values)

    def add(self, span: Span) -> None:
        """Take in a span; if it has not ended, its highs are kept from now on."""
        self._by_id[span.id] = span
        if span.stop is None:
            self._open.open(span.id, span.before.values)

    def replace(self, span: Span) -> None:
        """Put a span in the place of the one with its id."""
        self._by_id[span.id] = span
        if span.stop is not None:
            self._open.drop(span.id)

    def forget_old(self, width: int) -> None:
        """Let the oldest spans go where there are very many for so many series: first those of steps."""
        if len(self._by_id) * max(1, width) <= MOST_READINGS:
            return
        closed = [one for one in self._by_id.values() if one.stop is not None]
        fine = [one for one in closed if one.kind in FINE_KINDS]
        # An eighth at once: looking for them takes as long as there are spans.
        for span in (fine or closed)[: max(1, len(closed) // 8)]:
            del self._by_id[span.id]
