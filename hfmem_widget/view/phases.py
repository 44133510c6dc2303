"""The phases of a watched span: a row for each kind, with its highest peak."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hfmem_widget.analysis.facts import active_devices
from hfmem_widget.session import Peak, Phase, Session, Span, SpanKind
from hfmem_widget.text import format_count, format_duration, plain
from hfmem_widget.view.html import fold
from hfmem_widget.view.line import peak_text
from hfmem_widget.view.table import Column, Row, table

MOST_IN_SIGHT = 8  # more rows than these are folded away
LEAST_RIVALS = 3  # of fewer steps none is called the worst

_ORDER: tuple[SpanKind, ...] = (
    *("train", "step", "forward", "backward", "optimizer", "substep"),
    *("evaluate", "predict", "load", "shard", "save", "block"),
)
"""The kinds that are worth a row; the others add nothing to these and the card."""

_PARTS = {"forward", "backward", "optimizer", "substep", "shard"}


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The row of one kind of phase."""

    name: str
    is_part: bool  # steps are made of it
    count: int
    seconds: float  # taken together
    device: str  # the key of the one with the highest peak; empty where none is known
    peak: Peak  # of allocated memory
    note: str  # the worst one; empty where that says nothing


def phase_rows(session: Session, span: Span) -> list[PhaseRow]:
    """Return a row for each kind of phase within an outermost span that has something to say."""
    devices = [device.key for device in active_devices(session, span)]
    phases = [
        phase
        for phase in session.phases(span.id)
        if phase.kind in _ORDER and not _is_itself(phase, span) and phase.count
    ]
    phases.sort(key=lambda phase: _ORDER.index(phase.kind))
    return [_row(phase, devices) for phase in phases]


def worst_step_text(session: Session, span: Span) -> str:
    """Return which step rose highest, such as ``worst step 97 (1,024 tokens)``; empty if none did."""
    notes = (row.note for row in phase_rows(session, span) if row.name == "step" and row.note)
    return next(notes, "").replace(":", "", 1)


def phases_html(session: Session, span: Span, *, is_open: bool = False) -> str:
    """Return the rows as a table for the card; empty where there is none.

    Many are folded away, unless the fold `is_open`.
    """
    rows = phase_rows(session, span)
    if not rows:
        return ""
    names_device = len({row.device for row in rows} - {""}) > 1
    columns = [
        *map(Column, ("phase", "count", "time", "highest peak")),
        Column(is_words=True, is_quiet=True),
    ]
    drawn = table(columns, [_shown(row, names_device=names_device) for row in rows], size=12)
    if len(rows) <= MOST_IN_SIGHT:
        return drawn.html
    return fold(f"{len(rows)} phases", drawn, is_open=is_open).html


def _is_itself(phase: Phase, span: Span) -> bool:
    """Return whether a phase is only the span whose phases these are."""
    return (phase.kind, phase.count) == (span.kind, 1) and all(
        highest.id == span.id for highest in phase.highest.values()
    )


def _row(phase: Phase, devices: list[str]) -> PhaseRow:
    peaks = {
        device: phase.highest[key].peaks[key]
        for device in devices
        if (key := f"{device}/allocated") in phase.highest
    }
    device = max(peaks, key=lambda device: peaks[device].value, default="")
    worst = phase.highest.get(f"{device}/allocated") if device else None
    return PhaseRow(
        name=plain(phase.label) or phase.kind,
        is_part=phase.kind in _PARTS,
        count=phase.count,
        seconds=phase.seconds,
        device=device,
        peak=peaks.get(device, Peak(math.nan, "sampled")),
        note=_note(worst) if phase.kind == "step" and phase.count >= LEAST_RIVALS else "",
    )


def _note(worst: Span | None) -> str:
    if worst is None:
        return ""
    counts = worst.counts
    number = counts.get("step", math.nan)
    name = f"step {number:.0f}" if math.isfinite(number) else plain(worst.label)
    tokens = counts.get("largest_batch", counts.get("tokens", math.nan))
    return f"worst: {name}" + (f" ({format_count(tokens)} tokens)" if tokens > 0 else "")


def _shown(row: PhaseRow, *, names_device: bool) -> Row:
    peak = "" if math.isnan(row.peak.value) else peak_text(row.peak)
    notes = (row.device if names_device and peak else "", row.note)
    note = " \u00b7 ".join(text for text in notes if text)
    cells = (row.name, format_count(row.count), format_duration(row.seconds), peak, note)
    return Row(cells, is_indented=row.is_part)
