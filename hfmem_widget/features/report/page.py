"""The document: one file that a browser opens from disk, and that may load nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import os
import sys
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from hfmem_widget.errors import HFMemError
from hfmem_widget.features.report.sections import (
    Section,
    after_chart,
    before_chart,
    busiest,
)
from hfmem_widget.recording.file import write_new
from hfmem_widget.session import Session, outermost
from hfmem_widget.text import format_duration, wrong_value
from hfmem_widget.view import html as kit
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.line import length
from hfmem_widget.view.rank_words import ranks_html
from hfmem_widget.view.wire import protocol
from hfmem_widget.view.wire.judgements import judged
from hfmem_widget.view.wire.rank_messages import describe_ranks, with_ranks

LARGEST = 1_500_000  # bytes of a page with the live chart
_SCRIPT = Path(__file__).parents[2] / "static" / "chart.js"
_STYLE = Path(__file__).with_name("page.css")
_ROOM_BESIDE = 300  # bytes at most of what stands behind the frame

_NO_YEAR = 2.0**37  # seconds from which on the calendar has no year; a recording may say anything

MOST_BYTES, MOST_STEP_BYTES = 8 << 20, 300_000
"""Bytes of samples and of steps at most, before they are compressed."""

MOST_SPANS = 400
FEWEST_ROWS = 240
SLACK = 0.9  # of the room is aimed at where a frame has turned out too large


class ReportPath(type(Path())):  # type: ignore[misc]  # 3.11 has no other class of this system's paths
    """The path of a report, which Jupyter shows as a link."""

    def _repr_html_(self) -> str:
        text = kit.shown(str(self), kit.PATH_LENGTH).html
        try:
            # A page reaches what lies beside the notebook, or below it.
            near = self.absolute().relative_to(Path.cwd()).as_posix()
        except (OSError, ValueError):
            return text
        return f'<a href="{quote(near)}" target="_blank">{text}</a>'


def report(session: Session, path: str | os.PathLike[str], *, static: bool = False) -> Path:
    """Write a session's page to a new file; see `Session.report`."""
    place = ReportPath(Path(path).expanduser())
    if not place.name.endswith(".html"):
        raise wrong_value(place.name, "path", "a name that ends in .html")
    write_new(place, [page(session, static=static).encode()])
    return place


def page(session: Session, *, static: bool = False, now: float | None = None) -> str:
    """Return a session as an HTML document that is written `now`, in seconds since the epoch.

    If `static`, it has the still chart alone, and no script. HFMemError is raised if the live chart is wanted
    where the front end was not built.
    """
    written = time.time() if now is None else now
    spans = outermost(session.spans)
    still = chart_html(session, spans[0] if len(spans) == 1 else None)
    ranks = ranks_html(session).html if still else ""
    still += f"{kit.BOX}{ranks}</div>" if ranks else ""
    before, after = list(before_chart(session)), list(after_chart(session))

    def document(chart: str, script: str = "") -> str:
        sections = [*before, Section("memory", "Memory over time", chart), *after]
        return _document(session, sections, written, script)

    if not still:
        return document('<p class="note">There are too few samples for a chart.</p>')
    if static:
        return document(still)
    try:
        script, device = _read(_SCRIPT), busiest(session)
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
    """Return what the chart has in place of single samples; nothing where it has all of them."""
    timeline = session.between(0.0, math.inf)
    if timeline.bucket == 1 and len(timeline) <= rows:
        return ""
    each = format_duration(2 * session.last_sample.time / rows)
    text = f"The chart shows the lowest and the highest of all samples within {each}."
    return f'<p class="note">{text}</p>'


def _document(session: Session, sections: list[Section], written: float, script: str) -> str:
    name = kit.shown(session.label or "Memory report").html
    title = f"{name} \N{MIDDLE DOT} memory report" if session.label else name
    version = kit.shown(session.software.get("hfmem_widget", "")).html
    scripted = f'<script type="module">{script}</script>' if script else ""
    body = "".join(
        f'<section id="{one.name}" aria-labelledby="{one.name}-title">'
        f'<h2 id="{one.name}-title">{one.title}</h2>{one.html}</section>\n'
        for one in sections
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
<style>{_read(_STYLE)}</style>
</head>
<body>
<main class="{kit.AS_TEXT}">
<header>
<h1>{name}</h1>
<p>{_when(session)}</p>
</header>
{body}</main>
<footer><p>Written by hfmem_widget on {_time(written)}. This page loads nothing from the network.</p></footer>
{scripted}
</body>
</html>
"""


def _policy(script: str, *, images: bool) -> str:
    """Return what the page may do: run its own script, and have styles in attributes, as outputs have.

    `images` are those that it carries itself.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f" script-src 'sha256-{digest}';" if script else ""
    own += " img-src data:;" if images else ""
    return (
        f"default-src 'none';{own} style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


def _when(session: Session) -> str:
    """Return when it began, and how long it took or has taken."""
    took = format_duration(length(session))
    facts = [_time(session.started_at)] if 0 < session.started_at < _NO_YEAR else []
    facts.append(f"still running after {took}" if session.running else took)
    facts += ["not watched to its end"] if session.broken_off else []
    return " \N{MIDDLE DOT} ".join(facts)


def _time(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return f'<time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at.day} {at:%B %Y, %H:%M} UTC</time>'


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def packed(session: Session, room: int) -> tuple[str, int]:
    """Return the whole session as a frame of at most `room` characters; what does not fit is folded.

    With it comes how many rows of samples it has. It is Base64 of the gzip of a line of JSON and, behind it,
    the buffers. Nothing in it can end a script.
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
        message |= {name: rows for name, rows in judged(session).items() if rows}
        ranks = None if session.ranks is None else describe_ranks(session.ranks)
        message, buffers = with_ranks(message, buffers, ranks)
        head = json.dumps({"content": message, "sizes": [len(each) for each in buffers]})
        data = gzip.compress(b"\n".join([head.encode(), b"".join(buffers)]), 9, mtime=0)
        text = base64.b64encode(data).decode()
        if len(text) <= room or rows == FEWEST_ROWS:
            return text, message["rows"]
        held = min(share, message["rows"] * row / MOST_BYTES)
        share = held * SLACK * room / len(text)
