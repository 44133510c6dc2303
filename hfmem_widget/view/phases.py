"""The phases of a watched span: a row for each kind, with its highest peak."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hfmem_widget.analysis.facts import active_devices, end_of
from hfmem_widget.analysis.record import pace_of
from hfmem_widget.session import Peak, Phase, Session, Span, SpanKind
from hfmem_widget.session.recorder import NO_STEP_LABEL
from hfmem_widget.text import format_count, format_counted, format_duration, format_rate, plain
from hfmem_widget.view.chart.lanes import worst_step
from hfmem_widget.view.html import fold
from hfmem_widget.view.line import peak_text
from hfmem_widget.view.table import Column, TableRow, table

MOST_IN_SIGHT = 8  # more rows than these are folded away

_ORDER: tuple[SpanKind, ...] = (
    *("train", "step", "forward", "backward", "optimizer", "substep"),
    *("evaluate", "predict", "load", "shard", "save", "block", "prefill", "decode"),
)
"""The kinds that have a row; the others add nothing to these and the card."""

_WHILE = {
    "evaluate": "in an evaluation",
    "predict": "in a prediction",
    "load": "while a model was loaded",
    "save": "while a checkpoint was saved",
    "prefill": "while the prompt was read",
    "decode": "while tokens were generated",
}
"""The place of a peak outside of steps."""

_PARTS = {"forward", "backward", "optimizer", "substep", "shard", "prefill", "decode"}


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The row of one kind of phase."""

    name: str
    is_part: bool  # of steps
    count: int
    seconds: float  # in total
    device: str  # the key of the device with the highest peak; empty where none is known
    peak: Peak  # of allocated memory
    note: str
    worst: str = ""  # the step that stands out, such as "step 97 (1,024 tokens)"; or empty


def phase_rows(session: Session, span: Span) -> list[PhaseRow]:
    """Return a row for each kind of phase within an outermost span, without uninformative ones."""
    devices = [device.key for device in active_devices(session, span)]
    phases = [
        phase
        for phase in session.phases(span.id)
        if phase.kind in _ORDER and not _is_itself(phase, span) and phase.count
    ]
    steps = sum(phase.count for phase in phases if phase.kind == "step")
    if not steps and any(phase.label == NO_STEP_LABEL for phase in phases):
        phases = [phase for phase in phases if phase.label != NO_STEP_LABEL]
        # A forward pass ends with the next phase: without a backward pass, the first of many stays open.
        if all(phase.kind != "backward" for phase in phases):
            phases = [phase for phase in phases if phase.kind != "forward" or phase.label]
    phases.sort(key=lambda phase: _ORDER.index(phase.kind))
    within = [each for each in session.steps if span.start <= each.start <= end_of(session, span)]
    marked = {device for device in devices if worst_step(within, device) is not None}
    return [_row(phase, devices, steps, marked) for phase in phases]


def where_text(rows: Sequence[PhaseRow], device: str, peak: Peak) -> str:
    """Return the place of a device's peak, such as ``in step 97 (1,024 tokens)``; empty if unknown."""
    highest = (row for row in rows if row.device == device and row.peak.value >= peak.value)
    places = (_WHILE.get(row.name) or f"in {row.worst}" * bool(row.worst) for row in highest)
    return next(filter(None, places), "")


def pace_text(session: Session, span: Span) -> str:
    """Return the throughput of the steps, such as ``34.8 samples/s · 2,804 tokens/s in steps``."""
    pace = pace_of(session, span)
    rates = {"samples": pace.samples_per_second, "tokens": pace.tokens_per_second}
    texts = [f"{format_rate(rate)} {noun}/s" for noun, rate in rates.items() if rate > 0]
    return f"{' · '.join(texts)} in steps" if texts else ""


def phases_html(session: Session, span: Span, *, is_open: bool = False) -> str:
    """Return the rows as a table for the card; empty without any. Many are folded, unless it `is_open`."""
    rows = phase_rows(session, span)
    if not rows:
        return ""
    names_device = len({row.device for row in rows} - {""}) > 1
    columns = [*map(Column, ("phase", "count", "time", "highest peak"))]
    drawn = table(columns, [_shown(row, names_device=names_device) for row in rows], size=12)
    if len(rows) <= MOST_IN_SIGHT:
        return drawn.html
    return fold(f"{len(rows)} phases", drawn, is_open=is_open).html


def _is_itself(phase: Phase, span: Span) -> bool:
    return (phase.kind, phase.count) == (span.kind, 1) and all(
        highest.id == span.id for highest in phase.highest.values()
    )


def _row(phase: Phase, devices: list[str], steps: int, marked: set[str]) -> PhaseRow:
    peaks = {
        device: phase.highest[key].peaks[key]
        for device in devices
        if (key := f"{device}/allocated") in phase.highest
    }
    device = max(peaks, key=lambda device: peaks[device].value, default="")
    worst = phase.highest.get(f"{device}/allocated") if device else None
    return PhaseRow(
        name=plain(phase.label) or phase.kind,
        is_part=phase.kind in _PARTS and not phase.label,
        count=phase.count,
        seconds=phase.seconds,
        device=device,
        peak=peaks.get(device, Peak(math.nan, "sampled")),
        note=_note_of(phase, worst, steps),
        worst=_worst(worst) if phase.kind == "step" and worst and device in marked else "",
    )


def _note_of(phase: Phase, worst: Span | None, steps: int) -> str:
    if phase.kind == "step":
        groups = phase.count - phase.steps if phase.steps else 0
        return f"{format_count(groups)} measured in groups" if groups else ""
    if phase.kind == "forward" and phase.label:
        few = phase.steps < phase.count
        return f"{format_count(phase.steps)} measured" if few else ""
    # A failed step does not have all phases.
    if 0 < phase.steps < steps - 1:
        return f"on {format_count(phase.steps)} of {format_counted(steps, 'step')}"
    is_one = phase.kind in {"prefill", "decode"} and phase.count == 1
    return _tokens_of(worst) if is_one and worst is not None else ""


def _worst(worst: Span) -> str:
    counts = worst.counts
    number = counts.get("step", math.nan)
    first = counts.get("first", number)
    if first < number:  # a group; which step was the worst is unknown
        return f"steps {first:.0f}\N{EN DASH}{number:.0f}"
    name = f"step {number:.0f}" if math.isfinite(number) else plain(worst.label)
    tokens = counts.get("largest_batch", counts.get("tokens", math.nan))
    return name + (f" ({format_count(tokens)} tokens)" if tokens > 0 else "")


def _tokens_of(span: Span) -> str:
    tokens, rate = (span.counts.get(name, math.nan) for name in ("tokens", "tokens_per_second"))
    a_second = f", {format_rate(rate)} a second" if rate > 0 else ""
    return f"{format_counted(tokens, 'token')}{a_second}" if tokens > 0 else ""


def _shown(row: PhaseRow, *, names_device: bool) -> TableRow:
    peak = "" if math.isnan(row.peak.value) else peak_text(row.peak)
    worst = f"worst: {'in ' * row.worst.startswith('steps')}{row.worst}" if row.worst else ""
    notes = (row.device if names_device and peak else "", row.note, worst)
    note = " \u00b7 ".join(text for text in notes if text)
    cells = (row.name, format_count(row.count), format_duration(row.seconds), (peak, note))
    return TableRow(cells, is_indented=row.is_part)
