"""The contents of a report, section by section, with the kit of cards and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hfmem_widget.analysis.anatomy import AT_THE_PEAK, NOW
from hfmem_widget.analysis.facts import active_devices, facts_of, outcome_of
from hfmem_widget.analysis.findings import GRAVITY
from hfmem_widget.analysis.moved import brief_lead
from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.analysis.readings import known_of
from hfmem_widget.session import Anatomy, Device, Session, Span, outermost
from hfmem_widget.session.steps import PHASES, StepGroup, group_of
from hfmem_widget.text import (
    format_bytes,
    format_change,
    format_count,
    format_counted,
    format_duration,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view.anatomy import contents_text, device_section
from hfmem_widget.view.card import summary_html
from hfmem_widget.view.findings import findings_html
from hfmem_widget.view.line import duration_text, peak_text
from hfmem_widget.view.phases import phases_html
from hfmem_widget.view.table import Column, TableRow, table

MOST_NOTES = 20
MOST_FINDINGS = 15
MOST_CELLS, MOST_WITH_PHASES = 40, 10  # the newest
MOST_STEPS = 40  # rows
# Devices whose parts are notes in full; of more, only those of the one that rose highest.
MOST_WHOLE = 2


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page below a heading."""

    name: str  # in addresses
    title: str
    html: str


def busiest(session: Session) -> Device | None:
    """Return the device with the highest peak among those that were used."""
    devices = active_devices(session)
    return max(devices, key=lambda device: _peak(session, device), default=None)


def _peak(session: Session, device: Device) -> float:
    return known_of(session.peak(f"{device.key}/allocated"), -1.0)


def before_chart(session: Session) -> Iterator[Section]:
    """Yield what stands above the chart."""
    yield Section("summary", "Summary", _summary(session))
    findings = sorted(session.findings, key=lambda finding: GRAVITY[finding.severity])
    if findings:
        html = findings_html(findings[:MOST_FINDINGS], MOST_FINDINGS, is_open=True)
        left_out = len(findings) - MOST_FINDINGS
        if left_out > 0:
            html += kit.note(format_counted(left_out, "more finding")).html
        yield Section("findings", "Findings", html)


def after_chart(session: Session) -> Iterator[Section]:
    """Yield what stands below the chart."""
    parts = {
        ("peak", "Memory at the peak"): _anatomy(session),
        ("phases", "Phases"): _phases(session),
        ("steps", "Steps"): _steps(session),
        ("environment", "Environment"): _environment(session),
    }
    yield from (Section(*name, html) for name, html in parts.items() if html)


def _summary(session: Session) -> str:
    spans = outermost(session.spans)
    if len(spans) == 1:
        return summary_html(session, spans[0], MOST_NOTES)
    notes = kit.notes(session.portable_notes[:MOST_NOTES])
    if not spans:
        return _html(kit.line("Nothing was watched."), *notes)
    shown = spans[-MOST_CELLS:]
    labels = {facts.allocated_label for span in shown for facts in facts_of(session, span)}
    counted = labels.pop() if len(labels) == 1 else "allocated"
    columns = [
        *(Column("cell"), Column("took"), Column(f"{counted}, start \N{RIGHTWARDS ARROW} end")),
        *(Column("peak"), Column(is_words=True, is_quiet=True)),
    ]
    left_out = len(spans) - MOST_CELLS
    before = [kit.note(f"{format_counted(left_out, 'cell')} before these")] if left_out > 0 else []
    rows = [_cell(session, span) for span in shown]
    return _html(*before, table(columns, rows, scrolls="cells"), *notes)


def _cell(session: Session, span: Span) -> TableRow:
    measured = (each for each in facts_of(session, span) if not math.isnan(each.peak.value))
    facts = max(measured, key=lambda each: each.peak.value, default=None)
    name, took = span.label or span.kind, duration_text(session, span)
    outcome = "" if span.outcome == "done" else outcome_of(session, span)
    others = brief_lead(session, span)
    if facts is None:
        return TableRow((name, took, "", "", outcome), others)
    change = format_change(facts.before, facts.after)
    where = kit.phrases([facts.device.key, outcome])
    return TableRow((name, took, change, peak_text(facts.peak), where), others)


def _anatomy(session: Session) -> str:
    """Return the parts of each used device at its peak and at the end."""
    if not len(session.timeline):
        return ""
    devices = sorted(_with_parts(session), key=lambda device: -_peak(session, device))
    whole = 1 if len(devices) > MOST_WHOLE else MOST_WHOLE
    moments = (AT_THE_PEAK, NOW)
    drawn = [
        device_section([session.anatomy(moment, device.key) for moment in moments], {})
        for device in devices[:whole]
    ]
    contents = kit.block(f"margin:0 0 6px;{kit.FAINT}", contents_text(session.contents), limit=300)
    rest = [device.key for device in session.devices if device in devices[whole:]]
    others = [session.anatomy(AT_THE_PEAK, key) for key in rest]
    return _html(contents, *drawn, _others(others))


def _with_parts(session: Session) -> tuple[Device, ...]:
    """Return the used devices; of all ranks of a run, that of the worst."""
    worst = session.ranks.worst if session.ranks is not None else None
    if worst is None:
        return active_devices(session)
    return tuple(each for each in session.devices if each.key == f"rank:{worst.rank}")


def _others(anatomies: list[Anatomy]) -> kit.Fragment:
    """Return the parts of further devices at their peaks, a row for each."""
    if not anatomies:
        return kit.NOTHING
    names = [name for name in OF_ALLOCATED if any(each.bytes(name) > 0 for each in anatomies)]
    columns = [Column("device"), Column("allocated"), *(Column(LABELS[name]) for name in names)]
    rows = [
        TableRow((each.device.key, *map(format_bytes, (each.allocated, *map(each.bytes, names)))))
        for each in anatomies
    ]
    title = "The other devices at their peaks"
    return kit.section(title, "", table(columns, rows, scrolls=title, size=12))


def _phases(session: Session) -> str:
    spans = outermost(session.spans)
    phases = [(span, html) for span in spans if (html := phases_html(session, span, is_open=True))]
    if len(spans) == 1:
        return "".join(html for _, html in phases)
    return "".join(
        kit.section(span.label or span.kind, "", kit.Fragment(html)).html
        for span, html in phases[-MOST_WITH_PHASES:]
    )


def _steps(session: Session) -> str:
    """Return the steps with the peaks of the device that rose highest, neighbours folded if many."""
    devices = session.steps.devices
    groups = [group_of(row, devices) for row in session.folded_steps(MOST_STEPS).tolist()]
    highest = [(steps.peak, device) for group in groups for device, steps in group.devices.items()]
    if not highest:
        return ""
    _, device = max(highest)
    heads = ("step", "began at", "took", "tokens", f"peak of {device}", *PHASES, "left after")
    is_folded = any(group.first != group.last for group in groups)
    columns = [*map(Column, heads), Column("highest" * is_folded, is_words=True, is_quiet=True)]
    cells = [_step(group, device) for group in groups]
    kept = [at for at in range(len(columns)) if any(row[at] for row in cells)]
    rows = [TableRow(tuple(row[at] for at in kept)) for row in cells]
    summary = format_counted(session.steps.count, "step")
    if is_folded:
        summary += f" in {len(rows)} rows; each has the highest peaks of its steps"
    drawn = table([columns[at] for at in kept], rows, scrolls="steps", size=12)
    return _html(kit.note(f"{summary}."), drawn)


def _step(group: StepGroup, device: str) -> tuple[str, ...]:
    is_one = group.first == group.last
    name = str(group.first) if is_one else f"{group.first}\N{EN DASH}{group.last}"
    took = format_duration(group.stop - group.start)
    tokens = "" if math.isnan(group.tokens) else format_count(group.tokens)
    start = (name, format_duration(group.start), took, tokens)
    steps = group.devices.get(device)
    if steps is None:
        return (*start, "", *[""] * len(PHASES), "", "")
    figures = (steps.phases.get(phase, math.nan) for phase in PHASES)
    sizes = ["" if math.isnan(size) else format_bytes(size) for size in (*figures, steps.after)]
    bound = "\u2265 " * (steps.certainty == "at least")
    worst = "" if is_one or not steps.worst else f"step {steps.worst}"
    return (*start, f"{bound}{format_bytes(steps.peak)}", *sizes, worst)


def _environment(session: Session) -> str:
    software = [TableRow((name, version)) for name, version in session.software.items()]
    devices = [
        TableRow((device.key, device.name, format_bytes(device.total) if device.total > 0 else ""))
        for device in session.devices
    ]
    polling = session.polling
    samples = format_counted(session.timeline.samples, "sample")
    sampling = f"{samples}, one every {format_duration(polling.interval)}"
    missed = f"; {format_counted(polling.missed, 'sample')} missed" if polling.missed else ""
    words = Column("version", is_words=True)
    return _html(
        table([Column("software"), words], software),
        table([Column("device"), Column("name", is_words=True), Column("memory")], devices),
        kit.note(f"{sampling}{missed}."),
    )


def _html(*inside: kit.Fragment) -> str:
    return f"{kit.BOX}{''.join(part.html for part in inside)}</div>"
