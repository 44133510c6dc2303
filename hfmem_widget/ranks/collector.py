"""The lines of all ranks, made into one session: pure, with no thread, file or clock of its own."""

import math
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from hfmem_widget.ranks.aggregate import spread
from hfmem_widget.ranks.findings import Judged, flags_of, judge, phases_of, rows_of, table_of
from hfmem_widget.ranks.overview import MONTH, Overview
from hfmem_widget.ranks.roster import LOST, SILENT_PACES, Look, Roster
from hfmem_widget.ranks.stream import News, RankStream
from hfmem_widget.session import PhaseSkew, RankRow, Ranks, Recorder
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import format_counted, plain

_NO_LABEL = re.compile(r"rank \d+")
"""The default label of a rank, which cannot name the whole run."""

LOOK_EVERY = 1.0
"""Seconds between two judgements of all ranks; more where they write less often than every two seconds."""

CLOCK_EVERY = 5.0
"""Seconds between two comparisons of their clocks."""

OVER_AFTER = 10.0
"""Seconds within which a run that failed may be restarted."""


class Collector:
    """Reads the lines of many ranks and writes the `session` that shows all of them; see `Session.ranks`.

    `label` names the run; by default the ranks' own label. If `run` is given, lines of other runs are left
    out. `started_at` is the wall clock at time zero, by default when the first rank began. With
    `started_here`, this process started the ranks and calls `finish` once they have ended: until then a run
    that failed may begin again, however long that takes. The `lock` is held while lines are read or judged.
    """

    def __init__(
        self,
        label: str = "",
        *,
        run: str = "",
        started_at: float | None = None,
        started_here: bool = False,
    ) -> None:
        self.lock = threading.RLock()
        self.started_here = started_here
        self.recorder = Recorder(label, started_at=started_at or 0.0)
        self.session = self.recorder.session
        self.ignored: dict[str, int] = {}  # streams that are left out, by the reason
        self._zero = started_at
        self.roster = Roster(run)
        self._overview: Overview | None = None
        self._streams: dict[str, RankStream] = {}
        self._fed: dict[str, RankStream] = {}
        self._waiting: list[tuple[RankStream, News]] = []
        self._looked = self._compared = -math.inf
        self._now = -math.inf
        self.was_interrupted = False  # set by the code that started the ranks
        self._has_clocks = self._has_noted_fault = False

    @property
    def streams(self) -> Mapping[int, RankStream]:
        """By rank, the stream that stands for it: that of the newest attempt."""
        with self.lock:
            self.roster.sort()
            return {stream.rank.rank: stream for stream in self.roster.expected}

    @property
    def all_streams(self) -> Mapping[str, RankStream]:
        """Every stream that was fed, by its name."""
        with self.lock:
            return dict(self._streams)

    def stream(self, name: str) -> RankStream | None:
        """Return a stream by its name; None before it was fed."""
        return self._streams.get(name)

    def feed(self, name: str, data: bytes, at: float = NOT_AVAILABLE) -> None:
        """Read the next bytes of a stream, written at the wall-clock time `at`, by default just now."""
        with self.lock:
            stream = self._streams.get(name)
            if stream is None:
                stream = self._streams[name] = RankStream(name)
            if stream.refused:
                return
            was_known = stream.head is not None
            news_of_lines = stream.feed(data)
            if stream.head is not None and not was_known:
                with self._faults_cost_this():
                    self.roster.begin(stream)
            for news in news_of_lines:
                with self._faults_cost_this():
                    if self._overview is None:
                        self._waiting.append((stream, news))
                    elif self.roster.counts(stream):
                        self._overview.take(stream, news, self._now)
            stream.fed_at, stream.is_gone = at, False
            self._fed[name] = stream
            if stream.refused:
                self._leave_out(stream)

    def is_gone(self, name: str) -> None:
        """Note that the process of a stream has ended, and that everything it wrote was fed."""
        with self.lock:
            stream = self._streams[name]
            stream.is_gone = not stream.is_over

    def forget(self, name: str) -> None:
        """Forget a stream whose process has turned out not to be a rank."""
        with self.lock:
            stream = self._streams.pop(name, None)
            if stream is not None:
                self.roster.drop(stream)

    def tick(self, now: float, behind: Collection[str] = (), *, looks: bool = False) -> None:
        """Write everything that is known at `now`, by the wall clock.

        `behind` are streams with more to read. With `looks` the ranks are judged too, however recently that
        was done.
        """
        with self.lock, self._faults_cost_this():
            overview = self._at(now, behind)
            if overview is not None:
                with self._faults_cost_this():
                    overview.pass_on(self._limit(now, behind), now)
                if behind:  # lines come faster than looks at them
                    with self._faults_cost_this():
                        overview.leader.pass_steps(now, is_live=False)
                if looks or not 0 <= now - self._looked < max(LOOK_EVERY, self.roster.pace / 2):
                    self._look(overview, now, is_live=not behind)
        self.recorder.publish()

    def finish(self, now: float) -> None:
        """Write the rest at a wall-clock time, and end the session."""
        with self.lock:
            if not self.session.running:
                return
            with self._faults_cost_this():
                self._at(now)
            if (overview := self._overview) is not None:
                with self._faults_cost_this():
                    overview.pass_on(math.inf, now)
                self._look(overview, now, is_live=True, is_last=True)
                with self._faults_cost_this():
                    overview.close(self._outcome(now))
            self.recorder.stop(self._ended_at(now))
        self.recorder.publish()

    def is_over(self, now: float) -> bool:
        """Return whether the run has ended: every rank ended or was lost, and none was restarted."""
        with self.lock:
            self.roster.sort()
            expected = self.roster.expected
            if not expected:
                return False
            newest = max(stream.heard for stream in expected)
            left = [stream for stream in expected if not (stream.is_over or stream.is_gone)]
            now = min(now, max((stream.looked_at for stream in left), default=now))
            is_complete = len(expected) >= self.roster.world and not left
            if is_complete and all(stream.outcome == "done" for stream in expected):
                return True
            patience = OVER_AFTER if is_complete else LOST
            return not self.started_here and now - newest >= patience

    def rows(self) -> tuple[RankRow, ...]:
        """Return the state of each rank, in order of rank."""
        with self.lock, self._faults_cost_this():
            look = self._look_at(self._now, is_live=True)
            return rows_of(look, flags_of(look, self._judge(look)), range(len(look.streams)))
        return () if self.session.ranks is None else self.session.ranks.table

    def phases(self) -> tuple[PhaseSkew, ...]:
        """Return how the peaks of each phase spread over the ranks."""
        with self.lock, self._faults_cost_this():
            return phases_of(self._look_at(self._now, is_live=True))
        return () if self.session.ranks is None else self.session.ranks.phases

    def notes_on_left_out(self) -> Iterator[str]:
        """Yield a sentence for each reason for which streams were left out."""
        words = {"another run": "of another run", "no rank": "of no rank", "damaged": "damaged"}
        for why, count in sorted(self.ignored.items()):
            what = words.get(why, f"of a newer format ({plain(why)})")
            yield f"{format_counted(count, 'file')} of the run's directory left out: {what}."

    @contextmanager
    def _faults_cost_this(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001
            if not self._has_noted_fault:
                self._has_noted_fault = True
                why = f"{type(error).__name__}: {plain(error)}"
                self.recorder.note(
                    f"A part of what the ranks wrote is not shown: internal error ({why})."
                )

    def _at(self, now: float, behind: Collection[str] = ()) -> Overview | None:
        """Bring everything up to a time, and return the overview; None before the first rank was seen."""
        if not self.session.running:
            return None
        self._now = now
        roster = self.roster
        fed, self._fed = self._fed, {}
        roster.hear(fed.values(), now, behind)
        roster.settle(now)
        if not roster.expected:
            return self._overview
        overview = self._overview or self._begin()
        overview.leader.follow(now)
        for stream, news in self._waiting:
            if roster.counts(stream):
                with self._faults_cost_this():
                    overview.take(stream, news, now)
        self._waiting.clear()
        return overview

    def _begin(self) -> Overview:
        expected, session = self.roster.expected, self.session
        heads = [stream.head for stream in expected if stream.head is not None]
        if self._zero is None:
            # Not the earliest of all: a clock may be years off. Nor a mean of two: it is no host's.
            began = sorted(head.started for head in heads)
            middle = began[(len(began) - 1) // 2]
            self._zero = min(start for start in began if abs(start - middle) < MONTH)
        session.started_at = self._zero
        labels = (head.label for head in heads)
        named = (label for label in labels if label and not _NO_LABEL.fullmatch(label))
        session.label = session.label or next(named, "")
        self._overview = Overview(self.recorder, self.roster, self._zero)
        return self._overview

    def _limit(self, now: float, behind: Collection[str]) -> float:
        roster = self.roster
        if behind:
            late = map(self._streams.get, behind)
            return min(-math.inf if each is None else roster.reached(each) for each in late)
        live = roster.live(now)
        if not live:
            return math.inf
        patience = max(0.0, roster.lag) + SILENT_PACES * roster.pace
        return max(min(map(roster.reached, live)), roster.as_of(now, live) - patience)

    def _look(
        self, overview: Overview, now: float, *, is_live: bool, is_last: bool = False
    ) -> None:
        self._looked = now
        is_due = not 0 <= now - self._compared < CLOCK_EVERY
        if is_due or is_last or not self._has_clocks:
            with self._faults_cost_this():
                self._compared, self._has_clocks = now, self.roster.compare_clocks()
        with self._faults_cost_this():
            overview.show()
        with self._faults_cost_this():
            overview.leader.pass_steps(now, is_live=is_live, is_last=is_last)
        with self._faults_cost_this():
            look = self._look_at(now, is_live=is_live)
            judged = self._judge(look)
            overview.update(judged.findings)
            self.session.ranks = self._ranks(overview, look, judged)
        for rank in sorted(self.roster.doubled)[:4]:
            self.recorder.note(f"Two processes say that they are rank {rank}: the older is shown.")

    def _judge(self, look: Look) -> Judged:
        with self._faults_cost_this():
            return judge(look)
        return Judged()

    def _look_at(self, now: float, *, is_live: bool) -> Look:
        roster = self.roster
        silent = np.zeros(len(roster.expected))
        if is_live:
            # How long ago a run ended is not reported.
            newest = max((stream.heard for stream in roster.expected), default=now)
            silent[:] = [
                roster.silence(stream, min(now, newest + LOST + 1)) for stream in roster.expected
            ]
        unread = np.array([max(0.0, now - stream.looked_at) for stream in roster.expected])
        return Look(
            streams=roster.expected,
            silent=silent,
            waits=roster.waits(silent, unread) if is_live else np.zeros(len(silent)),
            unread=unread,
            peaks=roster.steps.peaks(roster.expected_places),
            offsets=dict(roster.offsets),
            restarts=tuple(roster.restarts),
            was_interrupted=self.was_interrupted,
        )

    def _ranks(self, overview: Overview, look: Look, judged: Judged) -> Ranks:
        roster = self.roster
        peaks = np.array([stream.peak.value for stream in look.streams])
        peaks_spread = spread(peaks)
        shown = sorted(rank for rank in overview.shown if rank < roster.world)
        worst = [] if overview.worst is None else [overview.worst]
        engines = (stream.rank.engine for stream in look.streams if stream.rank.engine)
        lowest = peaks_spread.lowest
        return Ranks(
            world=roster.world,
            nodes=look.nodes,
            reporting=int((look.silent == 0).sum()),
            engine=next(engines, ""),
            shown=tuple(dict.fromkeys([*worst, *shown])),
            lowest=peaks_spread.low,
            median=peaks_spread.median,
            lowest_rank=look.streams[lowest].rank.rank if lowest >= 0 else 0,
            table=table_of(look, flags_of(look, judged), peaks),
            phases=phases_of(look),
            strip=overview.strip.shown(),
        )

    def _ended_at(self, now: float) -> float:
        signs = [stream.last_sign - self.roster.offset(stream) for stream in self.roster.expected]
        return now if self.roster.live(now) or not signs else min(now, max(signs))

    def _outcome(self, now: float) -> str:
        expected = self.roster.expected
        failed = [stream for stream in expected if stream.outcome not in {"", "done"}]
        # That of the first: the others fail because it is gone.
        first = min(
            failed, key=lambda stream: stream.last_sign - self.roster.offset(stream), default=None
        )
        silent = (
            stream for stream in expected if not stream.is_gone and self.roster.silence(stream, now)
        )
        if first is not None and not any(silent):
            return first.outcome
        return "done" if all(stream.is_over for stream in expected) else "not heard to its end"

    def _leave_out(self, stream: RankStream) -> None:
        self.ignored[stream.refused] = self.ignored.get(stream.refused, 0) + 1
        if stream.refused == "damaged" and stream.head is not None:
            lines = format_counted(stream.dropped, "line")
            self.recorder.note(
                f"Rank {stream.rank.rank} is no longer read: {lines} could not be read."
            )
