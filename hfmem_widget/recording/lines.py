"""The parts of a session that were not written yet, as lines: pure functions from data to bytes."""

from __future__ import annotations

import json
import math
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.recording import limits
from hfmem_widget.session import FINE_KINDS, Finding, Guide, Move, Sample, Session, Span, outermost
from hfmem_widget.session.rank_records import Rank
from hfmem_widget.session.stacks import ELSE, LivePeak, Site
from hfmem_widget.session.steps import FIGURES, PER_DEVICE
from hfmem_widget.session.timeline import Floats, resized
from hfmem_widget.text import json_data, json_number

KEY_EVERY = 30
"""In blocks, the distance of those that have every column, where a reader may begin."""

FOLD_EVERY = 10.0
"""Seconds of samples in a fold."""

LONG = 5.0
"""Seconds after which a step's span is written although it is still open: the step hangs or is long."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The lowest and highest values of `samples` samples, each of shape ``(series,)``."""

    start: float
    stop: float
    samples: int
    low: Floats
    high: Floats
    last: Floats


class Lines:
    """Writes the lines of one recording in their order; its session runs or has finished.

    `rank` is the process of a distributed run that the recording belongs to. With many ranks, `only_folds`
    writes a fold in place of each block of samples.
    """

    def __init__(
        self, session: Session, rank: Rank | None = None, *, only_folds: bool = False
    ) -> None:
        self._session = session
        self._rank = rank
        self._only_folds = only_folds
        self._block = 0
        self._series: tuple[object, ...] = ()
        self._columns = 0
        self._last = np.empty(0)
        self._fold: Fold | None = None
        self._spans: dict[int, Span] = {}
        self._steps_until = -math.inf
        self._steps_lines = 0
        self._steps_devices: tuple[str, ...] = ()
        self._written: dict[str, list[object]] = defaultdict(list)
        self._gaps: tuple[float, float] | None = None
        self._contents: object = None
        self._recipe: object = {}

    def head(self, run: str = "") -> bytes:
        """Return the first line; `run` is the id of the distributed run, or of the recording itself."""
        session, rank = self._session, self._rank
        identity = {} if rank is None else asdict(rank)
        engine = {"engine": identity.pop("engine")} if identity else {}
        return _line(
            k="head",
            format=limits.FORMAT,
            version=limits.VERSION,
            run=run or uuid.uuid4().hex,
            part=0,
            started=session.started_at,
            **identity,
            label=session.label,
            interval=session.polling.interval,
            **engine,
            software=dict(session.software),
        )

    def samples(self, samples: Sequence[Sample], wall: float) -> Iterator[bytes]:
        """Yield blocks of the samples since the last call, and a fold where one is full.

        The samples come oldest first; without any, the line is a sign of life. `wall` is in seconds
        since the epoch.
        """
        yield from self._described()
        # Only the series that were described: another thread may add one meanwhile.
        width, most = self._columns, self._most_in_block
        for first in range(0, max(1, len(samples)), most):
            block = samples[first : first + most]
            time = np.array([sample.time for sample in block])
            values = np.full((len(block), width), np.nan)
            for row, sample in zip(values, block, strict=True):
                read = sample.values[:width]
                row[: len(read)] = read
            if not self._only_folds:
                yield self._rows(time, values, wall)
            if len(time) and self._add_to_fold(time, values) >= FOLD_EVERY:
                yield self.fold()
        if self._only_folds:
            yield self._rows(np.empty(0), np.empty((0, width)), wall)  # a sign of life
            yield self.fold()

    def _add_to_fold(self, time: Floats, values: Floats) -> float:
        """Add samples to the fold, and return its seconds."""
        self._fold = fold = joined([*filter(None, [self._fold]), fold_of(time, values)])
        return fold.stop - fold.start

    def fold(self) -> bytes:
        """Return the fold of the samples since the last one; empty if there are none."""
        fold, self._fold = self._fold, None
        return b"" if fold is None else _fold(fold, self._block - 1)

    def timeline(self) -> Iterator[bytes]:
        """Yield the session's timeline as the session keeps it: rows of one sample, or folds of several."""
        yield from self._described()
        session = self._session
        timeline = session.between(-math.inf, math.inf)
        width = self._columns
        time, low, high = timeline.time, timeline.low[:, :width], timeline.high[:, :width]
        if self._only_folds and len(time):
            self._add_to_fold(time, high)
            return
        if timeline.bucket == 1:
            most = self._most_in_block
            for first in range(0, len(time), most):
                rows = slice(first, first + most)
                yield self._rows(time[rows], high[rows], session.started_at + float(time[rows][-1]))
            return
        newest = np.array(session.last_sample.values[:width])
        ends = np.append(time[1:], session.last_sample.time)
        left = session.timeline.samples
        for row, (start, end) in enumerate(zip(time.tolist(), ends.tolist(), strict=True)):
            samples = min(timeline.bucket, left)
            left -= samples
            last = newest if row == len(time) - 1 else low[row]
            yield _fold(Fold(start, end, samples, low[row], high[row], last), row)

    def changed(self, *, everything: bool = False) -> Iterator[bytes]:
        """Yield all that is new or changed but samples; with `everything`, at the end, spans of steps too."""
        session, stacks = self._session, self._session.stacks
        yield from self._changed_spans(everything=everything)
        yield from self._new_steps()
        yield from self._changed_list("note", session.portable_notes)
        yield from self._changed_list("finding", session.findings)
        yield from self._changed_list("guide", session.guides)
        yield from self._changed_list("move", session.moves)
        for start, stop in list(session.timeline.gaps):
            if self._gaps is None or start > self._gaps[0]:
                self._gaps = (start, stop)
                yield _line(k="gap", t=[_time(start), _time(stop)])
        if session.contents != self._contents:
            self._contents = session.contents
            yield _line(k="contents", **asdict(session.contents))
        if session.recipe != self._recipe:
            self._recipe = session.recipe
            yield _line(k="recipe", of=session.recipe)  # unchanged: 0 must not become 0.0
        if everything:
            yield from self._phases()
            yield from self._changed_list("live", map(_live, stacks.peaks if stacks else ()))

    def note(self, text: str) -> bytes:
        """Return a line for a note that the session does not have, numbered after the session's own notes."""
        return _line(k="note", i=len(self._written["note"]), text=text)

    def end(self, wall: float) -> bytes:
        """Return the last line; for its reader, a session that still runs ended now, by the wall clock."""
        session, polling = self._session, self._session.polling
        names = (
            *("ticks", "missed", "longest_gap", "cost", "current_interval"),
            *("steps", "steps_with_phases", "groups", "share"),
        )
        return _line(
            k="end",
            time=_time(session.last_sample.time),
            w=wall,
            stopped=session.stopped_at or wall,
            broken_off=session.broken_off,
            why=polling.stopped,
            **{name: json_data(getattr(polling, name)) for name in names},
            # Again, as in the head: the watched code may have imported more libraries since.
            software=dict(session.software),
        )

    @property
    def _most_in_block(self) -> int:
        return max(1, min(limits.MOST_IN_BLOCK, limits.MOST_FIGURES // max(1, self._columns)))

    def _described(self) -> Iterator[bytes]:
        devices, series = now = self._session.devices, self._session.series
        if now == self._series:
            return
        new = series[self._columns :]
        yield _line(
            k="series",
            first=self._columns,
            devices=[asdict(device) | {"total": _number(device.total)} for device in devices],
            series=[one.key for one in new],
            labels=[one.label for one in new],
        )
        self._series, self._columns = now, len(series)
        self._last = resized(self._last, self._columns)

    def _rows(self, time: Floats, values: Floats, wall: float) -> bytes:
        is_key = self._block % KEY_EVERY == 0
        values = np.rint(values)
        still: Any = np.ones(values.shape[1], dtype=bool)
        columns = np.empty(0, dtype=np.intp)
        if len(time):
            still = _same(values, values[0]).all(axis=0)
            columns = np.flatnonzero(is_key | ~(still & _same(values[0], self._last)))
        differences = _differences(values[:, columns]).T.tolist()
        changes = [
            column[:1] if stands else column
            for column, stands in zip(differences, still[columns].tolist(), strict=True)
        ]
        line = _line(
            k="rows",
            n=self._block,
            w=round(wall, 3),
            t=np.round(time, 4).tolist(),
            s=columns.tolist(),
            v=changes,
            **({"key": True} if is_key and len(time) else {}),
        )
        self._block += 1
        if len(time):
            self._last = values[-1]
        return line

    def _changed_spans(self, *, everything: bool) -> Iterator[bytes]:
        session = self._session
        spans = session.spans
        for span in spans:
            # A step's span is written before the end only if it has been open for long.
            is_due = everything or span.kind not in FINE_KINDS or span.id in self._spans
            is_long = span.stop is None and session.last_sample.time - span.start >= LONG
            if self._spans.get(span.id) is not span and (is_due or is_long):
                self._spans[span.id] = span
                yield _line(k="span", **self._span(span))
        if len(self._spans) > 2 * len(spans) + 100:
            ids = {span.id for span in spans}
            self._spans = {at: span for at, span in self._spans.items() if at in ids}

    def _span(self, span: Span) -> dict[str, object]:
        after = () if span.after is None else span.after.values
        keys = [one.key for one in self._session.series]
        # A recording with damaged series has more values than keys.
        columns = range(min(len(keys), max(len(span.before.values), len(after))))
        peaks = [span.peaks.get(keys[column]) for column in columns]
        return {
            **{name: getattr(span, name) for name in ("id", "parent", "kind", "label")},
            "start": _time(span.start),
            "stop": None if span.stop is None else _time(span.stop),
            "outcome": span.outcome,
            "s": list(columns),
            "before": _numbers(np.array(span.before.values)),
            "after": _numbers(np.array(after)),
            "peak": [None if peak is None else _number(peak.value) for peak in peaks],
            "certainty": [None if peak is None else peak.certainty for peak in peaks],
            "counts": {name: _number(count) for name, count in span.counts.items()},
        }

    def _new_steps(self) -> Iterator[bytes]:
        session = self._session
        table = session.folded_steps(sys.maxsize, self._steps_until)
        # Only the devices of the table: another thread may add one meanwhile.
        columns = session.steps.columns[: table.shape[1]]
        devices = session.steps.devices[: (len(columns) - len(FIGURES)) // len(PER_DEVICE)]
        if len(table):
            self._steps_until = float(table[:, columns.index("stop")].max())
            # In the same form as elsewhere, because a step's peak is also that of a span.
            times = [columns.index("start"), columns.index("stop")]
            table[:, times] = np.round(table[:, times], 9)
        for first in range(0, len(table), limits.MOST_STEPS_IN_LINE):
            rows = table[first : first + limits.MOST_STEPS_IN_LINE]
            is_key = self._steps_lines % KEY_EVERY == 0 or devices != self._steps_devices
            names = {"devices": list(devices), "columns": list(columns)} if is_key else {}
            self._steps_lines, self._steps_devices = self._steps_lines + 1, devices
            figures = [_numbers(row) for row in rows]
            yield _line(k="steps", count=session.steps.count, **names, rows=figures)

    def _phases(self) -> Iterator[bytes]:
        for root in outermost(self._session.spans):
            phases = self._session.phases(root.id)
            if not phases:
                continue
            spans = {span.id: span for phase in phases for span in phase.highest.values()}
            rows = [
                {"kind": phase.kind, "label": phase.label, "count": phase.count}
                | {"seconds": _time(phase.seconds), "steps": phase.steps}
                | {"highest": {key: span.id for key, span in phase.highest.items()}}
                for phase in phases
            ]
            highest = list(map(self._span, spans.values()))
            yield _line(k="phases", root=root.id, phases=rows, spans=highest)

    def _changed_list(self, kind: str, items: Iterable[Any]) -> Iterator[bytes]:
        now, before = list(items), self._written[kind]
        for place, item in enumerate(now):
            if place >= len(before) or before[place] is not item:
                yield _line(k=kind, i=place, **_entry(item))
        if len(now) < len(before):
            yield _line(k=kind, i=len(now))
        self._written[kind] = now


def fold_of(time: Floats, values: Floats) -> Fold:
    """Return the fold of samples; `times` has shape ``(samples,)``, `values` ``(samples, series)``."""
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    return Fold(float(time[0]), float(time[-1]), len(time), low, high, values[-1])


def joined(folds: Sequence[Fold]) -> Fold:
    """Return two neighbouring folds as one; the earlier may have fewer series."""
    width = max(len(fold.low) for fold in folds)
    low = np.fmin.reduce([resized(fold.low, width) for fold in folds])
    high = np.fmax.reduce([resized(fold.high, width) for fold in folds])
    samples = sum(fold.samples for fold in folds)
    return Fold(folds[0].start, folds[-1].stop, samples, low, high, folds[-1].last)


def _fold(fold: Fold, block: int) -> bytes:
    parts = {"low": fold.low, "high": fold.high, "last": fold.last}
    figures = {name: _numbers(np.rint(part)) for name, part in parts.items()}
    times = [_time(fold.start), _time(fold.stop)]
    return _line(k="fold", n=block, t=times, samples=fold.samples, **figures)


JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_number = partial(json_number, decimals=9)


def _line(**fields: object) -> bytes:
    # A text that cannot be encoded, such as half a surrogate pair, must not cost the whole line.
    return JSON.encode(fields).encode("utf-8", "replace") + b"\n"


def _same(values: Floats, others: Floats) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (values == others) | (np.isnan(values) & np.isnan(others))
    return same


def _numbers(values: Floats) -> list[Any]:
    return list(map(_number, values.tolist()))


def _differences(values: Floats) -> NDArray[Any]:
    """Return each value minus the last available one of its column; None where it is not available itself."""
    is_known = np.isfinite(values)
    if is_known.all():
        return np.diff(values.astype(np.int64), axis=0, prepend=0)
    newest = np.maximum.accumulate(np.where(is_known, np.arange(len(values))[:, None], 0), axis=0)
    last = np.take_along_axis(np.where(is_known, values, 0.0), newest, axis=0)
    differences = np.diff(last.astype(np.int64), axis=0, prepend=0).astype(object)
    differences[~is_known] = None
    return differences


def _time(seconds: float) -> float:
    """Round to a nanosecond, so that the rate of steps of a millisecond keeps four digits."""
    return round(seconds, 9)


def _live(peak: LivePeak) -> LivePeak:
    """Return a peak in the form of a line: without its course, the smallest of many places as one."""
    sites, rest = peak.sites[: limits.MOST_SITES - 1], peak.sites[limits.MOST_SITES - 1 :]
    size, blocks = sum(site.bytes for site in rest), sum(site.blocks for site in rest)
    others = [Site(ELSE, ELSE, ELSE, "elsewhere", size, blocks)] if rest else []
    return replace(peak, sites=(*sites, *others), over_time=None)


def _entry(item: str | Finding | Guide | Move | LivePeak) -> dict[str, object]:
    if isinstance(item, str):
        return {"text": item}
    named = json_data(asdict(item)).items()
    return {"span" if name == "span_id" else name: value for name, value in named}
