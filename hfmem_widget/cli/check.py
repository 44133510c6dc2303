"""``hfmem check RUN``: what a recording holds, and what is damaged or missing."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator

from hfmem_widget.analysis.facts import active_devices
from hfmem_widget.cli.check_run import check_run, print_contents
from hfmem_widget.recording.file import place_of, read_lines, session_of
from hfmem_widget.recording.reader import StreamReader
from hfmem_widget.session import Certainty, Device, Peak, Session, outermost
from hfmem_widget.text import format_bytes, format_count, format_counted, format_duration
from hfmem_widget.view.line import length, peak_text

MOST_NOTES = 12
MOST_DEVICES = 16


def check(arguments: Namespace) -> int:
    """Say what is in a recording; the code is not 0 where something is damaged or missing."""
    path = place_of(arguments.RUN)
    if path.is_dir():
        return check_run(path)
    reader = read_lines(path)
    session = session_of(path, reader)
    has_no_end = reader.end is None and not session.running
    damage = ["see the notes"] if reader.dropped or reader.holes or has_no_end else []
    return print_contents(
        _rows(session, reader), damage, session.findings, session.notes[-MOST_NOTES:]
    )


def _rows(session: Session, reader: StreamReader) -> Iterator[tuple[str, str]]:
    written = ", ".join(f"{name} {version}" for name, version in session.software.items())
    by = f", written by {written}" if written else ""
    yield "format", f"version {0 if reader.head is None else reader.head.version}{by}"
    yield "label", session.label or "none"
    yield "began", _when(session.started_at)
    outcomes = dict.fromkeys(span.outcome for span in outermost(session.spans))
    outcome = ", ".join(filter(None, outcomes)) or "finished"
    yield "state", "running" if session.running else "broken off" if session.broken_off else outcome
    samples, series = session.timeline.samples, len(session.series)
    sampled = f"{format_counted(samples, 'sample')} of {series} series"
    yield "length", f"{format_duration(length(session))}: {sampled}"
    for at, device in enumerate(session.devices[:MOST_DEVICES]):
        total = f", {format_bytes(device.total)}" if device.total > 0 else ""
        yield "" if at else "devices", f"{device.key} {device.name}{total}"
    spans, steps = len(session.spans), session.steps.count
    yield "spans", format_count(spans)
    yield "steps", format_count(steps)
    for at, device in enumerate(active_devices(session)[:MOST_DEVICES]):
        yield "" if at else "peaks", f"{device.key} {peak_text(_peak(session, device))}"
    yield "findings", format_count(len(session.findings))


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OSError, OverflowError, ValueError):
        return "at no time that a calendar has"


def _peak(session: Session, device: Device) -> Peak:
    """Return the highest peak of allocated memory, and how it is known."""
    key = f"{device.key}/allocated"
    value = session.peak(key)
    peaks = [span.peaks[key] for span in session.spans if key in span.peaks]
    steps = (group.devices[device.key] for group in session.steps if device.key in group.devices)
    peaks += [Peak(step.peak, step.certainty) for step in steps]
    certainty: Certainty = next(
        (peak.certainty for peak in peaks if peak.value == value), "sampled"
    )
    return Peak(value, certainty)
