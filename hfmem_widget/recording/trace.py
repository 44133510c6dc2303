"""A session as a trace in Chrome's format, which ui.perfetto.dev and chrome://tracing open.

Curves are counters, with one process for each device. Spans and steps are slices; the slices of a track
are nested or follow each other. Findings are instants.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from hfmem_widget.analysis.facts import outcome_of
from hfmem_widget.recording.lines import JSON
from hfmem_widget.session import Session, Span, StepGroup
from hfmem_widget.text import format_bytes, json_number, plain, wrong_value

TRACES = (".perfetto.json", ".trace.json")
"""The endings of a trace's name."""

FINEST = 0.001
"""The least seconds between two points of a curve."""

AT_ONCE = 4096

_RUN = 1
_FINDINGS, _GAPS, _SLICES = 100_001, 100_002, 100_003
_TRACKS = {_FINDINGS: "findings", _GAPS: "not sampled", _SLICES: "spans and steps"}
"""Process and tracks of the run; each device has a process of its own behind it. None is 0: Perfetto takes
that for the idle thread."""

_UNITS = {"utilization": "percent", "alloc_retries": "count", "ooms": "count"}
"""The unit of a series that does not count bytes; Perfetto shows it after the counter's name."""

Event = dict[str, Any]


def trace(session: Session, resolution: float = 1.0) -> Iterator[bytes]:
    """Return the contents of a trace, or raise `OptionError`; see `Session.save`."""
    if not FINEST <= resolution < math.inf:
        raise wrong_value(resolution, "resolution", f"{FINEST:g} seconds or more")
    return _chunks(session, resolution)


def _chunks(session: Session, resolution: float) -> Iterator[bytes]:
    gaps = (
        _slice("not sampled", "gap", *gap, {}) | {"tid": _GAPS} for gap in session.timeline.gaps
    )
    groups = (_slices(session), _findings(session), gaps, _counters(session, resolution))
    ordered = sorted(chain(*groups), key=_order)
    events = [*_names(session, ordered), *ordered]
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    for first in range(0, len(events), AT_ONCE):
        comma = ",\n" if first else ""
        lines = ",\n".join(map(JSON.encode, events[first : first + AT_ONCE]))
        yield f"{comma}{lines}".encode("utf-8", "replace")
    yield b"\n]}\n"


def _order(event: Event) -> tuple[int, int]:
    """Return the sort key of an event: its begin; of slices that begin together the longest comes first."""
    return event["ts"], -event.get("dur", 0)


def _names(session: Session, events: Iterable[Event]) -> Iterator[Event]:
    label = plain(session.label) or "run"
    yield _meta("process_name", _RUN, _RUN, label)
    for track in sorted({event["tid"] for event in events if event["pid"] == _RUN}):
        more = f"spans and steps ({track - _SLICES + 1})"
        yield _meta("thread_name", _RUN, track, _TRACKS.get(track, more))
    for process, device in enumerate(session.devices, _RUN + 1):
        name = f"{plain(device.key)} {plain(device.name)}".strip()
        yield _meta("process_name", process, process, name)


def _meta(kind: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _micro(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _slices(session: Session) -> list[Event]:
    end = _end(session)
    slices = [_of_span(session, span, end) for span in session.spans]
    with_span = {(slice_["cat"], slice_["ts"]) for slice_ in slices}
    # In a long run not every step has a span, and neighbouring steps may share a row.
    slices += [
        slice_
        for slice_ in map(_of_steps, session.steps)
        if ("step", slice_["ts"]) not in with_span
    ]
    slices.sort(key=_order)
    tracks: list[list[int]] = []
    for slice_ in slices:
        slice_["tid"] = _SLICES + _free_track(tracks, slice_["ts"], slice_["ts"] + slice_["dur"])
    return slices


def _slice(name: str, kind: str, start: float, stop: float, args: Mapping[str, object]) -> Event:
    at = _micro(start)
    return {
        "ph": "X", "name": name, "cat": kind, "pid": _RUN, "tid": _SLICES,
        "ts": at, "dur": max(0, _micro(stop) - at), "args": args,
    }  # fmt: skip


def _free_track(tracks: list[list[int]], start: int, stop: int) -> int:
    """Return the first track on which a slice fits within the slices open there; tracks hold their ends."""
    for at, ends in enumerate(tracks):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or stop <= ends[-1]:
            ends.append(stop)
            return at
    tracks.append([stop])
    return len(tracks) - 1


def _of_span(session: Session, span: Span, end: float) -> Event:
    args: dict[str, object] = {"outcome": outcome_of(session, span)}
    args |= {plain(name): json_number(count) for name, count in span.counts.items()}
    for key, peak in span.peaks.items():
        args[f"{key} peak"] = f"{format_bytes(peak.value)} {peak.certainty}"
    stop = end if span.stop is None else span.stop
    return _slice(plain(span.label) or span.kind, span.kind, span.start, stop, args)


def _of_steps(group: StepGroup) -> Event:
    is_one = group.first == group.last
    name = f"step {group.first}" if is_one else f"steps {group.first}\u2013{group.last}"
    figures = {"samples": group.samples, "tokens": group.tokens, "longest": group.longest}
    args: dict[str, object] = {
        name: json_number(value) for name, value in figures.items() if math.isfinite(value)
    }
    for key, device in group.devices.items():
        args[f"{key}/allocated peak"] = f"{format_bytes(device.peak)} {device.certainty}"
    return _slice(name, "step", group.start, group.stop, args)


def _findings(session: Session) -> Iterator[Event]:
    ends = {span.id: span.stop for span in session.spans}
    for finding in session.findings:
        seconds = finding.evidence.get("time", ends.get(finding.span_id or 0))
        time = float(seconds) if isinstance(seconds, int | float) else _end(session)
        yield {
            "ph": "i", "s": "t", "name": plain(finding.title, 300), "cat": finding.severity,
            "pid": _RUN, "tid": _FINDINGS, "ts": _micro(time if math.isfinite(time) else _end(session)),
            "args": {"kind": finding.kind, "advice": "\n".join(map(plain, finding.advice))},
        }  # fmt: skip


def _counters(session: Session, resolution: float) -> Iterator[Event]:
    timeline = session.between(-math.inf, math.inf)
    time, high = timeline.time, timeline.high
    if not len(time):
        return
    places = np.floor((time - time[0]) / resolution)
    begins = np.flatnonzero(np.diff(places, prepend=-1.0))
    high = np.fmax.reduceat(high, begins)
    at = [_micro(second) for second in time[begins].tolist()]
    processes = {device.key: process for process, device in enumerate(session.devices, _RUN + 1)}
    last = session.last_sample
    for column, series in enumerate(session.series[: timeline.width]):
        name, unit = plain(series.label) or series.metric, _UNITS.get(series.metric, "bytes")
        process = processes.get(series.device, _RUN)
        values = (*high[:, column].tolist(), session.value(last, series.key))
        before, end = math.nan, len(at)
        for point, (ts, value) in enumerate(zip((*at, _micro(last.time)), values, strict=True)):
            # A counter holds its value until the next event, but viewers draw it only up to the last one.
            if math.isfinite(value) and (value != before or point == end):
                yield {
                    "ph": "C", "name": name, "pid": process, "tid": process, "ts": ts,
                    "args": {unit: json_number(value)},
                }  # fmt: skip
                before = value


def _end(session: Session) -> float:
    stops = (span.stop for span in session.spans if span.stop is not None)
    return max(session.last_sample.time, *stops, 0.0)
