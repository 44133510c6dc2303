"""Which streams stand for the ranks of a run, what these did lately, and how they stand at a moment.

Of two streams of one rank the newer attempt counts, and those of one run only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import STEPS, offsets
from hfmem_widget.ranks.identity import seconds_between_writes
from hfmem_widget.ranks.stream import (
    CERTAINTY,
    IN_PHASES,
    PEAK,
    STEP_FIGURES,
    STOP,
    Finished,
    RankStream,
    order_of,
)
from hfmem_widget.session import Peak, SpanKind
from hfmem_widget.session.steps import PHASES
from hfmem_widget.session.timeline import Floats, resized
from hfmem_widget.text import plain

KEPT = 128
"""Steps of each rank: ranks whose lines come a second apart have some in common at 100 steps a second."""

_NO_STEP = (-1, -math.inf)


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """Exact peaks in bytes, a row for each rank."""

    newest: Floats  # of the newest `STEPS`
    newest_phases: Floats  # the highest of each of `PHASES` over these
    highest_phases: Floats  # and over all steps
    lack_phases: NDArray[np.bool_]
    """Whether the phases of some of the newest steps were not measured, shape ``(ranks,)``."""


class RecentSteps:
    """The newest steps of all ranks, by their numbers.

    The arrays have the number of the step in each place, -1 for none, the figures of `Finished`, and the
    highest peaks of the phases over all steps that there were.
    """

    def __init__(self) -> None:
        self._number: NDArray[np.int64] = np.full((0, KEPT), -1, dtype=np.int64)
        self._figures: Floats = np.empty((0, KEPT, len(STEP_FIGURES)))
        self._highest_phases: Floats = np.empty((0, len(PHASES)))
        self._newest: list[tuple[int, float]] = []

    def widen(self, ranks: int) -> None:
        """Make room for so many ranks."""
        before = len(self._number)
        if ranks > before:
            size = max(ranks, 2 * before)
            self._number = resized(self._number, size, -1)
            self._figures = resized(self._figures, size)
            self._highest_phases = resized(self._highest_phases, size)
            self._newest += [_NO_STEP] * (size - before)

    def clear(self, place: int) -> None:
        """Forget the steps of a rank, which begins anew."""
        self._forget(place)
        self._highest_phases[place] = np.nan
        self._newest[place] = _NO_STEP

    def add(self, place: int, steps: Finished) -> None:
        """Add steps of a rank; a training whose numbers begin again takes the place of the one before."""
        number, ended = steps.last[-1], steps.figures[-1][STOP]
        newest, stop = self._newest[place]
        if number < newest and ended > stop:
            self._forget(place)
        self._newest[place] = number, ended
        at, figures = [number % KEPT for number in steps.last], np.array(steps.figures)
        # Of two steps in one place the later stays.
        self._number[place][at] = steps.last
        self._figures[place][at] = figures
        highest = self._highest_phases[place]
        np.fmax(highest, np.fmax.reduce(figures[:, IN_PHASES]), out=highest)

    def _forget(self, place: int) -> None:
        self._number[place], self._figures[place] = -1, np.nan

    def highest(
        self, first: int, last: int, places: NDArray[np.int64]
    ) -> tuple[float, int, Floats]:
        """Return the highest peak of some steps over some ranks, its certainty, and the phases' highest."""
        columns = np.arange(max(first, last + 1 - KEPT), last + 1) % KEPT
        at = np.ix_(places, columns)
        number = self._number[at]
        here = (number >= first) & (number <= last)
        figures = self._figures[at][here]
        peaks = figures[:, PEAK]
        if np.isnan(peaks).all():
            return np.nan, -1, np.full(len(PHASES), np.nan)
        highest = int(np.nanargmax(peaks))
        certainty = int(figures[highest, CERTAINTY])
        return float(peaks[highest]), certainty, np.fmax.reduce(figures[:, IN_PHASES])

    def peaks(self, places: NDArray[np.int64]) -> StepPeaks:
        """Return the peaks of some ranks."""
        columns = np.argpartition(self._number[places], KEPT - STEPS, axis=1)[:, KEPT - STEPS :]
        at = places[:, None], columns
        figures, are_there = self._figures[at], self._number[at] >= 0
        phases = figures[..., IN_PHASES]
        return StepPeaks(
            newest=figures[..., PEAK],
            newest_phases=np.fmax.reduce(phases, axis=1),
            highest_phases=self._highest_phases[places],
            lack_phases=np.any(are_there & np.isnan(phases).all(axis=2), axis=1),
        )

    def ends_of(self, step: int, places: NDArray[np.int64]) -> Floats:
        """Return when some ranks finished a step, by their own clocks; NaN where that is not kept."""
        number, stops = (
            array[places, step % KEPT] for array in (self._number, self._figures[..., STOP])
        )
        return np.where(number == step, stops, np.nan)

    def ends(self, places: NDArray[np.int64]) -> Floats:
        """Return when steps ended that ranks have in common, shape ``(ranks, KEPT)``; NaN elsewhere."""
        number = self._number[places]
        newest = number.max(axis=0, initial=-1)
        # Of two steps that share a place, that of most ranks: the slow ones have not come to the newer one.
        older = newest - KEPT
        has_newest, has_older = (number == newest).sum(axis=0), (number == older).sum(axis=0)
        wanted = np.where(has_newest >= has_older, newest, older)
        return np.where((number == wanted) & (wanted >= 0), self._figures[places, :, STOP], np.nan)


SILENT_PACES, SILENT_SECONDS = 3, 2.0
"""A rank is silent after so many times its pace, and so many seconds more."""

LOST = 30.0
"""Seconds after which a silent rank is taken for lost."""

MOST_IN_EVIDENCE = 16
"""Ranks and hosts that the evidence of a finding lists."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The ranks began anew: how many, after which step, and the worlds before and after."""

    attempt: int
    ranks: int
    step: int
    before: int
    world: int


@dataclass(frozen=True, slots=True)
class Look:
    """All ranks that should be there and were seen, at one moment, in order of rank; arrays have one each."""

    streams: Sequence[RankStream]
    silent: Floats  # seconds for which each was silent; 0 where that is as it should be
    waits: Floats
    """Seconds since each finished a step while others finished later ones; 0 where it keeps up."""
    unread: Floats
    """Seconds for which the reader did not come to look at each: nothing is known of it since."""
    peaks: StepPeaks
    offsets: Mapping[str, float] = field(default_factory=dict)
    """By how many seconds the clock of each host is ahead."""
    restarts: Sequence[Restart] = ()
    was_interrupted: bool = False
    """Whether what has started the ranks was interrupted: it ends them, and some have no time for an end."""

    @property
    def nodes(self) -> int:
        """Hosts that were seen."""
        return len({stream.rank.host for stream in self.streams})

    def named(self, place: int) -> str:
        """Return what a rank is called at the beginning of a sentence."""
        rank = self.streams[place].rank
        return f"Rank {rank.rank}" + (f" ({plain(rank.host)})" if self.nodes > 1 else "")

    def numbers(self, places: Iterable[int]) -> list[int]:
        """Return the numbers of the ranks in some places, of many the first."""
        return [
            self.streams[place].rank.rank for place in itertools.islice(places, MOST_IN_EVIDENCE)
        ]

    def rank_evidence(self, place: int, **more: object) -> dict[str, object]:
        """Return evidence that names the rank of a finding, and `more`."""
        rank = self.streams[place].rank
        return {"rank": rank.rank, "host": rank.host, **more}


CLOCK_NOISE = 0.05
"""Seconds by which a clock must be off, or differ from what was known, to be corrected anew."""

AT_LEAST = 1e-3
"""Seconds for which a rank is silent whose process is gone."""

ROUGH = 2.0
"""Seconds by which lines must arrive too early or too late to correct a clock before steps show it."""


class Roster:
    """The streams that count, by rank, and their places in arrays; those of another `run` are refused."""

    def __init__(self, run: str) -> None:
        self._run = run  # empty for any
        self.places: dict[int, int] = {}  # by rank
        self.ranks: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # by place
        self.world = self.attempt = 0  # the newest; 0 before the first rank was seen
        self.pace = 1.0  # seconds between two lines of a rank
        self.expected: tuple[RankStream, ...] = ()
        """Those of the newest attempt's world, in order of rank."""
        self.expected_places: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.doubled: set[int] = set()  # ranks that two processes write
        self.restarts: list[Restart] = []
        self.offsets: dict[str, float] = {}  # by host, by how many seconds its clock is corrected
        self.lag = 0.0
        """Seconds from when lines were written, by their own clock, to when they were read: the usual one."""
        self.steps = RecentSteps()
        self._current: dict[int, RankStream] = {}
        self._rivals: dict[int, list[RankStream]] = {}
        self._newest: RankStream | None = None
        self._is_sorted = True
        self._lags: dict[str, float] = {}
        self._timed_by_steps: set[str] = set()

    def counts(self, stream: RankStream) -> bool:
        """Return whether a stream stands for its rank."""
        return self._current.get(stream.rank.rank) is stream

    def current(self, rank: int) -> RankStream | None:
        """Return the stream that stands for a rank."""
        return self._current.get(rank)

    def begin(self, stream: RankStream) -> None:
        """Add a stream whose head was read."""
        rank, head = stream.rank, stream.head
        if head is None or (self._run and head.run != self._run):
            stream.refuse("another run")
            return
        current = self._current.get(rank.rank)
        if current is None:
            self._take(stream)
            return
        is_newer = order_of(stream) > order_of(current)
        is_same_attempt = rank.attempt == current.rank.attempt
        if is_newer and (not is_same_attempt or current.is_over):
            self._take(stream)
        elif is_same_attempt and not current.is_over:
            # The older is shown until it is over, or silent.
            self._rivals.setdefault(rank.rank, []).append(stream if is_newer else current)
            if not is_newer:
                self._take(stream)

    def drop(self, stream: RankStream) -> None:
        """Forget a stream."""
        rank = stream.rank.rank
        if self._current.get(rank) is stream:
            del self._current[rank]
            self.steps.clear(self.places[rank])
            self._newest = max(self._current.values(), key=order_of, default=None)
            self._is_sorted = False
        rivals = self._rivals.get(rank, [])
        if stream in rivals:
            rivals.remove(stream)

    def settle(self, now: float) -> None:
        """Have the newer of two processes of one rank stand for it once the older is silent or over."""
        for rank, rivals in list(self._rivals.items()):
            current = self._current.get(rank)
            if current is None or current.is_over or self.silence(current, now):
                del self._rivals[rank]
                newest = max(rivals, key=order_of, default=None)
                if newest and not (current and order_of(newest) <= order_of(current)):
                    self._take(newest)
            elif any(not rival.is_over and now - rival.heard < LOST for rival in rivals):
                self.doubled.add(rank)
        self.sort()

    def sort(self) -> None:
        """Bring `expected` up to date."""
        if self._is_sorted:
            return
        self._is_sorted = True
        if self._newest is not None:
            self.world, self.attempt = self._newest.rank.world, self._newest.rank.attempt
        self.pace = seconds_between_writes(self.world)
        by_rank = sorted(self._current.items())
        self.expected = tuple(stream for rank, stream in by_rank if rank < self.world)
        places = [self.places[stream.rank.rank] for stream in self.expected]
        self.expected_places = np.array(places, dtype=np.int64)
        self.ranks = np.fromiter(self.places, np.int64, len(self.places))

    def peaks(self, kind: SpanKind | None = None) -> dict[int, Peak]:
        """Return the known peaks by rank: the highest so far, or that of the newest span of a kind."""
        peaks = {
            stream.rank.rank: stream.peak if kind is None else stream.span_peak(kind)
            for stream in self.expected
        }
        return {rank: peak for rank, peak in peaks.items() if peak.value >= 0}

    def silence(self, stream: RankStream, now: float) -> float:
        """Return for how many seconds a rank has been silent; 0 where that is as it should be."""
        if stream.is_over or stream.rank.attempt < self.attempt:
            return 0.0
        silent = min(now, stream.looked_at) - stream.heard
        if stream.is_gone:
            return max(silent, AT_LEAST)
        return silent if silent > self.patience else 0.0

    @property
    def patience(self) -> float:
        """Seconds without a word after which a rank is silent."""
        return SILENT_PACES * self.pace + SILENT_SECONDS

    def live(self, now: float) -> list[RankStream]:
        """Return the streams that will write more."""
        return [
            stream
            for stream in self.expected
            if not stream.is_over
            and stream.rank.attempt == self.attempt
            and not self.silence(stream, now)
        ]

    def as_of(self, now: float, live: Iterable[RankStream]) -> float:
        """Return up to when all was read that some ranks have written."""
        return min([now, *(stream.looked_at for stream in live)])

    def offset(self, stream: RankStream) -> float:
        """Return by how many seconds a rank's clock is ahead."""
        return self.offsets.get(stream.rank.host, 0.0)

    def reached(self, stream: RankStream) -> float:
        """Return the time of a rank's newest reading, on the common clock."""
        return stream.reached - self.offset(stream)

    def hear(self, streams: Iterable[RankStream], now: float, behind: Collection[str] = ()) -> None:
        """Note that these streams had something since the last time; those `behind` have more to read."""
        for stream in streams:
            at = now if math.isnan(stream.fed_at) else min(now, stream.fed_at)
            stream.heard = max(stream.heard, at)
            # How old the newest line is says nothing of a clock while there are newer ones to read.
            if stream.head is not None and stream.name not in behind:
                host, lag = stream.rank.host, at - stream.last_sign
                self._lags[host] = min(lag, self._lags.get(host, math.inf))
        if not self._lags:
            return
        # What is common to all hosts is that of this one's clock, or of a file that was copied.
        self.lag = float(np.median(list(self._lags.values())))
        for host, lag in self._lags.items():
            if host in self._timed_by_steps:
                continue
            if abs(self.lag - lag) > self.pace + ROUGH:
                self.offsets[host] = self.lag - lag
            else:
                self.offsets.pop(host, None)

    def compare_clocks(self) -> bool:
        """Compare the clocks of the hosts by the ends of their steps, and return whether they could be."""
        hosts = [stream.rank.host for stream in self.expected]
        if len(set(hosts)) < 2:
            return True
        ahead_by = offsets(self.steps.ends(self.expected_places), hosts)
        for host, by in ahead_by.items():
            self._timed_by_steps.add(host)
            if abs(by - self.offsets.get(host, 0.0)) > CLOCK_NOISE:
                if abs(by) > CLOCK_NOISE:
                    self.offsets[host] = by
                else:
                    del self.offsets[host]
        return bool(ahead_by)

    def waits(self, silent: Floats, unread: Floats) -> Floats:
        """Return for how many seconds each expected rank has lagged behind the others' steps."""
        streams = self.expected
        waits = np.zeros(len(streams))
        steps = np.array([stream.newest_step for stream in streams], dtype=float)
        offsets = np.array([self.offset(stream) for stream in streams])
        stops = np.array([stream.step_stop for stream in streams]) - offsets
        reached = np.array([stream.reached for stream in streams]) - offsets
        runs = [not each.is_over and each.rank.attempt == self.attempt for each in streams]
        counts = np.array(runs, dtype=bool) & (steps > 0)
        if counts.sum() >= 2:
            lags = counts & (steps < np.median(steps[counts])) & (silent == 0)
            # Nothing is known after a rank's newest line, and it lags only once others finish its next step.
            until = np.minimum(stops[counts].max(), reached)
            for step in np.unique(steps[lags]).astype(int):
                ends = self.steps.ends_of(step + 1, self.expected_places) - offsets
                ends = ends[counts & ~lags & ~np.isnan(ends)]
                there = lags & (steps == step)
                since = np.maximum(stops[there], np.median(ends) if len(ends) else -np.inf)
                waits[there] = np.maximum(0.0, until[there] - since - unread[there])
        return waits

    def _take(self, stream: RankStream) -> None:
        rank = stream.rank.rank
        before = self._current.get(rank)
        place = self.places.setdefault(rank, len(self.places))
        self.steps.widen(len(self.places))
        self._current[rank] = stream
        self._is_sorted = False
        if before is not None:
            self._note_restart(before, stream)
            self.steps.clear(place)
        if self._newest is None or order_of(stream) > order_of(self._newest):
            self._newest = stream
            self.world, self.attempt = stream.rank.world, stream.rank.attempt

    def _note_restart(self, before: RankStream, now: RankStream) -> None:
        attempt, step = now.rank.attempt, before.newest_step
        is_again = attempt == before.rank.attempt and before.outcome == "done"
        if order_of(now) < order_of(before) or is_again:
            return
        last = self.restarts[-1] if self.restarts else None
        if last is not None and last.attempt == attempt:
            step, first = max(step, last.step), last.before
            self.restarts[-1] = Restart(attempt, last.ranks + 1, step, first, now.rank.world)
        else:
            self.restarts.append(Restart(attempt, 1, step, before.rank.world, now.rank.world))
