"""All ranks at one moment: what is judged and shown of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import Floats
from hfmem_widget.ranks.stream import RankStream
from hfmem_widget.text import plain

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
    """All ranks that should be there and were seen, at one moment, in order of rank.

    Attributes
    ----------
    streams : sequence of RankStream
    silent : array, shape (ranks,)
        Seconds for which each was silent; 0 where that is as it should be.
    waits : array, shape (ranks,)
        Seconds since each finished a step while others finished later ones; 0 where it keeps up.
    unread : array, shape (ranks,)
        Seconds for which the reader did not come to look at each: nothing is known of it since.
    step_peaks : array, shape (ranks, steps)
        Exact peaks of the newest steps, in bytes.
    phase_peaks : array, shape (ranks, phases)
        The highest of each phase over these.
    highest_phases : array, shape (ranks, phases)
        The highest of each phase over all steps.
    lack_phases : array, shape (ranks,)
        Whether the phases of some of the newest steps were not measured.
    offsets : mapping of str to float
        By how much each host's clock is ahead, in seconds.
    restarts : sequence of Restart
    was_interrupted : bool
        Whether what has started the ranks was interrupted: it ends them, and some have no time for an end.
    """

    streams: Sequence[RankStream]
    silent: Floats
    waits: Floats
    unread: Floats
    step_peaks: Floats
    phase_peaks: Floats
    highest_phases: Floats
    lack_phases: NDArray[np.bool_]
    offsets: Mapping[str, float] = field(default_factory=dict)
    restarts: Sequence[Restart] = ()
    was_interrupted: bool = False

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

    def whose(self, place: int) -> dict[str, object]:
        """Return the evidence of which rank a finding is about."""
        rank = self.streams[place].rank
        return {"rank": rank.rank, "host": rank.host}
