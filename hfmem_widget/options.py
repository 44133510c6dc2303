"""The one list of what can be configured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hfmem_widget.errors import OptionError
from hfmem_widget.labels import plain

SHORTEST_INTERVAL = 0.01
LONGEST_INTERVAL = 3600.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watch is made.

    Attributes
    ----------
    label : str
        What to call it; shown as plain text.
    interval : float
        Seconds between samples, from 0.01 to 3600.
    devices : tuple of str
        Only these, such as ``("cuda:0", "cpu")``; empty means all.
    chart : bool
        Show a live chart while the cell runs, and a still one afterwards.
    panel : bool
        Let JupyterLab's memory panel open by itself with the first watch of a notebook. Without both
        panel and chart nothing is sent to the page while the cell runs.
    quiet : bool
        Show nothing at all; for use with a name that keeps the session.
    ledger : bool
        Keep exact peaks through the allocator's counters. Without, peaks are lower bounds.
    resident_peak : bool
        Take the exact peak of the resident set by resetting the kernel's mark, which also resets what
        ``resource.getrusage`` calls ``ru_maxrss``.
    budget : float or None
        Bytes; a warning is given once where more than that is allocated on a device.
    stop : bool
        End a Trainer's training at the end of the step in which the budget was crossed.
    stacks : bool
        Record where memory is allocated, and tell what was live at the peak.
    memory_map : bool
        Show how memory lies in what the allocator has reserved.

    Raises
    ------
    OptionError
        If a value is not one of those allowed; the message says which are.
    """

    label: str = ""
    interval: float = 0.1
    devices: tuple[str, ...] = ()
    chart: bool = True
    panel: bool = True
    quiet: bool = False
    ledger: bool = True
    resident_peak: bool = False
    budget: float | None = None
    stop: bool = False
    stacks: bool = False
    memory_map: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", plain(self.label))
        interval = self.interval
        # A bool is an int, and an interval of "True" is a slip.
        if isinstance(interval, bool) or not isinstance(interval, (int, float)):
            raise OptionError(_interval_message(interval))
        if not (math.isfinite(interval) and SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL):
            raise OptionError(_interval_message(interval))
        self._check_budget()

    def check_devices(self, known: tuple[str, ...]) -> None:
        """Raise `OptionError` if a device was asked for that is not among those `known`."""
        for device in self.devices:
            if device not in known:
                message = f"there is no device {plain(device)!r} here; there is {', '.join(known)}"
                raise OptionError(message)

    def _check_budget(self) -> None:
        budget: object = self.budget
        if budget is None:
            if self.stop:
                message = "stop needs a budget at which to stop"
                raise OptionError(message)
            return
        message = f"budget is a number of bytes above zero, not {plain(budget)}"
        if isinstance(budget, bool) or not isinstance(budget, (int, float)):
            raise OptionError(message)
        if not (math.isfinite(budget) and budget > 0):
            raise OptionError(message)


def _interval_message(interval: object) -> str:
    return (
        f"interval is seconds between samples, from {SHORTEST_INTERVAL:g} to "
        f"{LONGEST_INTERVAL:g}, not {plain(interval)}"
    )
