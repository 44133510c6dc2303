"""What goes along with a watch for leaks: trends while it runs, and who holds what grew, once, at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hfmem_widget.features.leaks.findings import draw
from hfmem_widget.features.leaks.trends import Trend, trends_of
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Recorder, Sample, Session, Span
from hfmem_widget.sources.heap import Holder, Holders, kernel_roots, scan
from hfmem_widget.sources.heap.remedy import remedy
from hfmem_widget.text import format_bytes, format_duration, plain
from hfmem_widget.view.screen import Screen

MOST_SECONDS = 1.0
MOST_OBJECTS = 500_000

LEAST_ALIKE = 4
"""Tensors under one name, from which on it may be one that something was put into again and again."""

LEAST_SHARE = 0.25
"""Of what has grown: what a name must hold to be told."""

_PATH = 60


BETWEEN = 1.0
"""Seconds between two looks at the data of a run that goes on."""

SHARE = 0.02
"""Of the time, at most, that such looks may take."""


class Leaks(Companion):
    """Draws growth while the code runs; at the end says who holds what has grown.

    Parameters
    ----------
    options : WatchOptions, optional
    screen : Screen, optional
    clock : callable, optional
        Monotonic seconds.
    look : callable, optional
        Returns the trends of an outermost span.
    """

    def __init__(
        self,
        options: WatchOptions | None = None,
        screen: Screen | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Session, Span], Iterable[Trend]] = trends_of,
    ) -> None:
        del options, screen
        self._clock = clock
        self._look = look
        self._span: Span | None = None
        self._due = -math.inf
        self._seen = -math.inf

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Look at the data now and then, where there is news in them."""
        del monitor
        self._span = span
        recorder.subscribe(self._on_tick)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Look no longer: a span that has ended is judged."""
        del span, error
        recorder.unsubscribe(self._on_tick)

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Look for who holds what has grown, if anything has, and say so in the finding."""
        found = [one for one in session.findings if one.kind == "leak" and one.span_id == span.id]
        if found:
            held = scan(
                main_variables(),
                others=kernel_roots(),
                most_objects=MOST_OBJECTS,
                most_seconds=MOST_SECONDS,
            )
            for one in found:
                session.findings[session.findings.index(one)] = with_holder(one, held)
        return NOTHING

    def _on_tick(self, session: Session, samples: Sequence[Sample]) -> None:
        del samples
        began, span = self._clock(), self._span
        if span is None or began < self._due or session.steps.ended_at == self._seen:
            return
        self._seen = session.steps.ended_at
        draw(session, span, self._look(session, span))
        ended = self._clock()
        self._due = ended + max(BETWEEN, (ended - began) / SHARE)


def with_holder(finding: Finding, held: Holders) -> Finding:
    """Return a finding of a leak with the name that holds most of what came again and again."""
    grown = finding.evidence.get("grown")
    least = LEAST_SHARE * grown if isinstance(grown, int) else 0.0
    device = str(finding.evidence.get("device"))
    alike = (
        one
        for one in held.rows
        if one.device == device and one.kind == "tensors" and one.tensors >= LEAST_ALIKE
    )
    row = max(alike, key=lambda one: one.bytes, default=None)
    cost = f"The search for what holds it took {format_duration(held.seconds)}"
    cost += f"; {held.bound}." if held.bound else "."
    if row is None or row.bytes < least:
        return replace(finding, advice=(*finding.advice, cost))
    path = plain(row.path, _PATH)
    return replace(
        finding,
        title=f"{finding.title.removesuffix('.')}; {_holds(row, path)}.",
        evidence={
            **finding.evidence,
            "holder": path,
            "held": row.bytes,
            "graph_bytes": row.graph_bytes,
            "seconds": held.seconds,
        },
        advice=(_advice(row, path), f"{cost} %memholders lists them all."),
    )


def _holds(row: Holder, path: str) -> str:
    size = format_bytes(row.bytes)
    if not row.graph_bytes:
        return f"{path} holds {size}"
    graphs = "graph" if row.graphs == 1 else "graphs"
    return f"{path} and the autograd {graphs} behind it hold {size}"


def _advice(row: Holder, path: str) -> str:
    longer = f"{path} keeps growing: store less in it, or clear it when it is no longer needed."
    return remedy(replace(row, path=path)) or longer
