"""The leaks' companion of a watch: trends while it runs, and who holds what grew, once, at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hfmem_widget.features.leaks.findings import draw
from hfmem_widget.features.leaks.trends import Trend, trends_of
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Recorder, Sample, Session, Span
from hfmem_widget.text import format_bytes, format_duration, plain
from hfmem_widget.view.screen import Screen

if TYPE_CHECKING:
    from hfmem_widget.sources.heap.model import Holders

MOST_SECONDS = 1.0
MOST_OBJECTS = 500_000

LEAST_ALIKE = 4  # tensors under one name: fewer cannot have been added to it again and again
LEAST_SHARE = 0.25  # the share of the growth that a name must hold to be mentioned
MOST_TIMES = 2.0  # the growth: what holds more was mostly there before
BETWEEN = 1.0  # seconds between two looks at the data of a running session
SHARE = 0.02  # the share of the time that such looks may take


class Leaks(Companion):
    """Draws growth while the code runs; at the end names who holds what has grown.

    `clock` returns monotonic seconds, and `look` the trends of an outermost span.
    """

    def __init__(
        self,
        options: WatchOptions | None = None,
        screen: Screen | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Session, Span], Iterable[Trend]] = trends_of,
    ) -> None:
        self._clock = clock
        self._look = look
        self._span: Span | None = None
        self._due = -math.inf
        self._seen = -math.inf

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin to look for trends in new data."""
        self._span = span
        recorder.subscribe(self._on_tick)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Stop looking: a span that has ended is judged."""
        recorder.unsubscribe(self._on_tick)

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Search for who holds what has grown, if anything has, and add it to the finding."""
        leaks = [
            leak for leak in session.findings if leak.kind == "leak" and leak.span_id == span.id
        ]
        if leaks:
            from hfmem_widget.sources.heap.roots import kernel_roots
            from hfmem_widget.sources.heap.scan import scan

            holders = scan(
                main_variables(),
                others=kernel_roots(),
                most_objects=MOST_OBJECTS,
                most_seconds=MOST_SECONDS,
            )
            for leak in leaks:
                session.findings[session.findings.index(leak)] = with_holder(leak, holders)
        return NOTHING

    def _on_tick(self, session: Session, samples: Sequence[Sample]) -> None:
        began, span = self._clock(), self._span
        if span is None or began < self._due or session.steps.ended_at == self._seen:
            return
        self._seen = session.steps.ended_at
        draw(session, span, self._look(session, span))
        ended = self._clock()
        self._due = ended + max(BETWEEN, (ended - began) / SHARE)


def with_holder(finding: Finding, holders: Holders) -> Finding:
    """Return the finding of a leak with the name that holds most of what was added again and again."""
    from hfmem_widget.sources.heap.remedy import remedy

    grown = finding.evidence.get("grown")
    least = LEAST_SHARE * grown if isinstance(grown, int) else 0.0
    device = str(finding.evidence.get("device"))
    candidates = (
        row
        for row in holders.rows
        if row.device == device and row.kind == "tensors" and row.tensors >= LEAST_ALIKE
    )
    most = MOST_TIMES * grown if isinstance(grown, int) else math.inf
    row = max(candidates, key=lambda row: (least <= row.bytes <= most, row.bytes), default=None)
    cost = f"The search for what holds it took {format_duration(holders.seconds)}"
    cost += f"; {holders.bound}." if holders.bound else "."
    if row is None or row.bytes < least:
        return replace(finding, advice=(*finding.advice, cost))
    path, size = plain(row.path, 60), format_bytes(row.bytes)
    holds = f"{path} holds {size}"
    if row.graph_bytes:
        graphs = "graph" if row.graphs == 1 else "graphs"
        holds = f"{path} and the autograd {graphs} behind it hold {size}"
    grows = "keeps growing" if row.bytes <= most else "may be what grows"
    advice = remedy(replace(row, path=path)) or (
        f"{path} {grows}: store less in it, or clear it when it is no longer needed."
    )
    return replace(
        finding,
        title=f"{finding.title.removesuffix('.')}; {holds}.",
        evidence={
            **finding.evidence,
            "holder": path,
            "held": row.bytes,
            "graph_bytes": row.graph_bytes,
            "seconds": holders.seconds,
        },
        advice=(advice, f"{cost} %memholders lists them all."),
    )
