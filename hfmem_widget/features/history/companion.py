"""Adds each watch that has ended to the history, as figures and words."""

from __future__ import annotations

from collections.abc import Mapping

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING, Facts, facts_of
from hfmem_widget.analysis.findings import findings_of
from hfmem_widget.analysis.record_of import overview_of, whole
from hfmem_widget.features.history.cell import Cell, running_cell
from hfmem_widget.features.history.file import MOST_DEVICES, MOST_FINDINGS, SENTENCE
from hfmem_widget.features.history.log import LOG, Log
from hfmem_widget.features.history.model import UNLABELLED, CellRun, DeviceUse
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span
from hfmem_widget.text import plain
from hfmem_widget.view.screen import Screen

UNNAMED = ("block", "training")
"""What watches are called that were given no label."""


class Historian(Companion):
    """Notes one watch."""

    def __init__(
        self,
        options: WatchOptions | None = None,
        screen: Screen | None = None,
        *,
        log: Log = LOG,
    ) -> None:
        self._log = log
        self._cell: Cell | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note which cell it is in."""
        self._cell = running_cell()

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add it; a file is written on another thread."""
        self._log.add(run_of(session, span, self._cell, self._log.kernel))
        self._log.write()
        return NOTHING


def run_of(session: Session, span: Span, cell: Cell | None, kernel: str) -> CellRun:
    """Return an outermost span that has ended as a row, which refers to nothing of the session."""
    name, identity = _names(span, cell)
    # What started ranks has next to nothing itself: their memory is what the cell is about.
    overview = overview_of(session)
    ranks = None if overview is None else overview.ranks
    facts = facts_of(session, span) if overview is None else facts_of(overview, whole(overview))[:1]
    moved = [each for each in facts if _has_moved(each)]
    moved = moved or sorted(facts, key=lambda each: each.peak.value)[-1:]
    return CellRun(
        kernel,
        None if cell is None else cell.number,
        name,
        identity,
        span.kind,
        plain(span.outcome),
        session.started_at + span.start,
        span.duration,
        tuple(
            DeviceUse(
                each.device.key, each.before, each.after, each.peak.value, each.peak.certainty
            )
            for each in moved[:MOST_DEVICES]
        ),
        tuple(
            (finding.kind, plain(finding.title, SENTENCE))
            for finding in [
                *(() if overview is None else overview.findings),
                *(one for one in findings_of(session, span) if one.span_id == span.id),
            ][:MOST_FINDINGS]
        ),
        None if ranks is None or ranks.worst is None else ranks.worst.rank,
    )


def _names(span: Span, cell: Cell | None) -> tuple[str, str]:
    """Return what to call a watch, and what it has in common with its other runs."""
    label = plain(span.label) or span.kind
    if cell is None:
        return label, f"label {label}"
    own = cell.id or cell.first_line
    # As they are called if they have no label, one by one and under `%memwatch on`.
    if span.kind == "cell" and label.startswith((f"cell [{cell.number}]", f"[{cell.number}]")):
        return cell.first_line or label, f"{UNLABELLED}{own or label}"
    return label, f"label {label}" + (f" in {own}" if label in UNNAMED else "")


def _has_moved(facts: Facts) -> bool:
    return abs(facts.left_behind) >= NEXT_TO_NOTHING or facts.above_start >= NEXT_TO_NOTHING
