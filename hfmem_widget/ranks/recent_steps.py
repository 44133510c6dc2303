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

MOST_ADDED = 1024
"""Steps of all ranks that wait to be put into the arrays."""

_NO_STEP = (-1, -math.inf)


class RecentSteps:
    """The newest steps of all ranks, by their numbers.

    What is added is put into the arrays all at once, in `take_in` or when one of them is looked at.
    """

    def __init__(self) -> None:
        self._number: NDArray[np.int64] = np.full((0, KEPT), -1, dtype=np.int64)
        self._figures: Floats = np.empty((0, KEPT, len(STEP_FIGURES)))
        self._highest_phases: Floats = np.empty((0, len(PHASES)))
        self._newest: list[tuple[int, float]] = []
        self._added: tuple[list[int], list[int], list[list[float]]] = [], [], []

    @property
    def number(self) -> NDArray[np.int64]:
        """Which step stands in each place; -1 for none."""
        self.take_in()
        return self._number

    @property
    def figures(self) -> Floats:
        """Their figures, as those of `Finished`, shape ``(ranks, KEPT, len(STEP_FIGURES))``."""
        self.take_in()
        return self._figures

    @property
    def highest_phases(self) -> Floats:
        """The highest peaks of the phases over all steps that there were, shape ``(ranks, phases)``."""
        self.take_in()
        return self._highest_phases

    def widen(self, ranks: int) -> None:
        """Make room for so many ranks."""
        more = ranks - len(self._number)
        if more > 0:
            more = max(more, len(self._number))
            self._number = np.concatenate([self._number, np.full((more, KEPT), -1)])
            self._figures = _longer(self._figures, more)
            self._highest_phases = _longer(self._highest_phases, more)
            self._newest += [_NO_STEP] * more

    def clear(self, place: int) -> None:
        """Forget the steps of a rank, which begins anew."""
        self._forget(place)
        self._highest_phases[place] = np.nan
        self._newest[place] = _NO_STEP

    def add(self, place: int, steps: Finished) -> None:
        """Take in steps of a rank; a training whose numbers begin again takes the place of the one before."""
        number, ended = steps.last[-1], steps.figures[-1][STOP]
        newest, stop = self._newest[place]
        if number < newest and ended > stop:
            self._forget(place)
        self._newest[place] = number, ended
        places, numbers, rows = self._added
        places += [place] * len(steps.last)
        numbers += steps.last
        rows += steps.figures
        if len(rows) > MOST_ADDED:
            self.take_in()

    def _forget(self, place: int) -> None:
        self.take_in()
        self._number[place], self._figures[place] = -1, np.nan

    def take_in(self) -> None:
        """Put what was added into the arrays; of two steps in one place the later stays."""
        if not self._added[0]:
            return
        places, steps, figures = map(np.array, self._added)
        self._added = [], [], []
        self._number[places, steps % KEPT] = steps
        self._figures[places, steps % KEPT] = figures
        np.fmax.at(self._highest_phases, places, figures[:, IN_PHASES])

    def highest(
        self, first: int, last: int, places: NDArray[np.int64]
    ) -> tuple[float, int, Floats]:
        """Return the highest peak of some steps over some ranks, its certainty, and the phases' highest."""
        columns = np.arange(max(first, last + 1 - KEPT), last + 1) % KEPT
        at = np.ix_(places, columns)
        number = self.number[at]
        here = (number >= first) & (number <= last)
        figures = self.figures[at][here]
        peaks = figures[:, PEAK]
        if np.isnan(peaks).all():
            return np.nan, -1, np.full(len(PHASES), np.nan)
        highest = int(np.nanargmax(peaks))
        certainty = int(figures[highest, CERTAINTY])
        return float(peaks[highest]), certainty, np.fmax.reduce(figures[:, IN_PHASES])

    def newest(self, places: NDArray[np.int64]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return what the newest steps of some ranks have.

        Their peaks, shape ``(ranks, STEPS)``, the highest of each phase, shape ``(ranks, phases)``, and which
        ranks have steps without phases among them, shape ``(ranks,)``.
        """
        columns = np.argpartition(self.number[places], KEPT - STEPS, axis=1)[:, KEPT - STEPS :]
        at = places[:, None], columns
        figures, are_there = self.figures[at], self.number[at] >= 0
        phases = figures[..., IN_PHASES]
        lacking = np.any(are_there & np.isnan(phases).all(axis=2), axis=1)
        return figures[..., PEAK], np.fmax.reduce(phases, axis=1), lacking

    def ends(self, places: NDArray[np.int64]) -> Floats:
        """Return when steps ended that ranks have in common, shape ``(ranks, KEPT)``; NaN elsewhere."""
        number = self.number[places]
        newest = number.max(axis=0, initial=-1)
        # Of two steps that share a place, that of most ranks: the slow ones have not come to the newer one.
        older = newest - KEPT
        has_newest, has_older = (number == newest).sum(axis=0), (number == older).sum(axis=0)
        wanted = np.where(has_newest >= has_older, newest, older)
        return np.where((number == wanted) & (wanted >= 0), self.figures[places, :, STOP], np.nan)


def _longer(figures: Floats, more: int) -> Floats:
    return np.concatenate([figures, np.full((more, *figures.shape[1:]), np.nan)])
