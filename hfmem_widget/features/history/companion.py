"""Adds each watch that has ended to the history, as figures and words."""

from __future__ import annotations

from collections.abc import Mapping

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING, Facts, facts_of
from hfmem_widget.analysis.findings import findings_of
from hfmem_widget.analysis.record_of import measured_in
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
        self, options: WatchOptions | None = None, screen: Screen | None = None, *, log: Log = LOG
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
    read, over = measured_in(session, span)
    ranks = read.ranks
    facts = facts_of(read, over)[: None if ranks is None else 1]
    moved = [each for each in facts if _has_moved(each)]
    moved = moved or sorted(facts, key=lambda each: each.peak.value)[-1:]
    found = [finding for finding in findings_of(session, span) if finding.span_id == span.id]
    found = found if ranks is None else [*read.findings, *found]
    return CellRun(
        kernel,
        None if cell is None else cell.number,
        name,
        identity,
        span.kind,
        plain(span.outcome),
        session.started_at + span.start,
        span.duration,
        tuple(map(_use_of, moved[:MOST_DEVICES])),
        tuple((each.kind, plain(each.title, SENTENCE)) for each in found[:MOST_FINDINGS]),
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


def _use_of(facts: Facts) -> DeviceUse:
    peak = facts.peak
    return DeviceUse(facts.device.key, facts.before, facts.after, peak.value, peak.certainty)


def _has_moved(facts: Facts) -> bool:
    return abs(facts.left_behind) >= NEXT_TO_NOTHING or facts.above_start >= NEXT_TO_NOTHING
