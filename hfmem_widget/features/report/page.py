"""A report as one HTML file, which browsers open from disk and which loads nothing; and its sections."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from hfmem_widget import __version__
from hfmem_widget.analysis.anatomy import AT_THE_PEAK, NOW
from hfmem_widget.analysis.facts import GRAVITY, active_devices, facts_of, outcome_of
from hfmem_widget.analysis.others import brief_lead
from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED, known_of
from hfmem_widget.display import Shown
from hfmem_widget.errors import HFMemError
from hfmem_widget.options import path_of
from hfmem_widget.recording.file import write_new
from hfmem_widget.session import Anatomy, Device, Session, Span, outermost
from hfmem_widget.session.steps import PHASES, StepGroup, group_of
from hfmem_widget.text import (
    format_bytes,
    format_change,
    format_count,
    format_counted,
    format_duration,
    wrong_value,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view.anatomy import contents_text, device_section
from hfmem_widget.view.card import summary_html
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.findings import findings_html
from hfmem_widget.view.line import duration_text, length
from hfmem_widget.view.phases import phases_html
from hfmem_widget.view.ranks import ranks_html
from hfmem_widget.view.table import Column, TableRow, peak_cell, table
from hfmem_widget.view.what_fits import moves_table, what_if_html
from hfmem_widget.view.wire import protocol

LARGEST = 1_500_000  # bytes of a page with the live chart
_ROOM_BESIDE = 300  # bytes at most behind the frame
# Seconds since the epoch that `datetime` cannot represent; a recording may have any.
_NO_YEAR = 2.0**37

MOST_BYTES, MOST_STEP_BYTES = 8 << 20, 300_000  # of samples and of steps, before compression
MOST_SPANS = 400
FEWEST_ROWS = 240
SLACK = 0.9  # share of the available size that is aimed at after a frame was too large

MOST_NOTES = 20
MOST_FINDINGS = 15
MOST_CELLS, MOST_WITH_PHASES = 40, 10  # the newest
MOST_STEPS = 40  # rows
MOST_WHOLE = 2  # devices with a full section of parts; with more devices, only the highest has one


class ReportPath(type(Path())):  # type: ignore[misc]  # 3.11 has no other class of this system's paths
    """The path of a report, which Jupyter shows as a link."""

    def _repr_html_(self) -> str:
        text = kit.shown(str(self), kit.PATH_LENGTH).html
        try:
            # A notebook's page can link to files in its folder and below.
            near = self.absolute().relative_to(Path.cwd()).as_posix()
        except (OSError, ValueError):
            return text
        return f'<a href="{quote(near)}" target="_blank">{text}</a>'


def report(session: Session, path: str | os.PathLike[str], *, static: bool = False) -> Path:
    """Write a session's page to a new file; see `Session.report`."""
    return _written(path, page(session, static=static))


def page(session: Session, *, static: bool = False, now: float | None = None) -> str:
    """Return a session as an HTML document that is written `now`, in seconds since the epoch.

    If `static`, it has no script; else HFMemError is raised where the front end was not built.
    """
    written = time.time() if now is None else now
    spans = outermost(session.spans)
    still = chart_html(session, spans[0] if len(spans) == 1 else None)
    ranks = ranks_html(session).html if still else ""
    still += f"{kit.BOX}{ranks}</div>" if ranks else ""
    before, after = list(before_chart(session)), list(after_chart(session))
    about = _when(session), session.software.get("hfmem_widget", "")

    def document(chart: str, script: str = "") -> str:
        sections = [*before, Section("memory", "Memory over time", chart), *after]
        return _document(session.label, sections, written, about=about, script=script)

    if not still or static:
        none = '<p class="note">There are too few samples for a chart.</p>'
        return document(still or none)
    try:
        script, device = kit.built("chart.js"), busiest(session)
    except FileNotFoundError:
        raise HFMemError(
            "the live chart is not built in this checkout: run make build, or write a static report"
        ) from None
    shown = kit.shown(device.key if device is not None else "").html
    chart = (
        f'<div id="still">{still}</div><div id="hfmem-chart" data-device="{shown}"></div>'
        '<script type="text/plain" id="hfmem-data">'
    )
    frame, rows = packed(session, LARGEST - len(document(chart, script).encode()) - _ROOM_BESIDE)
    return document(f"{chart}{frame}</script>{_folded(session, rows)}", script)


def _folded(session: Session, rows: int) -> str:
    timeline = session.between(0.0, math.inf)
    if timeline.bucket == 1 and len(timeline) <= rows:
        return ""
    each = format_duration(2 * session.last_sample.time / rows)
    text = f"The chart shows the lowest and the highest of all samples within {each}."
    return f'<p class="note">{text}</p>'


def report_of(name: str, noun: Shown, path: str | os.PathLike[str]) -> Path:
    """Write a page of one noun, as Jupyter shows it, to a new file; return its path."""
    sections = [Section("memory", "What held the memory", _shown(noun))]
    return _written(path, _document(name, sections, time.time(), about=("", __version__)))


def _written(path: str | os.PathLike[str], document: str) -> Path:
    place = ReportPath(path_of(path))
    if not place.name.endswith(".html"):
        raise wrong_value(place.name, "path", "a name that ends in .html")
    write_new(place, [document.encode()])
    return place


def _document(
    label: str,
    sections: list[Section],
    written: float,
    *,
    about: tuple[str, str],  # the line below the name, and the version of hfmem_widget
    script: str = "",
) -> str:
    name = kit.shown(label or "Memory report").html
    title = f"{name} \N{MIDDLE DOT} memory report" if label else name
    version = kit.shown(about[1]).html
    scripted = f'<script type="module">{script}</script>' if script else ""
    body = "".join(
        f'<section id="{part.name}" aria-labelledby="{part.name}-title">'
        f'<h2 id="{part.name}-title">{part.title}</h2>{part.html}</section>\n'
        for part in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script, images="data:image/" in body)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="hfmem_widget {version}">
<title>{title}</title>
<style>{_style()}</style>
</head>
<body>
<main class="{kit.AS_TEXT}">
<header>
<h1>{name}</h1>
<p>{about[0]}</p>
</header>
{body}</main>
<footer><p>Written by hfmem_widget on {_time(written)}. This page loads nothing from the network.</p></footer>
{scripted}
</body>
</html>
"""


def _policy(script: str, *, images: bool) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f" script-src 'sha256-{digest}';" if script else ""
    own += " img-src data:;" if images else ""
    return (
        f"default-src 'none';{own} style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


def _when(session: Session) -> str:
    took = format_duration(length(session))
    facts = [_time(session.started_at)] if 0 < session.started_at < _NO_YEAR else []
    facts.append(f"still running after {took}" if session.running else took)
    facts += ["not watched to its end"] if session.broken_off else []
    return " \N{MIDDLE DOT} ".join(facts)


def _time(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return f'<time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at.day} {at:%B %Y, %H:%M} UTC</time>'


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def packed(session: Session, room: int) -> tuple[str, int]:
    """Return a session as a frame of at most `room` characters, folded if necessary, and its number of rows.

    It is Base64 of the gzip of a line of JSON and the buffers. Nothing in it can end a script.
    """
    row = 8 + 4 * len(protocol.charted(session))
    share = 1.0
    while True:
        rows = max(FEWEST_ROWS, int(share * MOST_BYTES) // row)
        detail = protocol.Detail(
            rows=rows,
            row_bytes=sys.maxsize,
            steps=sys.maxsize,
            step_bytes=int(share * MOST_STEP_BYTES),
            spans=max(1, int(share * MOST_SPANS)),
        )
        message, buffers = protocol.snapshot(session, "report", 0, panel=False, detail=detail)
        head = json.dumps({"content": message, "sizes": [len(each) for each in buffers]})
        data = gzip.compress(b"\n".join([head.encode(), b"".join(buffers)]), 9, mtime=0)
        text = base64.b64encode(data).decode()
        if len(text) <= room or rows == FEWEST_ROWS:
            return text, message["rows"]
        held = min(share, message["rows"] * row / MOST_BYTES)
        share = held * SLACK * room / len(text)


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
    """Yield the sections above the chart."""
    yield Section("summary", "Summary", _summary(session))
    findings = sorted(session.findings, key=lambda finding: GRAVITY[finding.severity])
    if findings:
        html = findings_html(findings[:MOST_FINDINGS], MOST_FINDINGS, is_open=True)
        left_out = len(findings) - MOST_FINDINGS
        if left_out > 0:
            html += kit.note(format_counted(left_out, "more finding")).html
        yield Section("findings", "Findings", html)
    if session.moves:
        moves = moves_table(session.moves, can_write=False)
        yield Section("moves", "What would fit", _html(moves))
    if session.what_if is not None:
        what_if = what_if_html(session.what_if, scripted=False)
        yield Section("what-if", "At other sizes", _html(what_if))


def after_chart(session: Session) -> Iterator[Section]:
    """Yield the sections below the chart."""
    parts = {
        ("peak", "Memory at the peak"): _anatomy(session),
        ("phases", "Phases"): _phases(session),
        ("lines", "Allocated by line"): _shown(session.stacks) if session.stacks else "",
        ("steps", "Steps"): _steps(session),
        ("environment", "Environment"): _environment(session),
    }
    yield from (Section(*name, html) for name, html in parts.items() if html)


def _shown(noun: Shown) -> str:
    html: str = noun._repr_mimebundle_()["text/html"]
    shown, _, script = html.partition("<script>")  # the page has its own script for this
    return shown + script.partition("</script>")[2]


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
    return TableRow((name, took, change, peak_cell(facts.peak), where), others)


def _anatomy(session: Session) -> str:
    if not len(session.timeline):
        return ""
    devices = sorted(_with_parts(session), key=lambda device: -_peak(session, device))
    whole = 1 if len(devices) > MOST_WHOLE else MOST_WHOLE
    moments = (AT_THE_PEAK, NOW)
    drawn = [
        device_section([session.anatomy(moment, device.key) for moment in moments])
        for device in devices[:whole]
    ]
    contents = kit.block(f"margin:0 0 6px;{kit.FAINT}", contents_text(session.contents), limit=300)
    rest = [device.key for device in session.devices if device in devices[whole:]]
    others = [session.anatomy(AT_THE_PEAK, key) for key in rest]
    return _html(contents, *drawn, _others(others))


def _with_parts(session: Session) -> tuple[Device, ...]:
    worst = session.ranks.worst if session.ranks is not None else None
    if worst is None:
        return active_devices(session)
    return tuple(each for each in session.devices if each.key == f"rank:{worst.rank}")


def _others(anatomies: list[Anatomy]) -> kit.Fragment:
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
