"""The features: a folder for each, complete from reading to showing. No feature imports another.

`FEATURES` lists all of them, with the checks at the end of a watch and the companions that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from hfmem_widget.display import resolve

if TYPE_CHECKING:
    from hfmem_widget.monitor.companion import Companion
    from hfmem_widget.options import WatchOptions
    from hfmem_widget.session import Finding, Session, Span
    from hfmem_widget.view.screen import Screen

Subject = tuple[str, int | None, object]


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature; `check` and `companion` are ``"module:name"``, imported when needed."""

    name: str  # of its folder
    check: str = ""  # takes a session and an outermost span that has ended, yields findings
    companion: str = ""  # a `Companion`, made with the watch's options
    is_wanted: Callable[[WatchOptions], bool] = lambda _options: True  # whether a watch has it


_HERE = "hfmem_widget.features"

FEATURES = (
    Feature("oom", companion=f"{_HERE}.oom.companion:OutOfMemory"),
    Feature(
        "stacks",
        companion=f"{_HERE}.stacks.companion:StacksCompanion",
        is_wanted=lambda options: options.stacks,
    ),
    Feature(
        "memory_map",
        check=f"{_HERE}.memory_map.holes:holes",
        companion=f"{_HERE}.memory_map.companion:LiveMemoryMap",
        is_wanted=lambda options: options.memory_map and not options.quiet,
    ),
    Feature(
        "budget",
        check=f"{_HERE}.budget.near_limit:near_limit",
        companion=f"{_HERE}.budget.companion:Budget",
        is_wanted=lambda options: options.budget is not None,
    ),
    Feature("shortage", companion=f"{_HERE}.shortage.companion:Shortage"),
    Feature(
        "leaks", check=f"{_HERE}.leaks.findings:growth", companion=f"{_HERE}.leaks.companion:Leaks"
    ),
    Feature("holders"),
    Feature("free"),
    Feature("compare"),
    Feature("fit", companion=f"{_HERE}.fit.companion:Fits"),
    Feature(
        "ranks",
        companion=f"{_HERE}.ranks.companion:FollowedRanks",
        is_wanted=lambda options: options.ranks is not False,
    ),
    Feature(
        "alerts",
        companion=f"{_HERE}.alerts.companion:Alerts",
        is_wanted=lambda options: options.on_finding is not None,
    ),
    Feature("history", companion=f"{_HERE}.history.companion:Historian"),
    Feature(
        "record",
        companion=f"{_HERE}.record.companion:FileRecording",
        is_wanted=lambda options: bool(options.record),
    ),
    Feature("report"),
    Feature("doctor"),
)
"""All features. Companions begin, end, report and conclude in this order:

- ``oom`` comes first: it receives an out-of-memory error before the others do anything.
- ``ranks`` comes after what explains this process, and before what reports findings.
- ``alerts``, ``history`` and ``record`` come last: they report and store what the others have concluded.

All checks are made before any companion reports: ``oom`` asks whether a leak was found.
"""


def companions_for(options: WatchOptions, screen: Screen | None = None) -> tuple[Companion, ...]:
    """Return the companions of a watch; `screen` is where it shows itself, if anywhere."""
    wanted = [feature for feature in FEATURES if feature.companion and feature.is_wanted(options)]
    companions: tuple[Companion, ...] = tuple(resolve(each.companion)(options) for each in wanted)
    for companion in companions:
        companion.screen = screen
    return companions


def judge(session: Session, span: Span | None = None) -> Session:
    """Add the findings of an outermost span, by default of all, and return the session."""
    from hfmem_widget.session import outermost

    spans = outermost(session.spans) if span is None else [span]
    checks = [resolve(feature.check) for feature in FEATURES if feature.check]
    for judged, check in product(spans, checks):
        for finding in check(session, judged):
            if subject_of(finding) not in map(subject_of, session.findings):
                session.findings.append(finding)
    return session


def subject_of(finding: Finding) -> Subject:
    """Return the key that duplicate findings share: kind, span and device."""
    return finding.kind, finding.span_id, finding.evidence.get("device")
