"""The newest steps of all ranks, in arrays: a row for each rank, a column for each step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import STEPS, Floats
from hfmem_widget.ranks.stream import Finished
from hfmem_widget.session.steps import PHASES

KEPT = 128
"""Steps of each rank: ranks whose lines come a second apart have some in common at 100 steps a second."""


_FIGURES = ("stop", "peak", "certainty", "phases", "highest_phases")


class StepRings:
    """The newest steps of all ranks, by their numbers.

    Attributes
    ----------
    number : array of int, shape (ranks, KEPT)
        Which step stands in each place; -1 for none.
    stop, peak : array, shape (ranks, KEPT)
        When it ended, by the rank's own clock, and its exact peak in bytes.
    phases : array, shape (ranks, KEPT, phases)
        The peaks of its phases.
    highest_phases : array, shape (ranks, phases)
        Their highest over all steps that there were.
    """

    def __init__(self) -> None:
        self.number: NDArray[np.int64] = np.full((0, KEPT), -1, dtype=np.int64)
        self.stop: Floats = np.empty((0, KEPT))
        self.peak: Floats = np.empty((0, KEPT))
        self.certainty: Floats = np.empty((0, KEPT))
        self.phases: Floats = np.empty((0, KEPT, len(PHASES)))
        self.highest_phases: Floats = np.empty((0, len(PHASES)))

    def widen(self, ranks: int) -> None:
        """Make room for so many ranks."""
        more = ranks - len(self.number)
        if more > 0:
            more = max(more, len(self.number))
            self.number = np.concatenate([self.number, np.full((more, KEPT), -1)])
            for name in _FIGURES:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full((more, *old.shape[1:]), np.nan)]))

    def clear(self, place: int) -> None:
        """Forget the steps of a rank, which begins anew."""
        self.number[place] = -1
        for name in _FIGURES:
            getattr(self, name)[place] = np.nan

    def add(self, place: int, steps: Finished) -> None:
        """Take in steps of a rank; a training whose numbers begin again takes the place of the one before."""
        newest = int(steps.last[-1])
        known = self.number[place]
        if newest < int(known.max()) and steps.stop[-1] > np.nanmax(self.stop[place]):
            self.clear(place)
        rows = slice(-KEPT, None)
        at = steps.last[rows] % KEPT
        self.number[place, at] = steps.last[rows]
        self.stop[place, at] = steps.stop[rows]
        self.peak[place, at] = steps.peak[rows]
        self.certainty[place, at] = steps.certainty[rows]
        self.phases[place, at] = steps.phases[rows]
        highest = np.fmax.reduce(steps.phases)
        self.highest_phases[place] = np.fmax(self.highest_phases[place], highest)

    def highest(
        self, first: int, last: int, places: NDArray[np.int64]
    ) -> tuple[float, int, Floats]:
        """Return the highest peak of some steps over some ranks, its certainty, and the phases' highest."""
        number = self.number[places]
        here = (number >= first) & (number <= last)
        none = np.full(len(PHASES), np.nan)
        if not here.any():
            return np.nan, -1, none
        peaks = self.peak[places][here]
        if np.isnan(peaks).all():
            return np.nan, -1, none
        at = int(np.nanargmax(peaks))
        certainty = int(self.certainty[places][here][at])
        return float(peaks[at]), certainty, np.fmax.reduce(self.phases[places][here])

    def newest(self, places: NDArray[np.int64], steps: int = STEPS) -> NDArray[np.intp]:
        """Return the columns of each rank's newest steps, shape ``(ranks, steps)``."""
        return np.argpartition(self.number[places], KEPT - steps, axis=1)[:, KEPT - steps :]

    def newest_peaks(self, places: NDArray[np.int64]) -> Floats:
        """Return the peaks of each rank's newest steps, shape ``(ranks, STEPS)``."""
        peaks: Floats = np.take_along_axis(self.peak[places], self.newest(places), axis=1)
        return peaks

    def newest_phases(self, places: NDArray[np.int64]) -> Floats:
        """Return the highest of each phase over each rank's newest steps, shape ``(ranks, phases)``."""
        at = self.newest(places)[..., None]
        peaks: Floats = np.fmax.reduce(np.take_along_axis(self.phases[places], at, axis=1), axis=1)
        return peaks

    def ends(self, places: NDArray[np.int64]) -> Floats:
        """Return when steps ended that ranks have in common, shape ``(ranks, KEPT)``; NaN elsewhere."""
        number = self.number[places]
        newest = number.max(axis=0, initial=-1)
        # Of two steps that share a place, that of most ranks: the slow ones have not come to the newer one.
        older = newest - KEPT
        has_newest, has_older = (number == newest).sum(axis=0), (number == older).sum(axis=0)
        wanted = np.where(has_newest >= has_older, newest, older)
        return np.where((number == wanted) & (wanted >= 0), self.stop[places], np.nan)
