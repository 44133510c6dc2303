"""The lines of all ranks, made into one session: pure, with no thread, file or clock of its own."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import Floats, medians, offsets, spread
from hfmem_widget.ranks.buckets import Bucket, Buckets
from hfmem_widget.ranks.findings import (
    LOST,
    SILENT_PACES,
    SILENT_SECONDS,
    Judged,
    Look,
    Restart,
    judge,
)
from hfmem_widget.ranks.findings import phase_of_peak
from hfmem_widget.ranks.rings import StepRings
from hfmem_widget.ranks.stream import (
    Began,
    Edge,
    Extremes,
    Finished,
    News,
    RankStream,
    Samples,
    order_of,
)
from hfmem_widget.ranks.strip import Strip
from hfmem_widget.session import (
    Certainty,
    Device,
    DeviceSteps,
    Finding,
    Peak,
    PhaseSkew,
    RankRow,
    Ranks,
    Recorder,
    Sample,
    Series,
    Session,
    Span,
    SpanKind,
    StepGroup,
)
from hfmem_widget.session.model import NOT_AVAILABLE, same
from hfmem_widget.session.ranks import SHOWN_SINGLY, Flag
from hfmem_widget.session.series import PARTS, TABLE
from hfmem_widget.session.steps import CERTAINTIES, PHASES
from hfmem_widget.text import format_count, format_counted, plain

MOST_STREAMS = 8192

LOOK_EVERY = 1.0
"""Seconds between two judgements of all ranks."""

CLOCK_EVERY = 5.0
CLOCK_NOISE = 0.05
"""Seconds between two comparisons of the clocks, and by which one must be off to be corrected anew."""

ROUGH = 2.0
"""Seconds by which lines must come too early or too late to tell of a clock before steps do."""

FINE_BUCKET, COARSE_BUCKET = 0.2, 1.0
"""Seconds of a stretch in worlds whose ranks are drawn one by one, and in larger ones."""

LINES_A_SECOND = 256
"""Of a run altogether: in a larger world each rank writes less often."""

WORSE = 1.01
"""Times the worst rank's peak that another must have to take its place."""

OVER_AFTER = 10.0
"""Seconds for which a run that did not end well may be started again."""

MOST_ROWS = 16
WORST_ROWS = 8

MONTH = 30 * 86400.0

COARSE: tuple[SpanKind, ...] = ("train", "epoch", "evaluate", "predict", "save", "load")
"""The spans of the lowest rank that the overview has, too."""

_OF_RANK = ("allocated", "reserved", "device_used", *(name for name in PARTS if TABLE[name].sent))


class Collector:
    """Takes in the lines of many ranks and writes the session that shows all of them.

    Parameters
    ----------
    label : str, optional
        What the user calls the run; by default as the ranks say.
    run : str, optional
        Which run: lines of another one are left out. By default of any.
    started_at : float, optional
        Wall clock at time zero; by default when the first rank began.

    Attributes
    ----------
    recorder : Recorder
    session : Session
        The overview; see `Session.ranks`.
    ignored : dict of str to int
        Streams that are left out, by the reason.
    lock : context manager
        Held while anything is taken in or looked at.
    """

    def __init__(self, label: str = "", *, run: str = "", started_at: float | None = None) -> None:
        self.lock = threading.RLock()
        self.recorder = Recorder(label, started_at=started_at or 0.0)
        self.ignored: dict[str, int] = {}
        self._run, self._zero = run, started_at
        self._streams: dict[str, RankStream] = {}
        self._places: dict[int, int] = {}
        self._current: dict[int, RankStream] = {}
        self._rivals: dict[int, list[RankStream]] = {}
        self._rings = StepRings()
        self._buckets: Buckets | None = None
        self._unsorted: list[tuple[RankStream, News]] = []
        self._carried: Floats = np.empty(0)
        self._stamp = -math.inf
        self._world = self._attempt = 0
        self._looked = self._compared = -math.inf
        self._now = -math.inf
        self._offsets: dict[str, float] = {}
        self._lags: dict[str, float] = {}
        self._exact_offsets: set[str] = set()
        self._restarts: list[Restart] = []
        self._strip: Strip | None = None
        self._outer: Span | None = None
        self._leader: RankStream | None = None
        self._edges: list[tuple[float, int, Edge]] = []
        self._mirrored: dict[int, int] = {}
        self._groups: deque[tuple[int, int, float, float]] = deque()
        self._stepped, self._stepped_at = 0, -math.inf
        self._shown: list[int] = []
        self._worst: int | None = None
        self._columns: dict[str, int] = {}
        self._over_since = math.inf
        self._judged = Judged((), (), ())

    @property
    def session(self) -> Session:
        """The overview: an ordinary session."""
        return self.recorder.session

    @property
    def world(self) -> int:
        """How many ranks there should be; 0 before the first was heard of."""
        return self._world

    @property
    def streams(self) -> Mapping[int, RankStream]:
        """By rank, the stream that counts: that of the newest attempt."""
        with self.lock:
            return dict(self._expected())

    @property
    def pace(self) -> float:
        """Seconds between two lines of a rank."""
        return max(1.0, self._world / LINES_A_SECOND)

    def wants(self, stream: str) -> bool:
        """Return whether anything more is taken from a stream."""
        known = self._streams.get(stream)
        return len(self._streams) < MOST_STREAMS if known is None else not known.refused

    def reached(self, stream: str) -> float:
        """Return the time of the newest reading of a stream, by the wall clock; -inf before the first."""
        known = self._streams.get(stream)
        return -math.inf if known is None or known.head is None else known.reached

    def feed(self, stream: str, data: bytes, at: float = NOT_AVAILABLE) -> None:
        """Take in the next bytes of a stream, whole lines or not.

        Parameters
        ----------
        stream : str
            Its name.
        data : bytes
        at : float, optional
            When they were written, by the wall clock, if that was not just now.
        """
        with self.lock:
            known = self._streams.get(stream)
            if known is None:
                if len(self._streams) >= MOST_STREAMS:
                    return
                known = self._streams[stream] = RankStream(stream)
            was_refused = known.refused
            for news in known.feed(data):
                self._enter(known, news)
            known.is_fed, known.fed_at = True, at
            if known.refused != was_refused:
                self._leave_out(known)

    def restart(self, stream: str) -> None:
        """Forget what a stream said: its file was cut or replaced, and is read again."""
        with self.lock:
            known = self._streams.pop(stream, None)
            if known is None:
                return
            for rank, current in list(self._current.items()):
                if current is known:
                    del self._current[rank]
            for rivals in self._rivals.values():
                if known in rivals:
                    rivals.remove(known)

    def tick(self, now: float, behind: Collection[str] = ()) -> None:
        """Write what is known now.

        Parameters
        ----------
        now : float
            Wall clock, seconds since the epoch.
        behind : collection of str, optional
            Streams of which there is more to read already.
        """
        with self.lock:
            if not self.session.running:
                return
            self._now = now
            self._hear(now, is_live=not behind)
            self._choose(now)
            if not self._current:
                return
            self._settle()
            self._follow()
            self._pass_on(self._limit(now, behind), now)
            if now - self._looked >= LOOK_EVERY or now < self._looked:
                self._look(now, is_live=not behind)
        self.recorder.publish()

    def is_over(self, now: float) -> bool:
        """Return whether the run has ended: all ranks have, or were lost."""
        with self.lock:
            expected = self._expected()
            left = [one for one in expected.values() if not one.is_over]
            is_complete = bool(expected) and len(expected) >= self._world
            if any(now - one.heard < LOST for one in left) or not expected:
                self._over_since = math.inf
                return False
            if is_complete and all(one.outcome == "done" for one in expected.values()):
                return True
            newest = max(one.heard for one in expected.values())
            return now - newest >= (OVER_AFTER if not left and is_complete else LOST)

    def finish(self, now: float, outcome: str = "") -> None:
        """Write what is left, and end the session; nothing more is taken in."""
        with self.lock:
            if not self.session.running:
                return
            self._now = max(now, self._now)
            self._hear(now, is_live=True)
            self._choose(now)
            if self._current:
                self._settle()
                self._follow()
                self._pass_on(math.inf, now)
                self._look(now, is_live=True, is_last=True)
                self._close_all(outcome or self._outcome())
            self.recorder.stop(now)
        self.recorder.publish()

    def rows(self) -> list[RankRow]:
        """Return how each rank stands, in order of rank."""
        with self.lock:
            expected = self._expected()
            look = self._look_at(expected, is_live=True)
            return self._rows(look, range(len(look.streams)))

    def peaks_of_phases(self) -> tuple[PhaseSkew, ...]:
        """Return how the peaks of each phase spread over the ranks."""
        with self.lock:
            return self._phases(self._look_at(self._expected(), is_live=True))

    # Taking in

    def _enter(self, stream: RankStream, news: News) -> None:
        if isinstance(news, Began):
            self._begin(stream)
            return
        if stream.refused or self._current.get(stream.rank.rank) is not stream:
            return
        if self._buckets is None:
            self._unsorted.append((stream, news))
            return
        place = self._places[stream.rank.rank]
        offset = self._offsets.get(stream.rank.host, 0.0)
        column = stream.column("allocated")
        if isinstance(news, Samples):
            if column is not None:
                rows = news.values if stream.rank.rank in self._shown else None
                self._buckets.add(
                    place, self._plausible(news.time - offset), news.values[:, column], rows
                )
        elif isinstance(news, Extremes):
            if column is not None and column < len(news.high):
                row = news.high if stream.rank.rank in self._shown else None
                start, stop = self._plausible(np.array([news.start, news.stop]) - offset).tolist()
                self._buckets.add_over(place, start, stop, float(news.high[column]), row)
        elif isinstance(news, Finished):
            self._rings.add(place, news)
            if stream is self._leader:
                self._groups.extend(
                    zip(
                        news.first.tolist(),
                        news.last.tolist(),
                        news.start.tolist(),
                        news.stop.tolist(),
                        strict=True,
                    )
                )
        elif stream is self._leader:
            self._note_edge(news)

    def _plausible(self, time: Floats) -> Floats:
        """Return times that a run can have: what lies far off is brought to its edge."""
        zero = self._zero or 0.0
        latest = self._now + MONTH if math.isfinite(self._now) else math.inf
        return np.clip(time, zero - MONTH, latest)

    def _begin(self, stream: RankStream) -> None:
        """Decide whether a stream counts: of two of one rank it is the newer attempt."""
        head, rank = stream.head, stream.rank
        assert head is not None
        if self._run and head.run != self._run:
            stream.refuse("another run")
            return
        known = self._current.get(rank.rank)
        if known is None:
            self._take(stream)
            return
        is_newer, is_same_attempt = (
            order_of(stream) > order_of(known),
            rank.attempt == known.rank.attempt,
        )
        if (is_newer and (not is_same_attempt or known.is_over)) or (
            not is_newer and is_same_attempt and not stream.is_over and not known.is_over
        ):
            self._take(stream)
            if not is_newer:
                self._rivals.setdefault(rank.rank, []).append(known)
        elif is_newer:
            self._rivals.setdefault(rank.rank, []).append(stream)

    def _take(self, stream: RankStream) -> None:
        """Have a stream stand for its rank."""
        rank = stream.rank
        before = self._current.get(rank.rank)
        place = self._places.setdefault(rank.rank, len(self._places))
        self._rings.widen(len(self._places))
        self._current[rank.rank] = stream
        if before is not None:
            self._note_restart(before, stream)
            self._rings.clear(place)
        newest = max(self._current.values(), key=order_of)
        self._world, self._attempt = newest.rank.world, newest.rank.attempt

    def _note_restart(self, before: RankStream, now: RankStream) -> None:
        is_again = now.rank.attempt == before.rank.attempt and before.outcome == "done"
        if order_of(now) < order_of(before) or is_again:
            return
        step, attempt = before.newest_step, now.rank.attempt
        last = self._restarts[-1] if self._restarts else None
        if last is not None and last.attempt == attempt:
            self._restarts[-1] = Restart(
                attempt, last.ranks + 1, max(step, last.step), last.before, now.rank.world
            )
        else:
            self._restarts.append(Restart(attempt, 1, step, before.rank.world, now.rank.world))

    def _leave_out(self, stream: RankStream) -> None:
        why = stream.refused
        self.ignored[why] = self.ignored.get(why, 0) + 1
        if stream.head is None or self._current.get(stream.rank.rank) is not stream:
            return
        if why == "damaged":
            lines = format_counted(stream.dropped, "line")
            self.recorder.note(
                f"Rank {stream.rank.rank} is not read any more: {lines} of it could not be read."
            )

    def _hear(self, now: float, *, is_live: bool) -> None:
        pace = self.pace
        for stream in self._streams.values():
            if not stream.is_fed:
                continue
            is_now = math.isnan(stream.fed_at)
            at = now if is_now else min(now, stream.fed_at)
            stream.is_fed = False
            stream.heard = max(stream.heard, at)
            if stream.head is not None and math.isfinite(stream.sign) and (is_now or is_live):
                host = stream.rank.host
                lag = at - stream.sign
                self._lags[host] = min(lag, self._lags.get(host, math.inf))
        if len({stream.rank.host for stream in self._current.values()}) < 2:
            return
        for host, lag in self._lags.items():
            if host in self._exact_offsets:
                continue
            early = -lag if lag < -ROUGH else pace / 2 - lag if lag > pace + ROUGH else 0.0
            if early:
                self._offsets[host] = early

    def _choose(self, now: float) -> None:
        """Have the newer of two processes of one rank stand for it once the older is silent or over."""
        for rank, rivals in list(self._rivals.items()):
            known = self._current.get(rank)
            if not rivals:
                continue
            if known is None or known.is_over or self._silence(known, now):
                newer = [one for one in rivals if known is None or order_of(one) > order_of(known)]
                if newer:
                    self._take(max(newer, key=order_of))
                self._rivals[rank] = []
            elif any(not one.is_over and now - one.heard < LOST for one in rivals):
                self.recorder.note(
                    f"Two processes say that they are rank {rank}; the older one is shown."
                )

    # Writing

    def _settle(self) -> None:
        """Begin the session, once it is known when the run began and how many ranks it has."""
        if self._buckets is not None:
            return
        if self._zero is None:
            began = np.array([one.head.started for one in self._current.values() if one.head])
            middle = float(np.median(began))
            self._zero = float(began[np.abs(began - middle) < MONTH].min(initial=middle))
        session = self.session
        session.started_at = self._zero
        if not session.label:
            heads = (one.head for _, one in sorted(self._current.items()))
            session.label = next((head.label for head in heads if head and head.label), "")
        is_fine = self._world <= SHOWN_SINGLY
        width = FINE_BUCKET if is_fine else max(COARSE_BUCKET, self.pace)
        session.polling.interval = session.polling.current_interval = width
        self._buckets = Buckets(width)
        self._show()
        first = self.recorder.append(Sample(0.0, ()))
        self._outer = self.recorder.open_span("block", session.label or "run", first)
        waiting, self._unsorted = self._unsorted, []
        self._lead()
        for stream, news in waiting:
            self._enter(stream, news)

    def _expected(self) -> dict[int, RankStream]:
        """Return the streams of the ranks that the newest attempt has, in order of rank."""
        return {
            rank: stream for rank, stream in sorted(self._current.items()) if rank < self._world
        }

    def _silence(self, stream: RankStream, now: float) -> float:
        """Return for how many seconds a rank has been silent; 0 where that is as it should be."""
        if stream.is_over or stream.rank.attempt < self._attempt:
            return 0.0
        silent = now - stream.heard
        return silent if silent > SILENT_PACES * self.pace + SILENT_SECONDS else 0.0

    def _lead(self) -> None:
        """Follow the spans and steps of the lowest rank that is alive."""
        expected = self._expected().values()
        alive = [one for one in expected if not self._silence(one, self._now)]
        leader = next(iter(alive), None) or next(iter(expected), None)
        if leader is None or leader is self._leader:
            return
        first, self._leader = self._leader is None, leader
        self._edges.clear()
        for span_id in reversed(self._mirrored.values()):
            self._close(span_id, self.session.last_sample.time, "")
        self._mirrored.clear()
        if not first:
            for edge in leader.open:
                self._note_edge(edge)

    def _follow(self) -> None:
        self._lead()

    def _note_edge(self, edge: Edge) -> None:
        if edge.kind not in COARSE or self._leader is None:
            return
        offset = self._offsets.get(self._leader.rank.host, 0.0) + (self._zero or 0.0)
        if edge.id not in self._mirrored and not any(one.id == edge.id for *_, one in self._edges):
            self._edges.append((edge.start - offset, edge.id, edge))
        if edge.stop is not None:
            self._edges.append((edge.stop - offset, edge.id, edge))

    def _limit(self, now: float, behind: Collection[str]) -> float:
        """Return the time up to which all ranks have said what they will say."""
        expected = self._expected().values()
        offset = {id(one): self._offsets.get(one.rank.host, 0.0) for one in expected}
        if behind:
            known = [self._streams.get(name) for name in behind]
            times = [
                -math.inf
                if one is None or one.head is None
                else one.reached - offset.get(id(one), 0.0)
                for one in known
                if one is None or not one.refused
            ]
            if times:
                return min(times)
        live = [one for one in expected if not one.is_over and not self._silence(one, now)]
        if not live:
            return max((one.reached for one in expected), default=-math.inf) + 2 * self._width
        slowest = min(one.reached - offset[id(one)] for one in live)
        return max(slowest, now - SILENT_PACES * self.pace)

    @property
    def _width(self) -> float:
        return COARSE_BUCKET if self._buckets is None else self._buckets.width

    def _pass_on(self, limit: float, now: float) -> None:
        assert self._buckets is not None
        zero = self._zero or 0.0
        for end, bucket in self._buckets.passed_on(limit):
            time = max(0.0, min(end, now) - zero)
            self._pass_edges(time)
            if end - self._stamp > max(10 * self._width, 10.0) and math.isfinite(self._stamp):
                self.session.timeline.add_gap(max(0.0, self._stamp - zero), time)
                self._carried[:] = np.nan
            self._stamp = end
            self._append(time, end, bucket)
        if not len(self._buckets) or limit == math.inf:
            self._pass_edges(min(limit, now) - zero)

    def _append(self, time: float, end: float, bucket: Bucket) -> None:
        high = self._carry(end, bucket.high)
        ranks = np.fromiter(self._places, np.int64, len(self._places))
        ordered = high[: len(ranks)]
        expected = np.where(ranks < self._world, ordered, np.nan)
        found = spread(expected)
        values = [NOT_AVAILABLE] * len(self.session.series)
        columns = self._columns
        values[columns["ranks/allocated"]] = found.high
        values[columns["ranks/median"]] = found.median
        values[columns["ranks/lowest"]] = found.low
        for rank in self._shown:
            place = self._places[rank]
            at = columns.get(f"ranks/rank{rank}")
            if at is not None:
                values[at] = float(high[place])
            at = columns.get(f"rank:{rank}/allocated")
            if at is not None:
                values[at] = float(high[place])
            row = bucket.rows.get(place)
            if row is not None:
                stream = self._current[rank]
                for metric in _OF_RANK[1:]:
                    column, at = stream.column(metric), columns.get(f"rank:{rank}/{metric}")
                    if column is not None and at is not None and column < len(row):
                        values[at] = float(row[column])
            elif not math.isnan(high[place]):
                last = self.session.last_sample.values
                for metric in _OF_RANK[1:]:
                    at = columns.get(f"rank:{rank}/{metric}")
                    if at is not None and at < len(last):
                        values[at] = last[at]
        self.recorder.append(Sample(time, tuple(values)))
        totals = self._totals()
        if self._strip is not None:
            self._strip.add(time, ranks, expected / totals[: len(ranks)])

    def _carry(self, end: float, high: Floats) -> Floats:
        """Return the highest of each place; where nothing came, what it had before if it is still there."""
        count = len(self._places)
        if len(self._carried) < count:
            more = np.full(count - len(self._carried), np.nan)
            self._carried = np.concatenate([self._carried, more])
        full = np.full(len(self._carried), np.nan)
        full[: len(high)] = high[: len(full)]
        missing = np.isnan(full)
        carried = np.where(missing, self._carried, full)
        if missing.any():
            gone = self._gone(end)
            carried[: len(gone)][missing[: len(gone)] & gone] = np.nan
        self._carried = carried
        return carried

    def _gone(self, end: float) -> NDArray[np.bool_]:
        """Return for each place whether the rank had ended, or fallen silent, at some time."""
        gone = np.zeros(len(self._places), dtype=bool)
        patience = SILENT_PACES * self.pace + SILENT_SECONDS
        for rank, place in self._places.items():
            stream = self._current.get(rank)
            if stream is None:
                gone[place] = True
                continue
            reached = stream.reached - self._offsets.get(stream.rank.host, 0.0)
            gone[place] = end - reached > (self._width if stream.is_over else patience)
        return gone

    def _totals(self) -> Floats:
        totals = np.full(len(self._places), np.nan)
        for rank, place in self._places.items():
            stream = self._current.get(rank)
            if stream is not None:
                totals[place] = stream.described.total
        return totals

    def _pass_edges(self, until: float) -> None:
        """Open and close the leader's spans up to some second of the session."""
        ready = sorted(one for one in self._edges if one[0] <= until) if self._edges else []
        if not ready:
            return
        self._edges = [one for one in self._edges if one[0] > until]
        for time, span_id, edge in ready:
            known = self._mirrored.get(span_id)
            if known is None:
                before = Sample(max(0.0, time), self.session.last_sample.values)
                opened = self.recorder.open_span(edge.kind, edge.label, before)
                self._mirrored[span_id] = opened.id
            elif edge.stop is not None:
                self.recorder.count(known, edge.counts)
                self._close(known, max(0.0, time), edge.outcome)
                del self._mirrored[span_id]

    def _close(self, span_id: int, time: float, outcome: str) -> None:
        span = self.session.span(span_id)
        kind = span.kind
        peaks = {}
        highest = NOT_AVAILABLE
        for rank, stream in self._expected().items():
            peak = stream.span_peak(kind)
            if math.isnan(peak):
                continue
            highest = peak if not highest >= peak else highest
            if rank in self._shown:
                peaks[f"rank:{rank}/allocated"] = Peak(peak, "exact")
        if not math.isnan(highest):
            peaks["ranks/allocated"] = Peak(highest, "exact")
        after = Sample(max(span.start, time), self.session.last_sample.values)
        self.recorder.close_span(span_id, after, peaks, outcome)

    def _close_all(self, outcome: str) -> None:
        for span_id in reversed(self._mirrored.values()):
            self._close(span_id, self.session.last_sample.time, outcome)
        self._mirrored.clear()
        if self._outer is not None:
            self.recorder.close_span(
                self._outer.id, self.session.last_sample, self._peaks(), outcome
            )

    def _outcome(self) -> str:
        outcomes = [one.outcome for one in self._expected().values()]
        others = [one for one in outcomes if one and one != "done"]
        return others[0] if others else "done"

    # Looking at all

    def _look(self, now: float, *, is_live: bool, is_last: bool = False) -> None:
        self._looked = now
        if now - self._compared >= CLOCK_EVERY or is_last or not self._exact_offsets:
            self._compare_clocks(now)
        self._show()
        self._pass_steps(now, is_live=is_live, is_last=is_last)
        look = self._look_at(self._expected(), is_live=is_live)
        self._judged = judge(look)
        self._set_findings(self._judged.findings)
        if self._outer is not None:
            self.recorder.progress(self._outer.id, self._peaks())
        self.session.ranks = self._ranks(look)

    def _look_at(self, expected: Mapping[int, RankStream], *, is_live: bool) -> Look:
        streams = list(expected.values())
        places = np.array([self._places[rank] for rank in expected], dtype=np.int64)
        silent = np.zeros(len(streams))
        if is_live and math.isfinite(self._now):
            silent[:] = [self._silence(one, self._now) for one in streams]
        return Look(
            streams=streams,
            silent=silent,
            waits=self._waits(streams, silent) if is_live else np.zeros(len(streams)),
            step_peaks=self._rings.newest_peaks(places),
            phase_peaks=self._rings.newest_phases(places),
            offsets={host: by for host, by in self._offsets.items() if by},
            restarts=tuple(self._restarts),
        )

    def _waits(self, streams: Sequence[RankStream], silent: Floats) -> Floats:
        """Return for how many seconds each rank has lagged behind the others' steps."""
        steps = np.array([one.newest_step for one in streams], dtype=float)
        stops = np.array([one.step_stop - self._offsets.get(one.rank.host, 0.0) for one in streams])
        waits = np.zeros(len(streams))
        counts = np.array(
            [
                one.newest_step > 0 and not one.is_over and one.rank.attempt == self._attempt
                for one in streams
            ],
            dtype=bool,
        )
        if counts.sum() < 2:
            return waits
        median = np.median(steps[counts])
        newest = stops[counts].max()
        lags = counts & (steps < median) & (silent == 0)
        waits[lags] = np.maximum(0.0, newest - stops[lags])
        return waits

    def _compare_clocks(self, now: float) -> None:
        self._compared = now
        streams = list(self._expected().items())
        hosts = [stream.rank.host for _, stream in streams]
        if len(set(hosts)) < 2:
            return
        places = np.array([self._places[rank] for rank, _ in streams], dtype=np.int64)
        for host, by in offsets(self._rings.ends(places), hosts).items():
            self._exact_offsets.add(host)
            if abs(by - self._offsets.get(host, 0.0)) > CLOCK_NOISE:
                self._offsets[host] = by if abs(by) > CLOCK_NOISE else 0.0

    def _pass_steps(self, now: float, *, is_live: bool, is_last: bool) -> None:
        """Write the leader's steps, with the highest peak of all ranks, once all have made them."""
        leader = self._leader
        if leader is None or not self._groups:
            return
        expected = self._expected()
        places = np.array([self._places[rank] for rank in expected], dtype=np.int64)
        live = [
            one.newest_step
            for one in expected.values()
            if not one.is_over and not self._silence(one, now) and one.rank.attempt == self._attempt
        ]
        slowest = min(live, default=1 << 60)
        offset = self._offsets.get(leader.rank.host, 0.0) + (self._zero or 0.0)
        waited = now - SILENT_PACES * self.pace
        parent = next(reversed(self._mirrored.values()), self._outer.id if self._outer else 0)
        with self.recorder.lock:
            while self._groups:
                first, last, start, stop = self._groups[0]
                is_late = is_live and stop - offset + (self._zero or 0.0) < waited
                if last > slowest and not is_late and not is_last:
                    break
                self._groups.popleft()
                if last <= self._stepped and start >= self._stepped_at:
                    self._stepped = 0  # of another training, or again from a checkpoint
                first = max(first, self._stepped + 1)
                if last < first:
                    continue
                self._stepped, self._stepped_at = last, stop
                self._write_step(first, last, start - offset, stop - offset, places, parent)

    def _write_step(
        self,
        first: int,
        last: int,
        start: float,
        stop: float,
        places: NDArray[np.int64],
        parent: int,
    ) -> None:
        peak, certainty, phases = self._rings.highest(first, last, places)
        devices = {}
        if peak > 0:
            known: Certainty = (
                CERTAINTIES[certainty] if 0 <= certainty < len(CERTAINTIES) else "sampled"
            )
            highest = {
                kind: float(value)
                for kind, value in zip(PHASES, phases.tolist(), strict=True)
                if value > 0
            }
            devices["ranks"] = DeviceSteps(
                *(peak, known, peak, last, NOT_AVAILABLE, NOT_AVAILABLE), highest
            )
        unknown = (NOT_AVAILABLE,) * 4
        group = StepGroup(parent, first, last, max(0.0, start), max(0.0, stop), *unknown, devices)
        self.session.steps.append(group)

    def _peaks(self) -> dict[str, Peak]:
        """Return the peaks over the whole run, of all ranks together and of those shown."""
        peaks, highest = {}, Peak(NOT_AVAILABLE, "sampled")
        for rank, stream in self._expected().items():
            peak = stream.peak
            if math.isnan(peak.value):
                continue
            if not peak.value <= highest.value:
                highest = peak
            if rank in self._shown:
                peaks[f"rank:{rank}/allocated"] = peak
        return {**peaks, **({"ranks/allocated": highest} if highest.value >= 0 else {})}

    def _set_findings(self, findings: Sequence[Finding]) -> None:
        """Replace what was found before; what is the same stays the same object."""
        mine = self.session.findings
        before = {finding.kind: finding for finding in mine}
        kept = [
            old if (old := before.get(one.kind)) is not None and same(old, one) else one
            for one in findings
        ]
        if len(kept) != len(mine) or any(
            new is not old for new, old in zip(kept, mine, strict=True)
        ):
            self.session.findings = kept

    def _show(self) -> None:
        """Decide which ranks are shown one by one, and describe the devices."""
        expected = self._expected()
        if not expected:
            return
        if self._world <= SHOWN_SINGLY:
            self._shown += [rank for rank in expected if rank not in self._shown][
                : SHOWN_SINGLY - len(self._shown)
            ]
        else:
            self._choose_worst(expected)
        totals = [total for one in expected.values() if (total := one.described.total) > 0]
        nodes = len({one.rank.host for one in expected.values()})
        on = f" on {format_counted(nodes, 'node')}" if nodes > 1 else ""
        devices = [
            Device(
                "ranks",
                format_counted(self._world, "rank") + on,
                total=min(totals, default=NOT_AVAILABLE),
            )
        ]
        keys = ["ranks/allocated", "ranks/median", "ranks/lowest"]
        keys += [
            f"ranks/rank{rank}" for rank in self._shown if rank < SHOWN_SINGLY and self._is_small
        ]
        for rank in self._shown:
            stream = self._current[rank]
            described = stream.described
            host = plain(stream.rank.host) if nodes > 1 else ""
            name = " · ".join(filter(None, (f"rank {rank}", host, described.name)))
            devices.append(Device(f"rank:{rank}", name, described.uuid, described.total))
            keys += [
                f"rank:{rank}/{metric}"
                for metric in _OF_RANK
                if metric == "allocated" or stream.column(metric) is not None
            ]
        new = [key for key in keys if key not in self._columns]
        series = self.session.series
        if new or tuple(devices) != self.session.devices:
            for key in new:
                self._columns[key] = len(self._columns)
            more = [Series(*key.split("/")) for key in new]
            if not same(tuple(devices), self.session.devices) or more:
                self.recorder.adopt(devices, (*series, *more))
        if self._strip is None or self._strip.world < self._world:
            per_node = self._world // nodes if nodes and not self._world % nodes else 1
            self._strip = Strip(self._world, per_node, max(1.0, self._width))

    @property
    def _is_small(self) -> bool:
        return self._buckets is not None and self._buckets.width == FINE_BUCKET

    def _choose_worst(self, expected: Mapping[int, RankStream]) -> None:
        peaks = {rank: one.peak.value for rank, one in expected.items() if one.peak.value > 0}
        if not peaks:
            return
        highest = max(peaks, key=lambda rank: peaks[rank])
        known = peaks.get(self._worst, 0.0) if self._worst is not None else 0.0
        if self._worst is None or peaks[highest] > WORSE * known:
            if highest in self._shown or len(self._shown) < SHOWN_SINGLY:
                self._worst = highest
                if highest not in self._shown:
                    self._shown.append(highest)

    def _ranks(self, look: Look) -> Ranks:
        streams = look.streams
        peaks = np.array([one.peak.value for one in streams])
        found = spread(peaks)
        worst = self._shown_now()
        return Ranks(
            world=self._world,
            nodes=look.nodes,
            reporting=int((look.silent == 0).sum()),
            engine=next((one.rank.engine for one in streams if one.rank.engine), ""),
            shown=tuple(worst),
            lowest=found.low,
            median=found.median,
            lowest_rank=streams[found.lowest].rank.rank if found.lowest >= 0 else 0,
            table=tuple(self._rows(look, self._table(look, peaks, found.lowest))),
            phases=self._phases(look),
            strip=self._strip.shown() if self._strip is not None else Ranks(0).strip,
        )

    def _shown_now(self) -> list[int]:
        shown = [rank for rank in self._shown if rank < self._world]
        if self._worst is None or self._worst not in shown:
            return sorted(shown)
        return [self._worst, *(rank for rank in reversed(shown) if rank != self._worst)]

    def _table(self, look: Look, peaks: Floats, lowest: int) -> list[int]:
        """Return the places of the ranks that the table has."""
        order = np.argsort(-np.nan_to_num(peaks, nan=-1.0), kind="stable").tolist()
        if len(order) <= MOST_ROWS:
            return order
        flags = self._flags(look)
        chosen = dict.fromkeys(order[:WORST_ROWS])
        if lowest >= 0:
            chosen[lowest] = None
        gravity = ("oom", "outlier", "behind", "lost", "silent")
        for place in sorted(flags, key=lambda one: (gravity.index(flags[one]), one)):
            chosen[place] = None
        return list(chosen)[:MOST_ROWS]

    def _flags(self, look: Look) -> dict[int, Flag]:
        flags: dict[int, Flag] = {
            one.place: "outlier" for one in self._judged.outliers if one.place < len(look.streams)
        }
        flags |= dict.fromkeys(
            (place for place in self._judged.behind if place < len(look.streams)), "behind"
        )
        for place in np.flatnonzero(look.silent > 0).tolist():
            flags[place] = "lost" if look.silent[place] >= LOST else "silent"
        flags |= {place: "oom" for place, one in enumerate(look.streams) if one.oom is not None}
        return flags

    def _rows(self, look: Look, places: Sequence[int]) -> list[RankRow]:
        flags = self._flags(look)
        return [self._row(look, place, flags.get(place, "")) for place in places]

    def _row(self, look: Look, place: int, flag: Flag) -> RankRow:
        stream = look.streams[place]
        rank, device, peak = stream.rank, stream.described, stream.peak
        at = stream.at
        phase = stream.raised or phase_of_peak(look, place)
        running = "" if at is None or stream.is_over else at.label or at.kind
        return RankRow(
            rank=rank.rank,
            attempt=rank.attempt,
            host=rank.host,
            device=device.name,
            total=device.total,
            peak=peak.value,
            certainty=peak.certainty,
            allocated=stream.latest("allocated"),
            weights=stream.latest("weights"),
            step=stream.newest_step,
            phase=phase or running,
            silent=float(look.silent[place]),
            flag=flag,
        )

    def _phases(self, look: Look) -> tuple[PhaseSkew, ...]:
        found = []
        columns: list[tuple[SpanKind, Floats]] = [
            (kind, look.phase_peaks[:, at]) for at, kind in enumerate(PHASES)
        ]
        for kind in ("evaluate", "predict", "save"):
            peaks = np.array([one.span_peak(kind) for one in look.streams])  # type: ignore[arg-type]
            columns.append((kind, peaks))  # type: ignore[arg-type]
        for kind, peaks in columns:
            over = spread(peaks)
            if over.high > 0:
                rank = look.streams[over.highest].rank.rank
                found.append(PhaseSkew(kind, over.low, over.median, over.high, rank))
        return tuple(found)


def medians_of(look: Look) -> Floats:
    """Return the median of each rank's newest step peaks."""
    return medians(look.step_peaks)


def said_of(ignored: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each reason for which streams were left out."""
    words = {
        "another run": "of another run",
        "no rank": "of no rank",
        "damaged": "damaged",
    }
    for why, count in ignored.items():
        what = words.get(why, f"of a newer format ({plain(why)})")
        yield f"{format_count(count)} file{'s' if count != 1 else ''} in the run's directory left out: {what}."
