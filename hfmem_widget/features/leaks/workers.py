"""A DataLoader's workers whose memory grows while they read, as where each copies the data set for itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hfmem_widget.analysis.facts import end_of
from hfmem_widget.features.leaks.trends import Floats
from hfmem_widget.session import Finding, Session, Span
from hfmem_widget.text import MIB, format_bytes, format_counted, format_duration

LEAST = 256 * MIB
LEAST_SHARE = 0.4
"""Bytes, and share of the bytes after the warm-up, by which workers must have grown."""

LEAST_SECONDS = 10.0
LEAST_READINGS = 8

MOST_FALL = 0.05
"""Share of the growth by which a quarter of the readings may lie below the quarter before."""

MOST_WARM_UP = 10.0
"""Seconds of warm-up, at most a fifth of all: workers import, and fetch batches ahead."""

ADVICE = (
    (
        "Keep samples in NumPy arrays, tensors or an Arrow table, not in lists of Python objects: a worker "
        "that reads an object changes its reference count, and so gets a copy of its own."
    ),
    "Use fewer workers (num_workers): each has its own copy.",
    "Leave persistent_workers off: workers then start anew, without copies, at every epoch.",
)


def growing_workers(session: Session, span: Span) -> Iterator[Finding]:
    """Yield a finding if the same number of workers held more and more within an outermost span."""
    columns = [session.index(f"cpu/{name}") for name in ("children", "data_workers")]
    present = [column for column in columns if column is not None]
    if session.ranks is not None or len(present) < len(columns):
        return
    rows = session.between(span.start, end_of(session, span), present)
    held, workers = rows.low[:, 0], rows.high[:, 1]
    # What is not known counts as no worker, and so does a row in which their number changed.
    workers = np.where(np.isfinite(held) & (workers == rows.low[:, 1]), workers, 0.0)
    stretches = np.split(np.arange(len(held)), np.flatnonzero(np.diff(workers)) + 1)
    grown = [
        (last - first, first, last, seconds, int(workers[stretch[0]]))
        for stretch in stretches
        if len(stretch) and workers[stretch[0]] > 0
        for first, last, seconds in _growth(rows.time[stretch], held[stretch])
    ]
    for more, first, last, seconds, count in sorted(grown)[-1:]:
        title = (
            f"{format_counted(count, 'DataLoader worker')} grew from {format_bytes(first)} to "
            f"{format_bytes(last)} within {format_duration(seconds)}"
        )
        evidence = {"device": "cpu", "workers": count, "seconds": seconds, "grown": round(more)}
        evidence |= {"first": round(first), "last": round(last)}
        yield Finding("workers", "warn", title, evidence, ADVICE, span.id)


def _growth(time: Floats, held: Floats) -> Iterator[tuple[float, float, float]]:
    """Yield what was held when they had warmed up and in the end, and the seconds between, if it grew."""
    seconds = float(time[-1] - time[0])
    warm = time >= time[0] + min(MOST_WARM_UP, seconds / 5)
    if seconds < LEAST_SECONDS or warm.sum() < LEAST_READINGS:
        return
    first = float(held[warm][0])
    levels = [first, *(float(np.median(each)) for each in np.array_split(held[warm], 4))]
    grown = levels[-1] - first
    if grown >= max(LEAST, LEAST_SHARE * first) and min(np.diff(levels)) >= -MOST_FALL * grown:
        yield first, levels[-1], float(time[-1] - time[warm][0])
