"""What hfmem_widget does besides watching: a folder for each feature, whole from reading to showing.

`FEATURES` is the one list of them. What a watch judges and what goes along with it
follow from it. No feature imports another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfmem_widget.display import resolve

if TYPE_CHECKING:
    from hfmem_widget.monitor.companion import Companion
    from hfmem_widget.options import WatchOptions
    from hfmem_widget.view.screen import Screen


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature: its folder, and what it adds to a watch, as ``"module:name"``, imported when needed."""

    name: str
    # Takes a session and an outermost span that has ended, yields findings and guides.
    check: str = ""
    companion: str = ""  # a `Companion`, made with the watch's options
    goes_along: Callable[[WatchOptions], bool] = lambda _options: True  # whether the companion does


_HERE = "hfmem_widget.features"

FEATURES = (
    Feature("oom", companion=f"{_HERE}.oom.companion:OutOfMemory"),
    Feature(
        "stacks",
        companion=f"{_HERE}.stacks.companion:StacksCompanion",
        goes_along=lambda options: options.stacks,
    ),
    Feature(
        "memory_map",
        check=f"{_HERE}.memory_map.holes:holes",
        companion=f"{_HERE}.memory_map.companion:LiveMemoryMap",
        goes_along=lambda options: options.memory_map and not options.quiet,
    ),
    Feature(
        "budget",
        check=f"{_HERE}.budget.near_limit:near_limit",
        companion=f"{_HERE}.budget.companion:Budget",
        goes_along=lambda options: options.budget is not None,
    ),
    Feature("shortage", companion=f"{_HERE}.shortage.companion:Shortage"),
    Feature(
        "leaks",
        check=f"{_HERE}.leaks.findings:growth",
        companion=f"{_HERE}.leaks.companion:Leaks",
    ),
    Feature("holders"),
    Feature("free"),
    Feature("compare"),
    Feature("fit", companion=f"{_HERE}.fit.companion:Fits"),
    Feature(
        "ranks",
        companion=f"{_HERE}.ranks.companion:FollowedRanks",
        goes_along=lambda options: options.ranks is not False,
    ),
    Feature(
        "alerts",
        companion=f"{_HERE}.alerts.companion:Alerts",
        goes_along=lambda options: options.on_finding is not None,
    ),
    Feature("history", companion=f"{_HERE}.history.companion:Historian"),
    Feature(
        "record",
        companion=f"{_HERE}.record.companion:FileRecording",
        goes_along=lambda options: bool(options.record),
    ),
    Feature("report"),
    Feature("doctor"),
)
"""All features. Companions begin, end, report and conclude in this order:

- ``oom`` comes first: it hears of an out-of-memory error before the others do anything.
- ``ranks`` comes after what explains this process, and before what reports findings.
- ``alerts``, ``history`` and ``record`` come last: they report and store what the others have concluded.

All checks are made before any companion reports: ``oom`` asks whether a leak was found.
"""


def companions_for(options: WatchOptions, screen: Screen | None = None) -> tuple[Companion, ...]:
    """Return the companions of a watch; `screen` is where it shows itself, if anywhere."""
    wanted = (one for one in FEATURES if one.companion and one.goes_along(options))
    companions: tuple[Companion, ...] = tuple(resolve(one.companion)(options) for one in wanted)
    for companion in companions:
        companion.screen = screen
    return companions
