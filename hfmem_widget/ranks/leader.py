"""The spans and steps of one rank, the lowest that is alive, in the overview of all."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter

from hfmem_widget.ranks.roster import SILENT_PACES, Roster
from hfmem_widget.ranks.stream import STOP, Edge, Finished, RankStream
from hfmem_widget.session import Peak, Recorder, Sample, SpanKind
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.series import OVERVIEW

COARSE: tuple[SpanKind, ...] = ("train", "epoch", "evaluate", "predict", "save", "load")
"""The spans of the lowest rank that the overview has, too."""

MOST_STEPS_WAITING = 100_000


class Leader:
    """Writes the spans of the lowest rank that is alive, and its steps with the highest peaks of all.

    `zero` is the wall clock at time zero, and `outer` the span of the whole run. `of_devices` takes peaks by
    rank and returns them by the overview's series.
    """

    def __init__(
        self,
        recorder: Recorder,
        roster: Roster,
        zero: float,
        outer: int,
        of_devices: Callable[[Mapping[int, Peak]], dict[str, Peak]],
    ) -> None:
        self._recorder, self._session, self._roster = recorder, recorder.session, roster
        self._zero, self._outer, self._of_devices = zero, outer, of_devices
        self._stream: RankStream | None = None
        self._edges: dict[int, Edge] = {}
        self._mirrored: dict[int, int] = {}
        self._groups: deque[tuple[int, int, float, float]] = deque(maxlen=MOST_STEPS_WAITING)
        self._stepped, self._stepped_at = 0, -math.inf
        self._trainings: dict[int, float] = {}

    def take(self, stream: RankStream, news: Finished | Edge) -> None:
        """Add steps or the edge of a span; those of other ranks are ignored."""
        if stream is not self._stream:
            return
        if isinstance(news, Edge):
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
        self._edges = {edge.id: edge for edge in leader.open if edge.kind in COARSE}

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
        peaks = self._of_devices(self._roster.peaks(span.kind))
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
                figures = next(around, self._outer), first, last, start, stop, *unknown
                self._session.steps.add(figures, self._highest(first, last))

    def _highest(self, first: int, last: int) -> dict[str, list[float]]:
        """Return the highest peak of some steps over all ranks, as the `PER_DEVICE` of the device of all."""
        roster = self._roster
        peak, certainty, phases = roster.steps.highest(first, last, roster.expected_places)
        if not peak > 0:
            return {}
        highs = (high if high > 0 else NOT_AVAILABLE for high in phases.tolist())
        return {OVERVIEW: [peak, certainty, peak, last, NOT_AVAILABLE, NOT_AVAILABLE, *highs]}
