"""Writes the overview of a run: a session in which all ranks are one device, and a few have their own."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import spread
from hfmem_widget.ranks.roster import SILENT_PACES, Roster
from hfmem_widget.ranks.stream import STOP, Finished, News, RankStream, Samples
from hfmem_widget.recording.check import SpanLine
from hfmem_widget.session import (
    Device,
    Finding,
    Peak,
    RankStrip,
    Recorder,
    Sample,
    Series,
    SpanKind,
)
from hfmem_widget.session.model import NOT_AVAILABLE, same
from hfmem_widget.session.rank_records import (
    FULL_CELL,
    SHOWN_SINGLY,
    SILENT_CELL,
    STRIP_COLUMNS,
    STRIP_ROWS,
)
from hfmem_widget.session.series import OVERVIEW, PARTS
from hfmem_widget.session.timeline import Floats, resized
from hfmem_widget.text import format_counted, plain

HIGHEST = 250


class Strip:
    """How full the devices were: a row for each rank, or for neighbouring ranks; a column for some seconds.

    When there are too many columns, neighbours merge: the highest stays; a column has `width` seconds at
    first. A row has whole nodes of so many ranks, unless it would have more than twice as many ranks.
    """

    def __init__(self, world: int, per_node: int = 1, width: float = 1.0) -> None:
        self.world = world
        size = -(-world // STRIP_ROWS)
        if size > 1 and per_node <= 2 * size:
            size = -(-size // per_node) * per_node
        self._size, self._width = size, width
        rows = -(-world // size)
        self._cells: NDArray[np.int16] = np.full((STRIP_COLUMNS, rows), -1, dtype=np.int16)
        self.at: list[float] = []

    def add(self, time: float, ranks: NDArray[np.int64], shares: Floats) -> None:
        """Add how full each rank's device was, 1 for full, NaN where nothing was heard."""
        if len(self.at) == STRIP_COLUMNS and time >= self.at[-1] + self._width:
            half = STRIP_COLUMNS // 2
            merged = self._cells.reshape(half, 2, -1).max(axis=1)
            self._cells[:half], self._cells[half:] = merged, -1
            self.at = self.at[::2]
            self._width *= 2
        if not self.at or time >= self.at[-1] + self._width:
            self.at.append(time)
        is_heard = ~np.isnan(shares) & (ranks < self.world)
        cells = np.minimum(np.rint(shares[is_heard] * FULL_CELL), HIGHEST).astype(np.int16)
        np.maximum.at(self._cells[len(self.at) - 1], ranks[is_heard] // self._size, cells)

    def shown(self) -> RankStrip:
        """Return the strip so far."""
        cells = self._cells[: len(self.at)]
        cells = np.where(cells < 0, SILENT_CELL, cells).astype(np.uint8)
        return RankStrip(tuple(range(0, self.world, self._size)), tuple(self.at), cells.tobytes())


MOST_OPEN = 4096
"""Buckets that wait for other ranks; beyond that the oldest do not wait any longer."""

MOST_FOLDED = 600
"""Buckets that one fold may cover."""


@dataclass(slots=True)
class Bucket:
    """The highest allocated of each place, and of some places all that was read with it."""

    high: Floats
    rows: dict[int, Floats] = field(default_factory=dict)


class WaitingBuckets:
    """The buckets of `width` seconds each that were not passed on yet, by their numbers since the epoch."""

    def __init__(self, width: float) -> None:
        self.width = width
        self._open: dict[int, Bucket] = {}
        self._passed = -(1 << 62)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, place: int, time: Floats, allocated: Floats, rows: Floats | None) -> None:
        """Add readings of the rank in a place; the `rows` are all that was read with them, if wanted."""
        numbers = (time / self.width).astype(np.int64).tolist()
        for at, (number, value) in enumerate(zip(numbers, allocated.tolist(), strict=True)):
            self._put(number, place, value, None if rows is None else rows[at])

    def add_over(
        self, place: int, start: float, stop: float, value: float, row: Floats | None
    ) -> None:
        """Add the highest reading of a rank over some time."""
        last = int(stop / self.width)
        for number in range(max(int(start / self.width), last - MOST_FOLDED), last + 1):
            self._put(number, place, value, row)

    def passed_on(self, until: float) -> Iterator[tuple[float, Bucket]]:
        """Yield the buckets that end by some time, oldest first, each with its end; they are gone then."""
        most = math.floor(max(-1e15, min(until, 1e15)) / self.width)
        ready = sorted(number for number in self._open if number < most)
        if len(self._open) - len(ready) > MOST_OPEN:
            ready = sorted(self._open)[:-MOST_OPEN]
        for number in ready:
            self._passed = number
            yield (number + 1) * self.width, self._open.pop(number)

    def _put(self, number: int, place: int, value: float, row: Floats | None) -> None:
        if number <= self._passed or (math.isnan(value) and row is None):
            return
        bucket = self._open.get(number)
        if bucket is None:
            bucket = self._open[number] = Bucket(np.empty(0))
        if place >= len(bucket.high):
            bucket.high = resized(bucket.high, max(place + 1, 2 * len(bucket.high)))
        is_highest = not value <= bucket.high[place]
        if is_highest:
            bucket.high[place] = value
        if row is not None and (is_highest or place not in bucket.rows):
            bucket.rows[place] = row


COARSE: tuple[SpanKind, ...] = ("train", "epoch", "evaluate", "predict", "save", "load")
"""The spans of the lowest rank that the overview has, too."""

MOST_STEPS_WAITING = 100_000


class Leader:
    """Writes the spans of the lowest rank that is alive, and its steps with the highest peaks of all."""

    def __init__(self, overview: Overview) -> None:
        self._overview, self._zero, self._roster = overview, overview.zero, overview.roster
        self._recorder, self._session = overview.recorder, overview.recorder.session
        self._stream: RankStream | None = None
        self._edges: dict[int, SpanLine] = {}
        self._mirrored: dict[int, int] = {}
        self._groups: deque[tuple[int, int, float, float]] = deque(maxlen=MOST_STEPS_WAITING)
        self._stepped, self._stepped_at = 0, -math.inf
        self._trainings: dict[int, float] = {}

    def take(self, stream: RankStream, news: Finished | SpanLine) -> None:
        """Add steps or the edge of a span; those of other ranks are ignored."""
        if stream is not self._stream:
            return
        if isinstance(news, SpanLine):
            if news.kind in COARSE:
                self._edges[news.id] = news
        else:
            stops = (row[STOP] for row in news.figures)
            self._groups.extend(zip(news.first, news.last, news.start, stops, strict=True))

    def follow(self, now: float) -> None:
        """Follow the spans and steps of the lowest rank that is alive."""
        roster = self._roster
        alive = (stream for stream in roster.expected if not roster.silence(stream, now))
        leader = next(alive, None) or next(iter(roster.expected), None)
        if leader is None or leader is self._stream:
            return
        self._stream = leader
        self.close("")
        self._edges = {edge.id: edge for edge in leader.open.values() if edge.kind in COARSE}

    def pass_edges(self, until: float) -> None:
        """Open and close the leader's spans up to some second of the session."""
        if self._stream is None or not self._edges:
            return
        zero = self._roster.offset(self._stream) + self._zero
        edges, mirrored = self._edges.values(), self._mirrored
        begun = [(edge.start - zero, edge.id, edge) for edge in edges if edge.id not in mirrored]
        ended = [(edge.stop - zero, edge.id, edge) for edge in edges if edge.stop is not None]
        ready = (due for due in (*begun, *ended) if due[0] <= until)
        for time, span_id, edge in sorted(ready, key=itemgetter(0, 1)):
            mirror = self._mirrored.get(span_id)
            if mirror is None:
                before = Sample(max(0.0, time), self._session.last_sample.values)
                opened = self._recorder.open_span(edge.kind, edge.label, before)
                self._mirrored[span_id] = opened.id
                if edge.kind in {"train", "epoch"}:
                    self._trainings[opened.id] = opened.start
            else:
                self._recorder.count(mirror, edge.counts)
                self._close(mirror, time, edge.outcome)
                del self._mirrored[span_id], self._edges[span_id]

    def _close(self, span_id: int, time: float, outcome: str) -> None:
        span = self._session.span(span_id)
        peaks = self._overview.of_devices(self._roster.peaks(span.kind))
        after = Sample(max(span.start, time), self._session.last_sample.values)
        self._recorder.close_span(span_id, after, peaks, outcome)

    def close(self, outcome: str) -> None:
        """Close the spans that are open."""
        for span_id in reversed(self._mirrored.values()):
            self._close(span_id, self._session.last_sample.time, outcome)
        self._mirrored.clear()

    def pass_steps(self, now: float, *, is_live: bool, is_last: bool = False) -> None:
        """Write the leader's steps, with the highest peak of all ranks, once all have made them."""
        if self._stream is None or not self._groups:
            return
        roster = self._roster
        live = roster.live(now)
        slowest = min((stream.newest_step for stream in live), default=1 << 60)
        offset = roster.offset(self._stream)
        late = roster.as_of(now, live) - SILENT_PACES * roster.pace if is_live else -math.inf
        with self._recorder.lock:
            while self._groups:
                first, last, start, stop = self._groups[0]
                if last > slowest and stop - offset >= late and not is_last:
                    break
                self._groups.popleft()
                if last <= self._stepped and start >= self._stepped_at:
                    self._stepped = 0  # of another training, or again from a checkpoint
                first = max(first, self._stepped + 1)
                if last < first:
                    continue
                self._stepped, self._stepped_at = last, stop
                start, stop = (max(0.0, each - offset - self._zero) for each in (start, stop))
                unknown = (NOT_AVAILABLE,) * 4
                trainings = reversed(self._trainings.items())
                around = (span_id for span_id, began in trainings if began < stop)
                figures = next(around, self._overview.outer), first, last, start, stop, *unknown
                self._session.steps.add(figures, self._highest(first, last))

    def _highest(self, first: int, last: int) -> dict[str, list[float]]:
        roster = self._roster
        peak, certainty, phases = roster.steps.highest(first, last, roster.expected_places)
        if not peak > 0:
            return {}
        highs = (high if high > 0 else NOT_AVAILABLE for high in phases.tolist())
        return {OVERVIEW: [peak, certainty, peak, last, NOT_AVAILABLE, NOT_AVAILABLE, *highs]}


FINE_BUCKET, COARSE_BUCKET = 0.2, 1.0
"""Seconds of a bucket in worlds whose ranks are drawn one by one, and in larger ones."""

LINGERS = 2.0
"""Seconds for which the last reading of a rank that has ended is shown: the others end a little later."""

WORSE = 1.01
"""Times the worst rank's peak that another must have to take its place."""

MONTH = 30 * 86400.0
"""Seconds by which the times of a run may differ at most."""

_OF_RANK = (
    "reserved",
    "device_used",
    *(name for name, row in PARTS.items() if row.sent and not row.drawn),
)
"""What a rank that is shown by itself has besides allocated."""


class Overview:
    """Writes one session from what the ranks say; `zero` is the wall clock at its time zero."""

    def __init__(self, recorder: Recorder, roster: Roster, zero: float) -> None:
        self.recorder, self._session, self.roster = recorder, recorder.session, roster
        self.zero = zero
        self.shown: list[int] = []  # ranks with a device of their own, in ascending order
        self.worst: int | None = None  # in a large world, the one of them with the highest peak
        self._is_small = roster.world <= SHOWN_SINGLY
        self._width = FINE_BUCKET if self._is_small else max(COARSE_BUCKET, roster.pace)
        self._session.polling.interval = self._session.polling.current_interval = self._width
        self._buckets = WaitingBuckets(self._width)
        self._newest = self._passed = -math.inf
        self._carried = self._totals = np.empty(0)
        self.strip = Strip(1)
        self.show()
        # What a rank had before it was followed is not known.
        first = recorder.append(Sample(0.0, (NOT_AVAILABLE,) * len(self._session.series)))
        self.outer = recorder.open_span("block", self._session.label or "run", first).id
        self.leader = Leader(self)

    # What comes in

    def take(self, stream: RankStream, news: News, now: float) -> None:
        """Add what a rank reports."""
        place, offset = self.roster.places[stream.rank.rank], self.roster.offset(stream)
        if isinstance(news, Finished):
            self.roster.steps.add(place, news)
            self.leader.take(stream, news)
        elif isinstance(news, SpanLine):
            self.leader.take(stream, news)
        elif (column := stream.column("allocated")) is not None:
            is_shown = stream.rank.rank in self.shown
            # Times that a run can have: what lies far off is brought to its edge.
            times = news.time if isinstance(news, Samples) else np.array([news.start, news.stop])
            times = np.clip(times - offset, self.zero - MONTH, now + MONTH)
            if isinstance(news, Samples):
                rows = news.values if is_shown else None
                self._buckets.add(place, times, news.values[:, column], rows)
            elif column < len(news.high):
                row, (start, stop) = news.high if is_shown else None, times.tolist()
                self._buckets.add_over(place, start, stop, float(news.high[column]), row)
            else:
                return
            self._newest = max(self._newest, float(times[-1]))

    # Samples

    def pass_on(self, limit: float, now: float) -> None:
        """Write the samples up to some time, and the edges of spans among them."""
        roster = self.roster
        for at, (end, bucket) in enumerate(self._buckets.passed_on(limit)):
            if not at:  # some devices may only now be known
                self._totals = np.full(max(len(self._carried), len(roster.ranks)), np.nan)
                totals = [stream.described.total for stream in roster.expected]
                self._totals[roster.expected_places] = totals
            time = max(0.0, min(end, now) - self.zero)
            self.leader.pass_edges(time)
            if end - self._passed > max(10 * self._width, 10.0) and math.isfinite(self._passed):
                self._session.timeline.add_gap(max(0.0, self._passed - self.zero), time)
                self._carried[:] = np.nan
            self._passed = end
            self._append(time, end, bucket)
        if not len(self._buckets):
            self.leader.pass_edges(
                min(limit, max(self._newest, self._passed) + self._width) - self.zero
            )

    def _append(self, time: float, end: float, bucket: Bucket) -> None:
        roster = self.roster
        high = self._carry(end, bucket.high)
        counted = np.where(roster.ranks < roster.world, high[: len(roster.ranks)], np.nan)
        over_ranks, session = spread(counted), self._session
        values = {
            "ranks/allocated": over_ranks.high,
            "ranks/median": over_ranks.median,
            "ranks/lowest": over_ranks.low,
        }
        for rank in self.shown:
            place, stream = roster.places[rank], roster.current(rank)
            allocated = float(high[place]) if rank < roster.world else NOT_AVAILABLE
            values[f"ranks/rank{rank}"] = values[f"rank:{rank}/allocated"] = allocated
            if stream is None or math.isnan(allocated):
                continue
            row = bucket.rows.get(place, ())
            for metric in _OF_RANK:
                key, column = f"rank:{rank}/{metric}", stream.column(metric)
                if column is not None and column < len(row):
                    values[key] = float(row[column])
                elif column is not None:
                    values[key] = session.value(session.last_sample, key)
        wanted = tuple(values.get(series.key, NOT_AVAILABLE) for series in session.series)
        self.recorder.append(Sample(time, wanted))
        self.strip.add(time, roster.ranks, counted / self._totals[: len(counted)])

    def _carry(self, end: float, high: Floats) -> Floats:
        """Return the highest of each place; where nothing came, what it had before if it is still there."""
        roster, count = self.roster, max(len(self._carried), len(self.roster.ranks))
        full = resized(high, count)
        carried = np.where(np.isnan(full), resized(self._carried, count), full)
        for place in np.flatnonzero(np.isnan(full)).tolist():
            stream = roster.current(int(roster.ranks[place]))
            is_over = stream is not None and stream.is_over
            patience = self._width + LINGERS if is_over else roster.patience
            if stream is None or end - roster.reached(stream) > patience:
                carried[place] = np.nan
        self._carried = carried
        return carried

    def close(self, outcome: str) -> None:
        """End the spans."""
        self.leader.close(outcome)
        peaks = self.of_devices(self.roster.peaks())
        self.recorder.close_span(self.outer, self._session.last_sample, peaks, outcome)

    def of_devices(self, peaks: Mapping[int, Peak]) -> dict[str, Peak]:
        """Return peaks of ranks as those of devices: of all together, and of those shown."""
        of_devices = {f"rank:{rank}/allocated": peaks[rank] for rank in self.shown if rank in peaks}
        if peaks:
            of_devices["ranks/allocated"] = max(peaks.values(), key=lambda peak: peak.value)
        return of_devices

    # Devices

    def show(self) -> None:
        """Decide which ranks are shown one by one, describe the devices, and bring the peaks up to date."""
        roster = self.roster
        if not roster.expected:
            return
        if self._is_small:
            ranks = [
                stream.rank.rank for stream in roster.expected if stream.rank.rank not in self.shown
            ]
            self.shown = sorted(self.shown + ranks[: SHOWN_SINGLY - len(self.shown)])
        else:
            self._choose_worst()
        nodes = Counter(stream.rank.host for stream in roster.expected)
        self._describe(len(nodes))
        if self.strip.world < roster.world or not self.strip.at:
            # As many as any node is known to have: the others may not have been seen yet.
            per_node = max(nodes.values(), default=1)
            self.strip = Strip(roster.world, per_node, max(COARSE_BUCKET, self._width))

    def update(self, findings: Sequence[Finding]) -> None:
        """Set the peaks so far and what was found; what is the same stays the same object."""
        self.recorder.progress(self.outer, self.of_devices(self.roster.peaks()))
        mine = self._session.findings
        before = {finding.kind: finding for finding in mine}
        kept = [
            old if (old := before.get(new.kind)) is not None and same(old, new) else new
            for new in findings
        ]
        if list(map(id, kept)) != list(map(id, mine)):
            self._session.findings = kept

    def _describe(self, nodes: int) -> None:
        roster = self.roster
        totals = [total for stream in roster.expected if (total := stream.described.total) > 0]
        on = f" on {format_counted(nodes, 'node')}" if nodes > 1 else ""
        name = format_counted(roster.world, "rank") + on
        devices = [Device("ranks", name, total=min(totals, default=NOT_AVAILABLE))]
        keys = ["ranks/allocated", "ranks/median", "ranks/lowest"]
        if self._is_small:
            keys += [f"ranks/rank{rank}" for rank in self.shown if rank < SHOWN_SINGLY]
        for rank in self.shown:
            stream = roster.current(rank)
            if stream is None:
                continue
            described = stream.described
            host = plain(stream.rank.host) if nodes > 1 else ""
            name = " · ".join(filter(None, (f"rank {rank}", host, described.name)))
            devices.append(Device(f"rank:{rank}", name, described.uuid, described.total))
            keys.append(f"rank:{rank}/allocated")
            keys += [f"rank:{rank}/{m}" for m in _OF_RANK if stream.column(m) is not None]
        new = [key for key in keys if self._session.index(key) is None]
        if new or not same(tuple(devices), self._session.devices):
            more = (Series(*key.split("/")) for key in new)
            self.recorder.adopt(devices, (*self._session.series, *more))

    def _choose_worst(self) -> None:
        peaks = {rank: peak.value for rank, peak in self.roster.peaks().items()}
        if not any(peaks.values()):
            return
        highest = max(peaks, key=lambda rank: peaks[rank])
        of_worst = 0.0 if self.worst is None else peaks.get(self.worst, 0.0)
        is_shown = highest in self.shown
        has_room = is_shown or len(self.shown) < SHOWN_SINGLY
        if peaks[highest] > WORSE * of_worst and has_room:
            self.worst = highest
            if not is_shown:
                insort(self.shown, highest)
