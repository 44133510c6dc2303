"""Which steps are measured one by one, so that measuring takes less than 1 % of their time.

Measuring a step with its phases takes one to three milliseconds. Where that is more than a share of the time,
the steps after it share one span, a *group*: they are counted, and have one exact peak together. A group
lasts until the time that has gone by pays for what was measured; then comes one step by itself.
"""

import math
from dataclasses import dataclass

from hfmem_widget.guard import seconds_of_an_event
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Polling

SHARE, WHOLE_SHARE = 0.006, 0.008
"""Shares of the time: what measuring may take on the training thread; and that with the work within groups
and on the poller's thread. Measuring less does not reduce those two, so some of the first is always left."""

LEAST_SHARES = 0.002, 0.0035
"""The least share that is left, for the shortest and for long steps; in between it is a quarter of the
seconds from one step to the next, pauses such as for the next batch included."""

ALLOWANCE = 0.05
"""Seconds that it may take beyond that, so that a short loop has each of its steps."""

LEAST_GROUP, MOST_GROUP = 0.05, 0.75
"""Seconds that a group of steps lasts; it then goes on to the next round number."""

LONG_STEP = 0.1
"""Steps at least this many seconds apart have a span each: an exact peak took 0.6 ms on an H100."""

MOST_WITHOUT = 50
"""Long steps in a row without phases, after which the next one has them."""

UNSEEN_GUARDS = 1
"""What no clock of ours sees of a step (ways in, hooks on model and optimizer), in times of an event's guard:
31 µs (8 to 55) on an H100's machine, where a guard takes 26 to 41 (docs/measured/performance.md)."""

FADING = 0.9


class Budget:
    """Seconds that measuring may take: a `share` of the time, kept up to an allowance; `now` is monotonic."""

    __slots__ = ("_left", "_now", "share")

    def __init__(self, now: float) -> None:
        self.share, self._left, self._now = SHARE, ALLOWANCE, now

    def spend(self, seconds: float) -> None:
        """Record what measuring has taken."""
        self._left -= seconds

    def wait(self, now: float) -> float:
        """Return in how many seconds the time will have paid for what was spent; 0 where it has."""
        self._left = min(ALLOWANCE, self._left + self.share * (now - self._now))
        self._now = now
        return max(0.0, -self._left / self.share)


@dataclass(slots=True)
class PollerCost:
    """The time that the poller's thread takes, and holds the interpreter's lock for."""

    tick: float = 0.0  # CPU seconds; 0 where none was yet
    interval: float = math.inf  # seconds between ticks

    @property
    def share(self) -> float:
        """Of the time."""
        return self.tick / self.interval

    def ticked(self, seconds: float, interval: float) -> None:
        """Record the CPU seconds that a tick took, and the seconds until the next."""
        self.interval = interval
        self.tick = FADING * self.tick + (1 - FADING) * seconds if self.tick else seconds


class Grouping:
    """Decides which steps of one training are measured by themselves, and keeps `polling` up to date."""

    def __init__(self, polling: Polling, poller: PollerCost, options: WatchOptions) -> None:
        self.polling = polling
        self.is_group = False  # while steps share a span, of which nothing but the peak is measured
        self.spent = 0.0  # seconds that measuring has taken on the thread that trains
        self._budget: Budget | None = None  # what comes before the first step comes once
        self._poller = poller
        self._options = options
        self.until = -math.inf  # when the group is to end
        self._is_paid = False  # by the group that goes on, once it has lasted
        self._unseen_share = 0.0
        self._steps, self._without = 0, 0  # of the last span, and how many in a row had no phases
        self._step_seconds = 0.0  # from the beginning of a step to that of the next
        self._began, self._charged = math.nan, 0.0
        self._recent_seconds = self._recent_charged = 0.0

    def spend(self, seconds: float) -> None:
        """Record what measuring has taken on the thread that trains."""
        self.spent += seconds
        self._charge(seconds)

    def begins(self, now: float) -> None:
        """Begin a step by itself, or a group: `is_group` says which."""
        if self._budget is None:
            self._budget, self._began, self._charged = Budget(now), now, 0.0
        if self._steps:
            self._step_seconds = (now - self._began) / self._steps
        beside = self._unseen_share + self._poller.share
        least = min(max(LEAST_SHARES[0], self._step_seconds / 4), LEAST_SHARES[1])
        self._budget.share = min(SHARE, max(least, WHOLE_SHARE - beside))
        wait = self._budget.wait(now)
        self._recent_seconds = FADING * self._recent_seconds + now - self._began
        self._recent_charged = FADING * self._recent_charged + self._charged
        self._began, self._charged = now, 0.0
        if self._recent_seconds > 0:
            share = self._recent_charged / self._recent_seconds
            # Measuring less makes ticks no cheaper, so they are in no budget.
            self.polling.share = share + self._poller.share
        shares = self._options.steps != "each" and self._step_seconds < LONG_STEP
        # Costs that the earlier group could not pay for would never be paid at the same length.
        is_due = self._is_paid if shares else self._without >= MOST_WITHOUT
        self.is_group = wait > 0 and not (is_due or self._options.phases == "all")
        if self.is_group:
            self.until = now + (min(MOST_GROUP, max(LEAST_GROUP, wait)) if shares else 0.0)
        else:
            self._charge(UNSEEN_GUARDS * seconds_of_an_event())
        self._is_paid = self.is_group and shares and wait <= MOST_GROUP

    @staticmethod
    def may_end(first: int, last: int) -> bool:
        """Return whether a group from a `first` step that has lasted may end after the `last` so far.

        Ranks compare steps by number, but have clocks of their own: groups end at round numbers, by which
        they are at most twice as long.
        """
        return last % (1 << (last - first + 1).bit_length() - 1) == 0

    def ended(self, steps: int, now: float, unseen: float = 0.0) -> None:
        """Count the steps of a span that has ended; there may be none.

        What each step of a group takes is `unseen`, in seconds for all of them. Longer groups make it no
        cheaper, so it leaves less of the time for what can be chosen.
        """
        self._charged += unseen
        if unseen:
            self._unseen_share = unseen / (now - self._began)
        self.polling.steps += steps
        self._steps = steps
        self._without = self._without + steps if self.is_group else 0
        if self.is_group:
            self.polling.groups += steps > 0
            self.polling.short_steps = steps > 1
            self._is_paid &= now >= self.until
        else:
            self.polling.steps_with_phases += steps
        self.is_group = False

    def stops(self) -> None:
        """End; later steps belong to another training."""
        self.polling.short_steps = False

    def _charge(self, seconds: float) -> None:
        if self._budget is not None:
            self._budget.spend(seconds)
            self._charged += seconds
