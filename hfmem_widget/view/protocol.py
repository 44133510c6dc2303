"""The wire: a session as messages. ``docs/wire.md`` says what they mean; `protocol.ts` reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hfmem_widget.labels import plain
from hfmem_widget.session import Session, Span, Timeline

PROTOCOL = 1
METRICS = ("allocated", "reserved", "device_used")
"""What is charted, of every device."""

SNAPSHOT_ROWS = 1000
SNAPSHOT_BYTES = 32_768
SPANS_IN_SNAPSHOT = 20
SPANS_IN_ROWS = 20

Message = dict[str, Any]
Buffers = list[bytes]


def charted(session: Session) -> list[int]:
    """Return the columns of the session that are sent, in order."""
    return [i for i, series in enumerate(session.series) if series.metric in METRICS]


def describe(session: Session) -> Message:
    """Return the schema: what the columns are."""
    columns = charted(session)
    series = [session.series[column] for column in columns]
    sent = {one.device for one in series}
    return {
        "label": session.label,
        "started_at": session.started_at,
        "devices": [
            {"key": device.key, "name": plain(device.name), "total": _number(device.total)}
            for device in session.devices
            if device.key in sent
        ],
        "series": [
            {
                "key": one.key,
                "device": one.device,
                "metric": one.metric,
                "label": plain(one.label or one.metric),
            }
            for one in series
        ],
    }


def describe_span(session: Session, span: Span) -> Message:
    """Return a span with what it did to allocated memory on each device it touched."""
    devices = {}
    for device in session.devices:
        key = f"{device.key}/allocated"
        before = session.value(span.before, key)
        after = session.value(span.after, key) if span.after is not None else math.nan
        peak = span.peaks.get(key)
        highest = peak.value if peak is not None else session.highest_in(span.id, key)
        known = (value for value in (before, after, highest) if not math.isnan(value))
        if max(known, default=0.0) > 0:
            devices[device.key] = {
                "before": _number(before),
                "after": _number(after),
                "peak": _number(highest),
                "certainty": peak.certainty if peak is not None else "sampled",
            }
    return {
        "id": span.id,
        "parent": span.parent,
        "kind": span.kind,
        "label": span.label,
        "start": round(span.start, 4),
        "stop": None if span.stop is None else round(span.stop, 4),
        "outcome": span.outcome,
        "devices": devices,
    }


def describe_status(session: Session) -> Message:
    """Return how the watch is doing."""
    polling = session.polling
    state = "failed" if polling.stopped else "running" if session.running else "stopped"
    return {
        "state": state,
        "elapsed": round(session.last_sample.time, 3),
        "interval": polling.current_interval,
        "missed": polling.missed,
        "cost": _number(round(polling.cost, 7)),
        "text": polling.stopped,
    }


def rows(
    session: Session,
    run: str,
    seq: int,
    samples: Sequence[tuple[float, Sequence[float]]],
    spans: Iterable[Span],
) -> tuple[Message, Buffers]:
    """Return what is new: samples as (seconds, all values of the session), and the spans that changed."""
    columns = charted(session)
    time = np.array([sample[0] for sample in samples], "<f8")
    values = np.full((len(samples), len(columns)), np.nan, "<f4")
    for row, (_, sample) in enumerate(samples):
        for place, column in enumerate(columns):
            if column < len(sample):
                values[row, place] = sample[column]
    message = {
        "kind": "rows",
        "run": run,
        "seq": seq,
        "rows": len(samples),
        "spans": [describe_span(session, span) for span in spans],
        "status": describe_status(session),
    }
    return message, [time.tobytes(), values.tobytes()]


def snapshot(session: Session, run: str, seq: int) -> tuple[Message, Buffers]:
    """Return the whole session, decimated to at most `SNAPSHOT_ROWS` rows and `SNAPSHOT_BYTES`."""
    columns = charted(session)
    fits = SNAPSHOT_BYTES // (8 + 4 * max(1, len(columns)))
    timeline = session.between(0.0, math.inf, columns)
    time, values = decimate(timeline, min(SNAPSHOT_ROWS, fits))
    spans = session.spans
    open_spans = {span.id for span in session.open_spans}
    recent = [span for span in spans if span.id not in open_spans][-SPANS_IN_SNAPSHOT:]
    sent = sorted([*recent, *session.open_spans], key=lambda span: span.id)
    message = {
        "kind": "snapshot",
        "protocol": PROTOCOL,
        "run": run,
        "seq": seq,
        "rows": len(time),
        "schema": describe(session),
        "spans": [describe_span(session, span) for span in sent],
        "status": describe_status(session),
    }
    return message, [time.astype("<f8").tobytes(), values.astype("<f4").tobytes()]


def decimate(
    timeline: Timeline, most: int
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return a timeline as at most `most` rows that keep every lowest and highest value.

    Parameters
    ----------
    timeline : Timeline
    most : int
        Rows allowed, at least 8.

    Returns
    -------
    time : ndarray, shape (rows,)
        Seconds, never decreasing.
    values : ndarray, shape (rows, timeline.width)
        A stretch that was folded gives two rows at the same time, its lowest and its highest values;
        a gap gives a row of NaN.
    """
    gaps = sorted(timeline.gaps, key=lambda gap: gap[0] - gap[1])[: most // 8]
    time, low, high = timeline.time, timeline.low, timeline.high
    room = most - len(gaps)
    folded = timeline.bucket > 1
    if len(time) > (room // 2 if folded else room):
        step = math.ceil(len(time) / (room // 2))
        starts = np.arange(0, len(time), step)
        time = time[starts]
        low, high = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
        folded = True
    if folded:
        time = np.repeat(time, 2)
        low = np.stack([low, high], axis=1).reshape(len(time), timeline.width)
    if gaps:
        middles = np.array([(start + stop) / 2 for start, stop in sorted(gaps)])
        places = time.searchsorted(middles)
        time = np.insert(time, places, middles)
        low = np.insert(low, places, np.nan, axis=0)
    return time, low


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
