"""What is measured of a training's steps, so that measuring takes less than 1 % of their time.

Each step has its exact peak, whatever it costs. Where the rest costs too much, first the phases (forward,
backward, optimizer) are measured on every second, fourth … step only; then what memory is for is looked at on
as few of the steps between them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Literal

from hfmem_widget.guard import seconds_of_an_event
from hfmem_widget.session import Polling
from hfmem_widget.session.model import MOST_SHARE

RELAXED_SHARE = 0.6 * MOST_SHARE
"""What measuring more may be expected to take before it is done: costs vary by a third."""

RARITIES = (1, 2, 4, 8, 16, 32, 64)

LEAST_STEPS, PERIOD = 8, 1.0
"""Steps before the first decision and between two, or seconds between two where steps are long."""

RECENT = 9
"""Steps of which the median counts: four long ones, as with a checkpoint or an evaluation, change nothing."""

PRIOR = 1 / 4
"""Of a step's cost: what one that is measured less is taken to cost until one was seen. It is low, so that no
more is left out than must be."""

FADING = 0.9

UNSEEN_GUARDS = 6
"""What no clock of ours sees of a step (ways in, hooks on model and optimizer), in times of an event's guard:
so much was missing where neighbouring steps were compared (bench/trainer.py)."""

How = Literal["whole", "looked", "bare"]
"""How a step is measured: with its phases, with looks at what memory is for, or with neither."""


@dataclass(frozen=True, slots=True)
class Ration:
    """On every how many steps phases are measured, and on every how many of the others there are looks."""

    phases: int = 1
    looks: int = 1


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds from one step to the next, and what measuring a step takes each way; NaN if not seen."""

    length: float
    whole: float
    looked: float = math.nan
    bare: float = math.nan

    def share(self, ration: Ration) -> float:
        """Return the share of the time that measuring takes; NaN if that is not known."""
        looked = self.whole * PRIOR if math.isnan(self.looked) else self.looked
        bare = looked * PRIOR if math.isnan(self.bare) else min(self.bare, looked)
        other = bare + (looked - bare) / ration.looks
        cost = min(other, self.whole) + max(0.0, self.whole - other) / ration.phases
        return cost / self.length if self.length > 0 else math.nan


RATIONS = (
    *(Ration(phases) for phases in RARITIES),
    *(Ration(RARITIES[-1], looks) for looks in RARITIES[1:]),
)
"""From the most that is measured to the least."""


def decide(now: Ration, costs: Costs) -> Ration:
    """Return the most that may be measured at these costs; more than now only if it is clearly affordable."""
    if math.isnan(costs.share(now)):
        return now
    for ration in RATIONS[: RATIONS.index(now)]:
        if costs.share(ration) <= RELAXED_SHARE:
            return ration
    fitting = (one for one in RATIONS[RATIONS.index(now) :] if costs.share(one) <= MOST_SHARE)
    return next(fitting, RATIONS[-1])


@dataclass(slots=True)
class Deferred:
    """What the poller's thread takes, and takes the interpreter for, in CPU seconds.

    Attributes
    ----------
    interval : float
        Seconds between ticks.
    per_edge : float
        What an edge takes to be entered; 0 where none was yet.
    """

    interval: float = math.inf
    per_edge: float = 0.0
    _edges: float = 0.0
    _seconds: float = 0.0
    _tick: float = 0.0

    @property
    def ticks(self) -> float:
        """Of the time: what ticks take beside entering edges."""
        return self._tick / self.interval

    def entered(self, edges: int, seconds: float) -> None:
        """Record how many edges were entered, and the CPU seconds that took."""
        if edges:
            self._edges = FADING * self._edges + edges
            self._seconds = FADING * self._seconds + seconds
            self.per_edge = self._seconds / self._edges

    def ticked(self, seconds: float, interval: float) -> None:
        """Record what a tick took beside that, and the seconds until the next."""
        self.interval = interval
        self._tick = FADING * self._tick + (1 - FADING) * seconds if self._tick else seconds


class Governor:
    """Says of each step of a training how it is measured, and keeps `polling` up to date.

    `deferred` is the poller's. Where phases are wanted on `all` steps, they are measured on all.

    Attributes
    ----------
    spent : float
        Seconds that measuring has taken on the thread that trains since the newest step began.
    edges : int
        How many edges it has left to the poller since.
    """

    def __init__(self, polling: Polling, deferred: Deferred, *, wants_all: bool = False) -> None:
        self.how: How = "whole"
        self.wants_all = wants_all
        self.polling = polling
        self._deferred = deferred
        self._ration = Ration()
        self._lengths: deque[float] = deque(maxlen=RECENT)
        self._costs: dict[How, deque[float]] = {
            how: deque(maxlen=RECENT) for how in ("whole", "looked", "bare")
        }
        self._began = math.nan
        self.spent, self.edges = 0.0, 0
        self._unseen = UNSEEN_GUARDS * seconds_of_an_event()
        self._undecided, self._decided_at = 0, math.inf
        self._whole = self._looked = -1

    def begins(self, number: int, now: float) -> None:
        """Begin a step at some second of a monotonic clock; what is told until the next one is its cost."""
        if self.wants_all:
            return
        if math.isfinite(self._began):
            self._lengths.append(now - self._began)
            self._costs[self.how].append(self.spent + self.edges * self._deferred.per_edge)
            self._undecided += 1
        self._began, self.spent, self.edges = now, self._unseen, 0
        self._decided_at = min(self._decided_at, now)
        is_due = self._undecided >= LEAST_STEPS or now >= self._decided_at + PERIOD
        if is_due and len(self._lengths) >= LEAST_STEPS:
            self._undecided, self._decided_at = 0, now
            self._unseen = UNSEEN_GUARDS * seconds_of_an_event()
            costs = self.costs
            self._ration = decide(self._ration, costs)
            self.polling.phases_every, self.polling.looks_every = astuple(self._ration)
            # Less measuring makes ticks no cheaper, so they decide nothing.
            self.polling.share = costs.share(self._ration) + self._deferred.ticks
        # By the number, so that all ranks measure the same steps; steps may be missing between two.
        whole, looked = number // self._ration.phases, number // self._ration.looks
        if whole != self._whole:
            self._whole, self._looked, self.how = whole, looked, "whole"
        elif looked != self._looked:
            self._looked, self.how = looked, "looked"
        else:
            self.how = "bare"

    def ended(self, counts: Mapping[str, float], *, is_group: bool = False) -> None:
        """Count a step that has ended, by its number, or a group of them, which has no phases."""
        last = counts["step"]
        steps = int(last - counts.get("first", last)) + 1
        self.polling.steps += steps
        if self.how == "whole" and not is_group:
            self.polling.steps_with_phases += steps

    def stops(self) -> None:
        """End: what comes next is another training's."""
        self.polling.phases_every = self.polling.looks_every = 1

    @property
    def costs(self) -> Costs:
        """The medians of recent steps."""
        return Costs(
            _median(self._lengths), **{how: _median(of) for how, of in self._costs.items()}
        )


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else math.nan
