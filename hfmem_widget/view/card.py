"""The card under a watched cell: HTML that needs no script, no style sheet and no kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from hfmem_widget.analysis.facts import Facts, facts_of, samples_in
from hfmem_widget.analysis.findings import findings_of
from hfmem_widget.analysis.moved import Moved, moved_devices, sentence
from hfmem_widget.session import Device, Finding, Polling, Session, Span
from hfmem_widget.text import (
    for_html,
    format_bytes,
    format_change,
    format_duration,
    number,
    plain,
    unit_for,
)
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
from hfmem_widget.view.root import FRAMED, LETTERS, root

MOST_NOTES = 3
TIMES = "\u00d7"
NOTE_LENGTH = 300
MOST_ON_LINE = 200

MANY_MISSED = 0.05
LONG_GAP = 1.0
LONG_GAP_INTERVALS = 5

_ALONE = root(f"font-size:13px;line-height:1.45;margin:2px 0;{LETTERS}")
_ON_ONE_LINE = root(f"font-size:12px;line-height:1.5;margin:2px 0;{LETTERS}")
_QUIET = "opacity:.72"
_OWN = f'<div style="margin:10px 0 0;font-size:12px;{_QUIET}">this process itself</div>'
_SMALL_LINE = '<div style="margin:7px 0 0;font-size:11.5px;overflow-wrap:anywhere;opacity:.8">'


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
    html = "".join(
        (
            lead["text/html"] if lead is not None else "",
            FRAMED,
            _header(session, span, facts, moved),
            *((_moved_html(moved), picture, _OWN) if moved else ()),
            _figures(facts[0]) if len(facts) == 1 else _table(facts),
            findings_html(findings),
            parts_html(session, span),
            phases_html(session, span),
            "" if moved else picture,
            _use(facts[0]) if len(facts) == 1 else "",
            *(_note(note) for note in session.notes[:MOST_NOTES]),
            _polling(session.polling),
            "</div>",
        )
    )
    told = [lead["text/plain"]] if lead is not None else []
    return {"text/html": html, "text/plain": "\n".join((*told, _plain(session, span, findings)))}


def running_bundle(label: str) -> dict[str, str]:
    """Return what stands in the card's place while the cell runs."""
    html = (
        f"{_ALONE}{_bullet(palette.ALLOCATED)} <strong>{for_html(label)}</strong> "
        f'<span style="{_QUIET}">· watching …</span></div>'
    )
    return {"text/html": html, "text/plain": f'memwatch "{plain(label)}" running'}


def lost_bundle(label: str) -> dict[str, str]:
    """Return what stands in the card's place where the page did not see the cell end."""
    sentence = (
        "This page did not see the watch end. A session that was kept with %%memwatch --output NAME shows "
        "its card."
    )
    html = (
        f"{_ALONE}{_bullet(palette.DEVICE_USED)} <strong>{for_html(label)}</strong> "
        f'<span style="{_QUIET}">· {sentence}</span></div>'
    )
    return {"text/html": html, "text/plain": f'memwatch "{plain(label)}": {sentence}'}


def compact_bundle(session: Session, span: Span) -> dict[str, str]:
    """Return the card of a quick cell: its change and its peak on one line."""
    facts, moved = facts_of(session, span), moved_devices(session, span)
    findings = findings_of(session, span)
    devices = [[one.device.key, *parts(one, brief=True)] for one in facts]
    first = devices.pop(0) if len(devices) == 1 and not moved else []
    first = sentence(moved).split(", ") if moved else first
    html = (
        f"{_ON_ONE_LINE}{_outcome_bullet(span)} <strong>{for_html(span.label or span.kind)}</strong> "
        f'<span style="{_QUIET}">{_phrases([*how_it_went(session, span), *first])}</span>'
        + "".join(
            f'<div style="margin-left:14px;{_QUIET}">{_phrases(one)}</div>' for one in devices
        )
        + findings_html(findings, in_sight=1)
        + "</div>"
    )
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
) -> str:
    devices = [one.device for one in (moved or facts)]
    told = [span.kind, duration_text(session, span), *_devices(devices), *_budgets(session, facts)]
    outcome = plain(span.outcome) or "running"
    return (
        '<div style="display:flex;flex-wrap:wrap;align-items:baseline;gap:0 10px">'
        f'<strong style="font-size:15px;overflow-wrap:anywhere">{for_html(span.label or span.kind)}</strong> '
        f'<span style="{_QUIET}">{_phrases(told)}</span> '
        f'<span style="margin-left:auto">{_outcome_bullet(span)} {for_html(outcome)}</span></div>'
    )


def _phrases(phrases: list[str]) -> str:
    """Return the phrases, none of them broken, each but the last with the dot that follows it."""
    last = len(phrases) - 1
    return " ".join(
        f'<span style="white-space:nowrap">{for_html(phrase)}{" ·" if at < last else ""}</span>'
        for at, phrase in enumerate(phrases)
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


def _outcome_bullet(span: Span) -> str:
    if span.outcome in {"", "done"}:
        return _bullet(palette.GOOD if span.outcome else palette.ALLOCATED)
    return _bullet(palette.STOPPED if span.outcome == "interrupted" else palette.BAD)


def _bullet(colour: str) -> str:
    return f'<span aria-hidden="true" style="color:{colour}">●</span>'


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


def _figures(facts: Facts) -> str:
    drawn = []
    for label, value, below in _columns(facts):
        small = (
            f'<div style="margin:0;font-size:11px;{_QUIET}">{for_html(below)}</div>'
            if below
            else ""
        )
        drawn.append(
            '<div style="flex:1 1 84px;min-width:max-content;white-space:nowrap">'
            f'<div style="margin:0;font-size:11px;font-weight:normal;{_QUIET}">{for_html(label)}</div>'
            f'<div style="margin:0;font-size:15px;font-weight:600">{for_html(value)}</div>{small}</div>'
        )
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px 22px;margin:9px 0 0">{"".join(drawn)}</div>'


def _moved_html(moved: tuple[Moved, ...]) -> str:
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
    return f'<div style="margin:7px 0 0;font-size:14px">{for_html(sentence(moved))}.</div>' + (
        _table_of(heads, rows) if len(moved) > 1 else ""
    )


def _table(facts: tuple[Facts, ...]) -> str:
    if not facts:
        return ""
    heads = ["device", *(label for label, _, _ in _columns(facts[0]))]
    heads[3] = "peak"
    return _table_of(heads, [(one.device.key, *_row(one)) for one in facts])


def _table_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cell = "padding:2px 0 2px 18px;text-align:right;white-space:nowrap;border:0;background:none"
    first = (
        "padding:2px 0;text-align:left;white-space:nowrap;border:0;background:none;font-weight:600"
    )
    top = "".join(
        f'<th scope="col" style="{first if at == 0 else cell};font-size:11px;font-weight:normal;'
        f'{_QUIET}">{for_html(head)}</th>'
        for at, head in enumerate(heads)
    )
    body = "".join(
        # JupyterLab stripes rows; here they are the card's own.
        f'<tr style="background:none"><th scope="row" style="{first}">{for_html(name)}</th>'
        + "".join(f'<td style="{cell}">{for_html(value)}</td>' for value in values)
        + "</tr>"
        for name, *values in rows
    )
    return (
        '<div style="overflow-x:auto;margin:8px 0 0"><table style="border-collapse:collapse;'
        'table-layout:auto;border:0;margin:0;width:100%;font-size:13px;color:inherit">'
        f'<thead style="border:0"><tr>{top}</tr></thead><tbody>'
        f"{body}</tbody></table></div>"
    )


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
    return f"{_SMALL_LINE}too short to chart: {samples} in {duration_text(session, span)}</div>"


def _use(facts: Facts) -> str:
    """Return who uses the device, in the unit of its capacity."""
    if math.isnan(facts.used):
        return ""
    divisor, _ = unit_for(facts.device.total if facts.device.total > 0 else facts.used)
    told = [
        f"{facts.used_label} {number(facts.used, divisor)} of {format_bytes(facts.device.total)}"
    ]
    if math.isfinite(facts.process):
        told.append(f"this process {number(facts.process, divisor)}")
    if math.isfinite(facts.others):
        told.append(f"other processes {number(facts.others, divisor)}")
    return f"{_SMALL_LINE}{_phrases(told)}</div>"


def _note(note: str) -> str:
    return f"{_SMALL_LINE}{escape(plain(note, NOTE_LENGTH))}</div>"


def _polling(polling: Polling) -> str:
    """Say how far the samples can be trusted, only where they came badly."""
    told = []
    due = polling.ticks + polling.missed
    if due and polling.missed / due > MANY_MISSED:
        told.append(f"{polling.missed} of {due} samples were missed")
    if polling.longest_gap > max(LONG_GAP, LONG_GAP_INTERVALS * polling.interval):
        told.append(f"nothing was sampled for up to {format_duration(polling.longest_gap)}")
    if polling.stopped:
        told.append(f"sampling stopped early: {polling.stopped}")
    return f"{_SMALL_LINE}{escape(plain('; '.join(told), NOTE_LENGTH))}</div>" if told else ""
