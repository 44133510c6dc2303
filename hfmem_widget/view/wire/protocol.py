"""The wire: a session as messages. ``docs/wire.md`` says what they mean; `protocol.ts` reads them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hfmem_widget.analysis.facts import GRAVITY, peak_of
from hfmem_widget.analysis.kept import points_of
from hfmem_widget.analysis.others import brief_lead
from hfmem_widget.session import (
    Finding,
    Guide,
    RankRow,
    Ranks,
    RankStrip,
    Session,
    Span,
    Timeline,
    outermost,
)
from hfmem_widget.session.rank_records import SILENT_CELL, STRIP_COLUMNS, TABLE_ROWS
from hfmem_widget.session.series import LINES, TABLE, is_charted
from hfmem_widget.session.steps import CERTAINTIES, Table
from hfmem_widget.session.timeline import Floats
from hfmem_widget.text import plain
from hfmem_widget.view.findings import sentence
from hfmem_widget.view.line import NAME

PROTOCOL = 1
METRICS = tuple(name for name, row in TABLE.items() if row.sent)
"""The metrics that are sent of every device that has them."""


@dataclass(frozen=True, slots=True)
class Detail:
    """The most samples, steps and closed spans of one message, by count or by bytes, whichever is less.

    A row takes 20 bytes with one device, 44 with its parts, 104 or 296 with eight devices; a step 144 or 648.
    """

    rows: float
    row_bytes: float
    steps: int
    step_bytes: int
    spans: int


FULL = Detail(rows=1000, row_bytes=32_768, steps=200, step_bytes=28_800, spans=20)
OF_RANKS = replace(FULL, row_bytes=98_304)  # a row of eight ranks takes 277 bytes
COARSE = Detail(rows=60, row_bytes=1_400, steps=4, step_bytes=1_300, spans=1)
NEWS = Detail(rows=math.inf, row_bytes=3_072, steps=20, step_bytes=6_480, spans=20)
BRIEF_NEWS = Detail(rows=30, row_bytes=832, steps=3, step_bytes=1_300, spans=3)
FEWEST_ROWS, FEWEST_STEPS = 8, 2  # whatever the number of devices
MOST_IN_PATH = 6  # open spans

Message = dict[str, Any]
Buffers = list[bytes]
RanksMessage = tuple[dict[str, Any], bytes]


def charted(session: Session) -> list[int]:
    """Return the columns of the session's series that are sent, in order."""
    return [
        at
        for at, series in enumerate(session.series)
        if series.metric in METRICS and is_charted(series.device, series.metric)
    ]


def describe(session: Session, *, panel: bool = True) -> Message:
    """Return the schema: the columns, and whether JupyterLab's panel may open by itself."""
    series = [session.series[column] for column in charted(session)]
    sent = {each.device for each in series}
    schema: Message = {
        "label": session.label,
        "started_at": session.started_at,
        "panel": panel,
        "devices": [
            {"key": device.key, "name": plain(device.name), "total": _number(device.total)}
            | ({"shared": True} if device.shared else {})
            for device in session.devices
            if device.key in sent
        ],
        # Eight devices have some seventy series; the page has the other labels itself.
        "series": [
            {"device": each.device, "metric": each.metric}
            | ({"label": plain(each.label or each.metric)} if each.metric in LINES else {})
            for each in series
        ],
    }
    if len(session.steps):
        schema["step_columns"] = list(session.steps.columns)
    return schema


def describe_span(session: Session, span: Span) -> Message:
    """Return a span with its allocated memory on each device that had any."""
    devices = {}
    for device in session.devices:
        key = f"{device.key}/allocated"
        before = session.value(span.before, key)
        after = session.value(span.after, key) if span.after is not None else math.nan
        peak = peak_of(session, span, key)
        if any(value > 0 for value in (before, after, peak.value)):
            devices[device.key] = {
                "before": _number(before),
                "after": _number(after),
                "peak": _number(peak.value),
                "certainty": peak.certainty,
            }
    described: Message = {
        "id": span.id,
        "parent": span.parent,
        "kind": span.kind,
        "label": span.label,
        "start": round(span.start, 4),
        "stop": None if span.stop is None else round(span.stop, 4),
        "outcome": span.outcome,
        "devices": devices,
    }
    if span.counts:
        described["counts"] = {name: _number(value) for name, value in span.counts.items()}
    return described


def describe_status(session: Session) -> Message:
    """Return the state of the watch, and the open spans."""
    polling = session.polling
    state = "failed" if polling.stopped else "running" if session.running else "stopped"
    status: Message = {
        "state": state,
        "elapsed": round(session.last_sample.time, 3),
        "interval": polling.current_interval,
        "missed": polling.missed,
        "cost": _number(round(polling.cost, 7)),
        "text": polling.stopped,
    }
    newest = outermost(session.coarse_spans)[-1:]
    # What other processes did to the devices while this one used none.
    lead = "".join(plain(brief_lead(session, span)) for span in newest)
    extras = {"path": _path(session), "lead": lead, "limited": polling.limited}
    return status | {name: value for name, value in extras.items() if value}


def new_steps(session: Session, after: float, detail: Detail = NEWS) -> Table:
    """Return the steps that ended after the second `after`, for a `rows` message."""
    fits = detail.step_bytes // (8 * len(session.steps.columns))
    return session.folded_steps(max(FEWEST_STEPS, min(detail.steps, fits)), after)


def _path(session: Session) -> list[str]:
    # Outermost first, a step with the number of all steps.
    path: list[str] = []
    steps = math.nan
    for span in session.open_spans[:MOST_IN_PATH]:
        steps = span.counts.get("steps", steps)
        label = plain(span.label or span.kind)
        is_numbered = span.kind == "step" and label[-1:].isdigit() and math.isfinite(steps)
        path.append(f"{label} of {steps:.0f}" if is_numbered else label)
    return path


def rows(
    session: Session,
    run: str,
    seq: int,
    samples: Sequence[tuple[float, Sequence[float]]],
    spans: Iterable[Span],
    *,
    steps: Table | None = None,
    detail: Detail = NEWS,
) -> tuple[Message, Buffers]:
    """Return the news: samples as (seconds, all values), changed spans, and `new_steps`.

    A sample without values marks a gap. Samples beyond the room of `detail` are folded as in a snapshot.
    """
    columns = charted(session)
    time = np.array([at for at, _ in samples], "<f8")
    read = [[row[at] if at < len(row) else math.nan for at in columns] for _, row in samples]
    values = np.array(read, "<f4").reshape(len(samples), len(columns))
    most = _most_rows(len(columns), detail)
    if len(time) > most:
        time, values = fold(time, values, int(most))
    message = {
        "kind": "rows",
        "run": run,
        "seq": seq,
        "rows": len(time),
        "spans": [describe_span(session, span) for span in spans],
        "status": describe_status(session),
    }
    return _packed(message, time, values, steps)


def snapshot(
    session: Session, run: str, seq: int, *, panel: bool = True, detail: Detail = FULL
) -> tuple[Message, Buffers]:
    """Return the whole session with its findings and guides, decimated to the room of `detail`."""
    if detail is FULL and session.ranks is not None:
        detail = OF_RANKS
    columns = charted(session)
    timeline = session.between(0.0, math.inf, columns)
    time, values = decimate(timeline, int(_most_rows(len(columns), detail)))
    # Without steps and their parts, which are sent as rows of steps.
    spans = session.coarse_spans
    recent = [span for span in spans if span.stop is not None][-detail.spans :]
    still_open = [span for span in spans if span.stop is None]
    sent = sorted([*recent, *still_open], key=lambda span: span.id)
    message: Message = {
        "kind": "snapshot",
        "protocol": PROTOCOL,
        "run": run,
        "seq": seq,
        "rows": len(time),
        "schema": describe(session, panel=panel),
        "spans": [describe_span(session, span) for span in sent],
        "status": describe_status(session),
    }
    if detail is COARSE:
        message["coarse"] = True
    message |= {name: found for name, found in judged(session).items() if found}
    packed = _packed(message, time, values, new_steps(session, -math.inf, detail))
    if session.ranks is None:
        return packed
    return with_ranks(*packed, describe_ranks(session.ranks, is_outline=detail is COARSE))


def with_ranks(
    message: Message, buffers: Buffers, ranks: RanksMessage | None
) -> tuple[Message, Buffers]:
    """Return a message with the state of all ranks, if it is known; the strip is the last buffer."""
    if ranks is None:
        return message, buffers
    return {**message, "ranks": ranks[0]}, [*buffers, ranks[1]]


def _most_rows(columns: int, detail: Detail) -> float:
    return max(FEWEST_ROWS, min(detail.rows, detail.row_bytes // (8 + 4 * max(1, columns))))


def _packed(
    message: Message, time: Floats, values: Floats, steps: Table | None
) -> tuple[Message, Buffers]:
    buffers = [time.astype("<f8").tobytes(), values.astype("<f4").tobytes()]
    if steps is None or not len(steps):
        return message, buffers
    return {**message, "steps": len(steps)}, [*buffers, steps.astype("<f8").tobytes()]


def fold(time: Floats, values: Floats, most: int) -> tuple[Floats, Floats]:
    """Return at most `most` rows for these, of which rows of NaN mark gaps; see `decimate`."""
    is_gap = np.isnan(values).all(axis=1)
    gaps = [(at, at) for at in time[is_gap].tolist()]
    time, values = time[~is_gap], values[~is_gap]
    return decimate(Timeline.from_rows(time, values, values, gaps=gaps), most)


def decimate(timeline: Timeline, most: int) -> tuple[Floats, Floats]:
    """Return a timeline as at most `most` rows (8 or more): seconds and values of ``(rows, timeline.width)``.

    A folded stretch gives two rows of one time, its lowest and its highest values; a gap gives a row of NaN.
    """
    time, low, high = timeline.time, timeline.low, timeline.high
    folded = timeline.bucket > 1
    gaps = sorted(timeline.gaps, key=lambda gap: gap[0] - gap[1])[: most // 8]
    room = most - len(gaps)
    if len(time) > (room // 2 if folded else room):
        step = math.ceil(len(time) / (room // 2))
        starts = np.arange(0, len(time), step)
        time = time[starts]
        low, high = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
        folded = True
    if folded:
        time = np.repeat(time, 2)
        low = np.stack([low, high], axis=1).reshape(len(time), low.shape[1])
    if gaps:
        middles = np.array([(start + stop) / 2 for start, stop in sorted(gaps)])
        places = time.searchsorted(middles)
        time = np.insert(time, places, middles)
        low = np.insert(low, places, np.nan, axis=0)
    return time, low


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


MOST = 8  # findings
MOST_OF_A_KIND = 10  # guides: a budget or a trend for each of eight GPUs and the host
SENTENCE, LABEL = 200, 80  # characters

Judged = dict[str, list[dict[str, Any]]]
NOTHING: Judged = {"findings": [], "guides": []}


def judged(session: Session) -> Judged:
    """Return the findings of a session, newest span and gravest first, and its guides."""

    def place(finding: Finding) -> tuple[float, int]:
        span = math.inf if finding.span_id is None else finding.span_id
        return -span, GRAVITY[finding.severity]

    guides = [
        guide
        for guide in session.guides
        if all(map(math.isfinite, (guide.start, guide.first, guide.last, *guide.band)))
    ]
    kinds = ("budget", "trend", "oom")
    of_kinds = ([guide for guide in guides if guide.kind == kind] for kind in kinds)
    return {
        "findings": list(map(describe_finding, sorted(session.findings, key=place)[:MOST])),
        "guides": [describe_guide(each) for alike in of_kinds for each in alike[-MOST_OF_A_KIND:]],
    }


def describe_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding with its time, its device and what names keep, without other evidence and advice."""
    described: dict[str, Any] = {
        "kind": plain(finding.kind, LABEL),
        "severity": finding.severity,
        "title": sentence(finding.title, SENTENCE),
        "span": finding.span_id,
    }
    device, at = finding.evidence.get("device"), finding.evidence.get("time")
    if isinstance(device, str):
        described["device"] = plain(device, LABEL)
    if isinstance(at, int | float) and math.isfinite(at):
        described["time"] = round(float(at), 4)
    if len(kept := points_of(finding.evidence)):
        described["kept"] = kept.tolist()
    return described


def describe_guide(guide: Guide) -> dict[str, Any]:
    """Return a guide; its `stop` is null until the end of the run, and an exact one has no band."""
    described: dict[str, Any] = {
        "device": guide.device,
        "kind": guide.kind,
        "label": plain(guide.label, LABEL),
        "start": round(guide.start, 4),
        "stop": round(guide.stop, 4) if math.isfinite(guide.stop) else None,
        "first": round(guide.first),
        "last": round(guide.last),
    }
    return {**described, "band": list(map(round, guide.band))} if any(guide.band) else described


MOST_PHASES = 8
MOST_DEVICES = 4

OUTLINE_BYTES, FEWEST_COLUMNS = 1_400, 16  # at most and at least, of a strip in an outline


def describe_ranks(ranks: Ranks, *, is_outline: bool = False) -> RanksMessage:
    """Return all ranks as JSON, and the cells of the whole strip, coarser for an outline."""
    rows = max(1, len(ranks.strip.first))
    most = max(FEWEST_COLUMNS, OUTLINE_BYTES // rows) if is_outline else STRIP_COLUMNS
    return described(ranks, folded(ranks.strip, most), is_whole=True)


def described(ranks: Ranks, strip: RankStrip, *, is_whole: bool) -> RanksMessage:
    """Return all ranks as JSON, and the cells of a strip; a whole one has the first rank of each row."""
    rows = ranks.table[:TABLE_ROWS]
    devices = list(dict.fromkeys(map(_device, rows)))[:MOST_DEVICES]
    columns: dict[str, Any] = {"at": [round(at, 3) for at in strip.at]}
    if is_whole:
        columns["first"] = list(strip.first)
    message = {
        "world": ranks.world,
        "nodes": ranks.nodes,
        "reporting": ranks.reporting,
        "engine": plain(ranks.engine, NAME),
        "lowest": _whole(ranks.lowest),
        "median": _whole(ranks.median),
        "lowest_rank": ranks.lowest_rank,
        "devices": list(map(list, devices)),
        "table": [_row(row, devices) for row in rows],
        "phases": [
            [phase.kind, _whole(phase.low), _whole(phase.median), _whole(phase.high), phase.rank]
            for phase in ranks.phases[:MOST_PHASES]
        ],
        "strip": columns,
    }
    return message, strip.cells


def _device(row: RankRow) -> tuple[str, int | None]:
    return plain(row.device, NAME), _whole(row.total)


def _row(row: RankRow, devices: list[tuple[str, int | None]]) -> list[Any]:
    device = _device(row)
    return [
        row.rank,
        row.attempt,
        plain(row.host, NAME),
        devices.index(device) if device in devices else None,
        CERTAINTIES.index(row.certainty),
        *map(_whole, (row.peak, row.weights, row.activations)),
        row.step,
        plain(row.phase, NAME),
        round(row.silent) if math.isfinite(row.silent) else 0,
        row.flag,
    ]


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


def newest(strip: RankStrip, columns: int) -> RankStrip:
    """Return the last columns of a strip."""
    begin = len(strip.at) - columns
    return replace(strip, at=strip.at[begin:], cells=strip.cells[begin * len(strip.first) :])


def folded(strip: RankStrip, most: int) -> RankStrip:
    """Return a strip of at most `most` columns, each the highest of neighbours, silent only if all are."""
    size, rows = -(-len(strip.at) // most), len(strip.first)
    if size <= 1 or not rows:
        return strip
    cells = np.frombuffer(strip.cells, np.uint8).reshape(-1, rows).astype(np.int16)
    cells[cells == SILENT_CELL] = -1
    highest = np.maximum.reduceat(cells, np.arange(0, len(cells), size))
    highest[highest < 0] = SILENT_CELL
    return RankStrip(strip.first, strip.at[::size], highest.astype(np.uint8).tobytes())
