"""Which streams stand for the ranks of a run: of two of one rank the newer attempt, and of one run only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import Floats, offsets
from hfmem_widget.ranks.look import LOST, SILENT_PACES, SILENT_SECONDS, Restart
from hfmem_widget.ranks.recent_steps import RecentSteps
from hfmem_widget.ranks.stream import RankStream, order_of

LINES_A_SECOND = 256
"""Of a run altogether: in a larger world each rank writes less often."""

SAMPLED_ALONE = 64
"""Ranks up to which each has its samples written once a second, whatever their number."""

CLOCK_NOISE = 0.05
"""Seconds by which a clock must be off, or differ from what was known, to be corrected anew."""

AT_LEAST = 1e-3
"""Seconds for which a rank is silent whose process is gone."""

ROUGH = 2.0
"""Seconds by which lines must come too early or too late to tell of a clock before steps do."""


class Roster:
    """The streams that count, by rank, and their places in arrays.

    Parameters
    ----------
    run : str
        Which run; streams of another are refused. Empty for any.

    Attributes
    ----------
    places : dict of int to int
        By rank.
    world, attempt : int
        Of the newest attempt; 0 before the first rank was heard of.
    pace : float
        Seconds between two lines of a rank.
    expected : tuple of RankStream
        Those of the newest attempt's world, in order of rank.
    expected_places : array of int
        Their places.
    ranks : array of int
        By place.
    doubled : set of int
        Ranks of which two processes write.
    restarts : list of Restart
    offsets : dict of str to float
        By host, the seconds by which its clock is ahead.
    lag : float
        Seconds from when lines were written, by their own clock, to when they were read: the usual one.
    steps : RecentSteps
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.places: dict[int, int] = {}
        self.world = self.attempt = 0
        self.pace = 1.0
        self.expected: tuple[RankStream, ...] = ()
        self.expected_places: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.ranks: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.doubled: set[int] = set()
        self.restarts: list[Restart] = []
        self.offsets: dict[str, float] = {}
        self.lag = 0.0
        self.steps = RecentSteps()
        self._current: dict[int, RankStream] = {}
        self._rivals: dict[int, list[RankStream]] = {}
        self._newest: RankStream | None = None
        self._is_sorted = True
        self._lags: dict[str, float] = {}
        self._told_by_steps: set[str] = set()

    def counts(self, stream: RankStream) -> bool:
        """Return whether a stream stands for its rank."""
        return self._current.get(stream.rank.rank) is stream

    def current(self, rank: int) -> RankStream | None:
        """Return the stream that stands for a rank."""
        return self._current.get(rank)

    def begin(self, stream: RankStream) -> None:
        """Take up a stream that has said whose it is."""
        rank, head = stream.rank, stream.head
        if head is None or (self._run and head.run != self._run):
            stream.refuse("another run")
            return
        known = self._current.get(rank.rank)
        if known is None:
            self._take(stream)
            return
        is_newer = order_of(stream) > order_of(known)
        is_same_attempt = rank.attempt == known.rank.attempt
        if is_newer and (not is_same_attempt or known.is_over):
            self._take(stream)
        elif is_newer:
            self._rivals.setdefault(rank.rank, []).append(stream)
        elif is_same_attempt and not known.is_over:
            self._rivals.setdefault(rank.rank, []).append(known)
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
            known = self._current.get(rank)
            if known is None or known.is_over or self.silence(known, now):
                del self._rivals[rank]
                newer = [one for one in rivals if not known or order_of(one) > order_of(known)]
                if newer:
                    self._take(max(newer, key=order_of))
            elif any(not one.is_over and now - one.heard < LOST for one in rivals):
                self.doubled.add(rank)
        self.sort()

    def sort(self) -> None:
        """Bring `expected` up to date."""
        if self._is_sorted:
            return
        self._is_sorted = True
        if self._newest is not None:
            rank = self._newest.rank
            self.world, self.attempt = rank.world, rank.attempt
        is_large = self.world > SAMPLED_ALONE
        self.pace = max(1.0, self.world / LINES_A_SECOND) if is_large else 1.0
        known = sorted(self._current.items())
        self.expected = tuple(stream for rank, stream in known if rank < self.world)
        places = [self.places[stream.rank.rank] for stream in self.expected]
        self.expected_places = np.array(places, dtype=np.int64)
        self.ranks = np.fromiter(self.places, np.int64, len(self.places))

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
        """Return the streams of which more is to come."""
        return [
            one
            for one in self.expected
            if not one.is_over and one.rank.attempt == self.attempt and not self.silence(one, now)
        ]

    def as_of(self, now: float, live: Iterable[RankStream]) -> float:
        """Return up to when all was read that some ranks have written."""
        return min([now, *(one.looked_at for one in live)])

    def offset(self, stream: RankStream) -> float:
        """Return by how many seconds a rank's clock is ahead."""
        return self.offsets.get(stream.rank.host, 0.0)

    def reached(self, stream: RankStream) -> float:
        """Return the time of a rank's newest reading, on the common clock."""
        return stream.reached - self.offset(stream)

    def hear(self, streams: Sequence[RankStream], now: float) -> None:
        """Note that there was something of these streams since the last time."""
        for stream in streams:
            at = now if math.isnan(stream.fed_at) else min(now, stream.fed_at)
            stream.heard = max(stream.heard, at)
            if stream.head is not None:
                host, lag = stream.rank.host, at - stream.last_sign
                self._lags[host] = min(lag, self._lags.get(host, math.inf))
        if not self._lags:
            return
        # What is common to all hosts is that of this one's clock, or of a file that was copied.
        self.lag = float(np.median(list(self._lags.values())))
        for host, lag in self._lags.items():
            if host not in self._told_by_steps and abs(self.lag - lag) > self.pace + ROUGH:
                self.offsets[host] = self.lag - lag

    def compare_clocks(self) -> bool:
        """Compare the clocks of the hosts by the ends of their steps, and return whether they could be."""
        hosts = [stream.rank.host for stream in self.expected]
        if len(set(hosts)) < 2:
            return True
        found = offsets(self.steps.ends(self.expected_places), hosts)
        for host, by in found.items():
            self._told_by_steps.add(host)
            if abs(by - self.offsets.get(host, 0.0)) > CLOCK_NOISE:
                self.offsets[host] = by if abs(by) > CLOCK_NOISE else 0.0
        return bool(found)

    def waits(self, silent: Floats, unread: Floats) -> Floats:
        """Return for how many seconds each expected rank has lagged behind the others' steps.

        Not counted are those for which it was not looked at: it may have finished some meanwhile.
        """
        streams = self.expected
        waits = np.zeros(len(streams))
        steps = np.array([one.newest_step for one in streams], dtype=float)
        stops = np.array([one.step_stop - self.offset(one) for one in streams])
        counts = np.array(
            [not one.is_over and one.rank.attempt == self.attempt for one in streams], dtype=bool
        )
        counts &= steps > 0
        if counts.sum() >= 2:
            lags = counts & (steps < np.median(steps[counts])) & (silent == 0)
            waits[lags] = np.maximum(0.0, stops[counts].max() - stops[lags] - unread[lags])
        return waits

    def _take(self, stream: RankStream) -> None:
        """Have a stream stand for its rank."""
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
