"""Simulated runs, fed to a collector as a reader of their files would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.session import Finding
from tests.fakes.ranks import Script, SimulatedRun

Pieces = list[tuple[str, bytes]]


def play(
    run: SimulatedRun,
    seconds: float,
    collector: Collector | None = None,
    arranged: Callable[[Pieces], Iterable[tuple[str, bytes]]] = iter,
) -> Collector:
    """Feed what some seconds of a run bring, pace by pace, and let the collector look after each."""
    collector = collector or Collector()
    stop = run.now + seconds
    while run.now < stop - 1e-9:
        pieces = list(run.advance(min(run.script.pace, stop - run.now)))
        for stream, data in arranged(pieces):
            collector.feed(stream, data)
        collector.tick(run.began + run.now)
    return collector


def finish(run: SimulatedRun, collector: Collector) -> None:
    """End the run, and have that read."""
    for stream, data in run.finish():
        collector.feed(stream, data)
    collector.tick(run.began + run.now + 1)


def found(collector: Collector, kind: str) -> list[Finding]:
    """Return the findings of a kind."""
    return [finding for finding in collector.session.findings if finding.kind == kind]


def kinds(collector: Collector) -> Sequence[str]:
    """Return what was found."""
    return [finding.kind for finding in collector.session.findings]


def played(seconds: float, **script: Any) -> tuple[SimulatedRun, Collector]:
    """Return a run by a script, and what was told of its first seconds."""
    run = SimulatedRun(Script(**script))
    return run, play(run, seconds)
