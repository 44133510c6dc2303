"""The newest steps of all ranks, in arrays: a row for each rank, a column for each step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import STEPS, Floats
from hfmem_widget.ranks.news import CERTAINTY, IN_PHASES, PEAK, STEP_FIGURES, STOP, Finished
from hfmem_widget.session.steps import PHASES

KEPT = 128
"""Steps of each rank: ranks whose lines come a second apart have some in common at 100 steps a second."""

_NO_STEP = (-1, -math.inf)


class RecentSteps:
    """The newest steps of all ranks, by their numbers.

    Attributes
    ----------
    number : array of int, shape (ranks, KEPT)
        Which step stands in each place; -1 for none.
    figures : array, shape (ranks, KEPT, len(STEP_FIGURES))
        As those of `Finished`.
    highest_phases : array, shape (ranks, phases)
        The highest peaks of the phases over all steps that there were.
    """

    def __init__(self) -> None:
        self.number: NDArray[np.int64] = np.full((0, KEPT), -1, dtype=np.int64)
        self.figures: Floats = np.empty((0, KEPT, len(STEP_FIGURES)))
        self.highest_phases: Floats = np.empty((0, len(PHASES)))
        self._newest: list[tuple[int, float]] = []

    @property
    def stop(self) -> Floats:
        """When each step ended, by the rank's own clock."""
        return self.figures[..., STOP]

    @property
    def peak(self) -> Floats:
        """Their exact peaks, in bytes."""
        return self.figures[..., PEAK]

    def widen(self, ranks: int) -> None:
        """Make room for so many ranks."""
        more = ranks - len(self.number)
        if more > 0:
            more = max(more, len(self.number))
            self.number = np.concatenate([self.number, np.full((more, KEPT), -1)])
            self.figures = _longer(self.figures, more)
            self.highest_phases = _longer(self.highest_phases, more)
            self._newest += [_NO_STEP] * more

    def clear(self, place: int) -> None:
        """Forget the steps of a rank, which begins anew."""
        self.number[place] = -1
        self.figures[place] = self.highest_phases[place] = np.nan
        self._newest[place] = _NO_STEP

    def add(self, place: int, steps: Finished) -> None:
        """Take in steps of a rank; a training whose numbers begin again takes the place of the one before."""
        rows = slice(-KEPT, None)
        numbers, figures = steps.last[rows], steps.figures[rows]
        newest, stop = self._newest[place]
        if numbers[-1] < newest and figures[-1, STOP] > stop:
            self.number[place], self.figures[place] = -1, np.nan
        self._newest[place] = int(numbers[-1]), float(figures[-1, STOP])
        at = numbers % KEPT
        self.number[place, at] = numbers
        self.figures[place, at] = figures
        highest = np.fmax.reduce(steps.figures[:, IN_PHASES])
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
        certainty = int(self.figures[places][here][at, CERTAINTY])
        return float(peaks[at]), certainty, np.fmax.reduce(self.figures[places][here][:, IN_PHASES])

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
        peaks: Floats = np.fmax.reduce(
            np.take_along_axis(self.figures[places][..., IN_PHASES], at, axis=1), axis=1
        )
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


def _longer(figures: Floats, more: int) -> Floats:
    return np.concatenate([figures, np.full((more, *figures.shape[1:]), np.nan)])
