"""``hfmem check RUN``: what a recording, the directory of a run or a snapshot holds, and what is damaged."""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest

from hfmem_widget.analysis.facts import active_devices
from hfmem_widget.cli.output import FINE, NO, say
from hfmem_widget.features.stacks.snapshot import history_text
from hfmem_widget.ranks.run import Run
from hfmem_widget.ranks.run import open as open_path
from hfmem_widget.ranks.stream import RankStream
from hfmem_widget.recording.file import checked_path, is_pickle, read_lines, session_of
from hfmem_widget.recording.reader import StreamReader
from hfmem_widget.session import Certainty, Device, Finding, Peak, Session, outermost
from hfmem_widget.session.stacks import Snapshot
from hfmem_widget.text import (
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    json_data,
    plain,
    time_text,
)
from hfmem_widget.view.findings import MOST, findings_lines
from hfmem_widget.view.line import length, peak_text
from hfmem_widget.view.table import aligned

MOST_NOTES = 12
MOST_DEVICES = 16
MOST_NAMED = 8


def check(arguments: Namespace) -> int:
    """Say what is in a recording; the code is not 0 where something is damaged or missing."""
    path = checked_path(arguments.RUN)
    if path.is_dir():
        run = Run(path)
        run.look()
        found = _rows_of_run(run), list(_damage(run)), run.findings, run.overview.notes
        return _print(*found, as_json=arguments.json)
    if is_pickle(path):
        snapshot: Snapshot = open_path(path)
        segments = snapshot.memory_map.segments
        off = sum(sum(block.size for block in each.blocks) != each.size for each in segments)
        damage = [f"{format_counted(off, 'segment')} whose blocks do not add up"] if off else []
        rows, notes = _rows_of_snapshot(snapshot), list(snapshot.notes)
        return _print(rows, damage, (), notes, as_json=arguments.json)
    reader = read_lines(path)
    session = session_of(path, reader)
    has_no_end = reader.end is None and not session.running
    damage = ["see the notes"] if reader.dropped or reader.holes or has_no_end else []
    notes = session.notes[-MOST_NOTES:]
    as_json = arguments.json
    return _print(_rows(session, reader), damage, session.findings, notes, as_json=as_json)


def _rows(session: Session, reader: StreamReader) -> Iterator[tuple[str, str]]:
    written = ", ".join(f"{name} {version}" for name, version in session.software.items())
    by = f", written by {written}" if written else ""
    yield "format", f"version {0 if reader.head is None else reader.head.version}{by}"
    yield "label", session.label or "none"
    yield "began", time_text(session.started_at, "%Y-%m-%d %H:%M:%S UTC")
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


def _rows_of_snapshot(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    held = snapshot.memory_map
    yield "format", "a snapshot of torch's allocator"
    for at, key in enumerate(held.devices[:MOST_DEVICES]):
        segments = [segment for segment in held.segments if segment.device == key]
        blocks = [block for segment in segments for block in segment.blocks]
        live = [block.size for block in blocks if block.state == "allocated"]
        sizes = f"{format_bytes(sum(live))} allocated, {format_bytes(held.reserved(key))} reserved"
        counts = format_counted(len(segments), "segment"), format_counted(len(blocks), "block")
        yield "" if at else "devices", f"{key} {', '.join((sizes, *counts))}"
    peaks = sorted(snapshot.stacks.peaks, key=lambda peak: held.devices.index(peak.device))
    for at, peak in enumerate(peaks[:MOST_DEVICES]):
        yield "" if at else "history", f"{peak.device} {history_text(peak)}"
    for at, peak in enumerate(peaks[:MOST_DEVICES]):
        yield "" if at else "peaks", f"{peak.device} {peak_text(peak.peak)}"


def _peak(session: Session, device: Device) -> Peak:
    key = f"{device.key}/allocated"
    value = session.peak(key)
    peaks = [span.peaks[key] for span in session.spans if key in span.peaks]
    steps = (group.devices[device.key] for group in session.steps if device.key in group.devices)
    peaks += [Peak(step.peak, step.certainty) for step in steps]
    certainty: Certainty = next(
        (peak.certainty for peak in peaks if peak.value == value), "sampled"
    )
    return Peak(value, certainty)


def _print(
    rows: Iterable[tuple[str, str]],
    damage: Sequence[str],
    findings: Sequence[Finding],
    notes: Sequence[str],
    *,
    as_json: bool,
) -> int:
    if as_json:
        held: dict[str, list[str]] = {}
        for name, text in rows:
            held.setdefault(name or next(reversed(held)), []).append(text)
        found = {"schema": "hfmem.check/1", "holds": held, "damage": damage, "notes": notes}
        judged = [asdict(each) for each in findings[:MOST]]
        say(json.dumps(json_data(found | {"findings": judged})))
        return NO if damage else FINE
    damaged = zip_longest(["damage"], damage or ["none"], fillvalue="")
    lines = [[name, plain(text, 300)] for name, text in (*rows, *damaged)]
    noted = (f"  note: {plain(note, 300)}" for note in notes)
    say("\n".join((aligned(lines, {0, 1}), *findings_lines(findings, MOST), *noted)))
    return NO if damage else FINE


def _rows_of_run(run: Run) -> Iterator[tuple[str, str]]:
    ranks, session = run.overview.ranks, run.overview
    yield "run", run.id
    yield "label", session.label or "none"
    yield "state", "running" if run.running else "finished"
    yield "ranks", f"{format_count(len(run))} of {format_count(run.world)}"
    yield "nodes", format_count(len(run.nodes))
    yield "engine", (ranks.engine if ranks else "") or "unknown"
    streams = run.collector.all_streams.values()  # also of files that do not count
    begun = [(one.head.version, one.rank.attempt) for one in streams if one.head is not None]
    versions = sorted({version for version, _ in begun})
    yield "format", ", ".join(f"version {version}" for version in versions) or "none"
    yield "attempts", format_count(len({attempt for _, attempt in begun}))
    yield "steps", format_count(session.steps.count)
    if ranks is not None and run.worst is not None:
        highest = run.ranks[run.worst]
        yield "highest peak", f"rank {highest.rank}: {format_bytes(highest.peak)}"
        yield "median peak", format_bytes(ranks.median)
        yield "lowest peak", f"rank {ranks.lowest_rank}: {format_bytes(ranks.lowest)}"
    clocks = [
        f"{plain(host)} {by:+.1f} s"
        for host, by in list(run.collector.roster.offsets.items())[:MOST_NAMED]
    ]
    yield "clocks", ", ".join(clocks) or "agree"


def _damage(run: Run) -> Iterator[str]:
    missing, streams = run.world - len(run), run.collector.all_streams.values()
    if missing or not run.world:
        yield f"{format_counted(missing, 'rank')} missing" if run.world else "no rank has written"
    if dropped := sum(stream.dropped for stream in streams):
        yield f"{format_counted(dropped, 'line')} could not be read"
    if holes := sum(stream.holes for stream in streams if stream.head is not None):
        yield f"{format_counted(holes, 'block')} of samples missing"
    endless = [stream for stream in run.collector.streams.values() if not stream.is_over]
    if endless and not run.running:
        yield f"no end: {_named(endless)}"
    yield from run.collector.notes_on_left_out()


def _named(streams: Sequence[RankStream]) -> str:
    names = [str(stream.rank.rank) for stream in streams[:MOST_NAMED]]
    more = [f"{format_count(len(streams) - MOST_NAMED)} more"] if len(streams) > MOST_NAMED else []
    return f"rank{'s' if len(streams) > 1 else ''} {', '.join((*names, *more))}"
