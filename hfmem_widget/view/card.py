"""The card under a watched cell: HTML that needs no script, no style sheet and no kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hfmem_widget.analysis.facts import Facts, facts_of, samples_in
from hfmem_widget.analysis.findings import findings_of
from hfmem_widget.analysis.moved import Moved, moved_devices, sentence
from hfmem_widget.session import Device, Finding, Polling, Session, Span
from hfmem_widget.text import (
    format_bytes,
    format_change,
    format_duration,
    number,
    plain,
    unit_for,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.card_parts import parts_html
from hfmem_widget.view.chart.svg import sparkline
from hfmem_widget.view.findings import findings_html, findings_lines
from hfmem_widget.view.line import (
    duration_text,
    headroom_text,
    how_it_went,
    line,
    parts,
    peak_text,
)
from hfmem_widget.view.phases import phases_html, worst_step_text
from hfmem_widget.view.table import Column, Row, table

MOST_NOTES = 3
TIMES = "\u00d7"
NOTE_LENGTH = 300
MOST_ON_LINE = 200

MANY_MISSED = 0.05
LONG_GAP = 1.0
LONG_GAP_INTERVALS = 5

_ALONE = kit.root("font-size:13px;line-height:1.45;margin:2px 0")
_ON_ONE_LINE = kit.root("font-size:12px;line-height:1.5;margin:2px 0")


def card_bundle(
    session: Session, span: Span, *, with_chart: bool, lead: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the card by MIME type.

    Parameters
    ----------
    with_chart : bool
        True where the chart is an output of its own; otherwise the card carries a small picture.
    lead : mapping of str to str, optional
        By MIME type, why memory ran out: it stands above the card, whose findings then leave that out.
    """
    facts, moved = facts_of(session, span), moved_devices(session, span)
    findings = findings_of(session, span)
    if lead is not None:
        findings = tuple(one for one in findings if (one.kind, one.severity) != ("oom", "critical"))
    picture = "" if with_chart else _picture(session, span)
    own = kit.block(f"margin:10px 0 0;font-size:12px;{kit.QUIET}", "this process itself")
    card = kit.bundle(
        _header(session, span, facts, moved),
        *((*_moved(moved), kit.Fragment(picture), own) if moved else ()),
        kit.figures(_columns(facts[0])) if len(facts) == 1 else _table(facts),
        kit.Fragment(findings_html(findings)),
        kit.Fragment(parts_html(session, span)),
        kit.Fragment(phases_html(session, span)),
        kit.Fragment("" if moved else picture),
        *([kit.note(_use(facts[0]))] if len(facts) == 1 else []),
        *kit.notes(plain(one, NOTE_LENGTH) for one in session.notes[:MOST_NOTES]),
        kit.note(plain(_polling(session.polling), NOTE_LENGTH)),
    )
    above = lead["text/html"] if lead is not None else ""
    told = [lead["text/plain"]] if lead is not None else []
    return {
        "text/html": f"{above}{card['text/html']}",
        "text/plain": "\n".join((*told, _plain(session, span, findings))),
    }


def running_bundle(label: str) -> dict[str, str]:
    """Return what stands in the card's place while the cell runs."""
    html = _on_one_line(palette.ALLOCATED, label, "· watching …")
    return {"text/html": html, "text/plain": f'memwatch "{plain(label)}" running'}


def lost_bundle(label: str) -> dict[str, str]:
    """Return what stands in the card's place where the page did not see the cell end."""
    sentence = (
        "This page was closed or reloaded before the watch ended. With %%memwatch --output NAME, show NAME "
        "to see its card."
    )
    html = _on_one_line(palette.DEVICE_USED, label, f"· {sentence}")
    return {"text/html": html, "text/plain": f'memwatch "{plain(label)}": {sentence}'}


def _on_one_line(colour: str, label: str, *told: kit.Content) -> str:
    inside = kit.words(
        kit.marked(colour, sign=kit.BULLET),
        kit.strong(label),
        *(kit.quiet(kit.shown(one, NOTE_LENGTH)) for one in told),
    )
    return f"{_ALONE}{inside.html}</div>"


def compact_bundle(session: Session, span: Span) -> dict[str, str]:
    """Return the card of a quick cell: its change and its peak on one line."""
    facts, moved = facts_of(session, span), moved_devices(session, span)
    findings = findings_of(session, span)
    devices = [[one.device.key, *parts(one, brief=True)] for one in facts]
    first = devices.pop(0) if len(devices) == 1 and not moved else []
    first = sentence(moved).split(", ") if moved else first
    below = [kit.block(f"margin-left:14px;{kit.QUIET}", kit.phrases(one)) for one in devices]
    html = kit.words(
        kit.marked(_outcome_colour(span), sign=kit.BULLET),
        kit.strong(span.label or span.kind),
        kit.quiet(kit.phrases([*how_it_went(session, span), *first])),
        *below,
        kit.Fragment(findings_html(findings, in_sight=1)),
    ).html
    html = f"{_ON_ONE_LINE}{html}</div>"
    told = "\n".join((line(session, span, brief=True), *findings_lines(findings, in_sight=1)))
    return {"text/html": html, "text/plain": told}


def _plain(session: Session, span: Span, findings: tuple[Finding, ...]) -> str:
    """Return the one line, with the worst step where it fits, and a line for each finding."""
    told = line(session, span)
    worst = worst_step_text(session, span)
    longer = f"{told} · {worst}"
    if worst and "\n" not in told and len(longer) <= MOST_ON_LINE:
        told = longer
    return "\n".join((told, *findings_lines(findings)))


def _header(
    session: Session, span: Span, facts: tuple[Facts, ...], moved: tuple[Moved, ...]
) -> kit.Fragment:
    devices = [one.device for one in (moved or facts)]
    told = [span.kind, duration_text(session, span), *_devices(devices), *_budgets(session, facts)]
    return kit.headed(
        span.label or span.kind,
        kit.phrases(told),
        at_right=kit.marked(_outcome_colour(span), span.outcome or "running", kit.BULLET),
    )


def _devices(devices: Sequence[Device]) -> list[str]:
    if len(devices) < 2:
        return [f"{one.key} {one.name}" for one in devices]
    names, count = {one.name for one in devices}, len(devices)
    return [f"{count} {TIMES} {names.pop()}" if len(names) == 1 else f"{count} devices"]


def _budgets(session: Session, facts: tuple[Facts, ...]) -> list[str]:
    """Return the budgets of what is shown, which the chart draws only where the data come near."""
    shown = {one.device.key for one in facts}
    told = [one.label for one in session.guides if one.kind == "budget" and one.device in shown]
    return list(dict.fromkeys(told))[:1]


def _outcome_colour(span: Span) -> str:
    if span.outcome in {"", "done"}:
        return palette.GOOD if span.outcome else palette.ALLOCATED
    return palette.STOPPED if span.outcome == "interrupted" else palette.BAD


def _columns(facts: Facts) -> list[tuple[str, str, str]]:
    """Return the five figures: what each is, what it reads, and what stands small below it."""
    certainty = "" if math.isnan(facts.peak.value) else f" ({facts.peak.certainty})"
    bound = "≥ " if facts.peak.certainty == "at least" else ""
    return [
        (f"{facts.allocated_label}, start → end", format_change(facts.before, facts.after), ""),
        ("left behind", format_bytes(facts.left_behind, signed=True), ""),
        (
            f"peak{certainty}",
            bound + format_bytes(facts.peak.value),
            _known(
                facts.above_start, f"{format_bytes(facts.above_start, signed=True)} above the start"
            ),
        ),
        (
            facts.reserved_label,
            format_bytes(facts.reserved),
            _known(facts.reserved_peak, f"{format_bytes(facts.reserved_peak)} at its peak"),
        ),
        (
            "headroom at the peak",
            headroom_text(facts),
            _known(facts.device.total, f"of {format_bytes(facts.device.total)}"),
        ),
    ]


def _known(value: float, text: str) -> str:
    return "" if math.isnan(value) else text


def _moved(moved: tuple[Moved, ...]) -> tuple[kit.Fragment, kit.Fragment]:
    """Return the devices that others filled."""
    rows = [
        (
            one.device.key,
            format_change(one.before, one.after),
            format_bytes(one.rise, signed=True),
            format_bytes(one.highest),
        )
        for one in moved
    ]
    heads = ("device", "in use, start \N{RIGHTWARDS ARROW} end", "rose by", "highest")
    said = kit.block("margin:7px 0 0;font-size:14px", f"{sentence(moved)}.")
    return said, _table_of(heads, rows if len(moved) > 1 else [])


def _table(facts: tuple[Facts, ...]) -> kit.Fragment:
    heads = ["device", *(label for label, _, _ in _columns(facts[0]))] if facts else [""] * 4
    heads[3] = "peak"
    return _table_of(heads, [(one.device.key, *_row(one)) for one in facts])


def _table_of(heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> kit.Fragment:
    columns = [Column(head, is_bold=at == 0) for at, head in enumerate(heads)]
    return table(columns, [Row(row) for row in rows])


def _row(facts: Facts) -> list[str]:
    return [
        format_change(facts.before, facts.after),
        format_bytes(facts.left_behind, signed=True),
        peak_text(facts.peak),
        format_bytes(facts.reserved),
        headroom_text(facts),
    ]


def _picture(session: Session, span: Span) -> str:
    drawn = sparkline(session, span)
    if drawn:
        return drawn
    count = samples_in(session, span)
    samples = "1 sample" if count == 1 else f"{count} samples"
    return kit.note(f"too short to chart: {samples} in {duration_text(session, span)}").html


def _use(facts: Facts) -> kit.Fragment:
    """Return who uses the device, in the unit of its capacity."""
    if math.isnan(facts.used):
        return kit.NOTHING
    divisor, _ = unit_for(facts.device.total if facts.device.total > 0 else facts.used)
    told = [
        f"{facts.used_label} {number(facts.used, divisor)} of {format_bytes(facts.device.total)}"
    ]
    if math.isfinite(facts.process):
        told.append(f"this process {number(facts.process, divisor)}")
    if math.isfinite(facts.others):
        told.append(f"other processes {number(facts.others, divisor)}")
    return kit.phrases(told)


def _polling(polling: Polling) -> str:
    """Say how far the samples can be trusted, only where they came badly."""
    told = []
    due = polling.ticks + polling.missed
    if due and polling.missed / due > MANY_MISSED:
        told.append(f"{polling.missed} of {due} samples were missed")
    if polling.longest_gap > max(LONG_GAP, LONG_GAP_INTERVALS * polling.interval):
        told.append(f"no samples for up to {format_duration(polling.longest_gap)}")
    if polling.stopped:
        told.append(f"sampling stopped early: {polling.stopped}")
    return "; ".join(told)
