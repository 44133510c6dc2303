"""Sessions whose readings are written out row by row."""

from collections.abc import Mapping, Sequence
from typing import Any

from hfmem_widget.session import Device, Peak, Recorder, Sample, Series, Session, Span, Timeline
from hfmem_widget.text import GIB

GPU = "cuda:0"
KEY = f"{GPU}/allocated"
Row = float | tuple[float, ...]


def recorder_of(
    *rows: Row,
    keys: Sequence[str] = (GPU,),
    metrics: Sequence[str] = ("allocated",),
    total: float = 80 * GIB,
    every: float = 1.0,
    timeline: Timeline | None = None,
) -> Recorder:
    """Return the recorder of a session of devices, with these rows as readings at fixed intervals."""
    recorder = Recorder("run")
    if timeline is not None:
        recorder.session.timeline = timeline
    series = [Series(key, metric) for key in keys for metric in metrics]
    recorder.adopt([Device(key, "NVIDIA H200", total=total) for key in keys], series)
    for at, row in enumerate(rows):
        read(recorder, at * every, row)
    return recorder


def read(recorder: Recorder, time: float, row: Row) -> Sample:
    return recorder.append(Sample(time, row if isinstance(row, tuple) else (row,)))


def cell_of(
    first: Row,
    *rows: Row,
    peaks: Mapping[str, float] | None = None,
    outcome: str = "done",
    every: float = 1.0,
    **shape: Any,
) -> tuple[Session, Span]:
    """Return a session and its cell, from the first row to the last; `peaks` are exact, by series."""
    recorder = recorder_of(first, **shape)
    span = recorder.open_span("cell", "run", recorder.session.last_sample)
    for at, row in enumerate(rows, 1):
        read(recorder, at * every, row)
    known = {key: Peak(size, "exact") for key, size in (peaks or {}).items()}
    last = recorder.session.last_sample
    return recorder.session, recorder.close_span(span.id, last, known, outcome)
