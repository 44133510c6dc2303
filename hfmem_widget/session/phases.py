"""What kind of span made the highest peak, within each outermost span."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hfmem_widget.session.model import Phase, Span
from hfmem_widget.session.same import same

MOST_ROOTS = 500
MOST_PHASES = 40
"""Names that a user gives to blocks are without bound."""


class Phases:
    """Adds up finished spans by kind, and keeps the worst of each: in a fixed amount of memory.

    Parameters
    ----------
    by_root : mapping of int to iterable of Phase, optional
        What is known already, by the id of the outermost span.
    """

    def __init__(self, by_root: Mapping[int, Iterable[Phase]] = MappingProxyType({})) -> None:
        self._by_root: dict[int, dict[tuple[str, str], Phase]] = {
            root: {(phase.kind, phase.label): phase for phase in phases}
            for root, phases in by_root.items()
        }

    def __eq__(self, other: object) -> bool:
        return same(self._by_root, other._by_root) if isinstance(other, Phases) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __getstate__(self) -> dict[str, Any]:
        return {"_by_root": {root: phases.copy() for root, phases in self._by_root.items()}}

    def add(self, root: int, span: Span) -> None:
        """Take in a finished span that lies within the outermost span `root`."""
        phases = self._by_root.setdefault(root, {})
        key = (span.kind, span.label if span.kind == "block" else "")
        known = phases.get(key)
        if known is None:
            if len(phases) >= MOST_PHASES:
                return
            known = Phase(span.kind, key[1])
            while len(self._by_root) > MOST_ROOTS:
                del self._by_root[next(iter(self._by_root))]
        highest = dict(known.highest)
        for series, peak in span.peaks.items():
            if series not in highest or peak.value > highest[series].peaks[series].value:
                highest[series] = span
        phases[key] = replace(
            known,
            count=known.count + 1,
            seconds=known.seconds + span.duration,
            highest=highest,
        )

    def within(self, root: int) -> tuple[Phase, ...]:
        """Return the phases within an outermost span, in the order in which the first of each ended."""
        return tuple(self._by_root.get(root, {}).values())
