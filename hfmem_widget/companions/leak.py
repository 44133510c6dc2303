"""Who holds what grew: a search for names, once, when a watch has ended and its data tell of a leak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hfmem_widget.analysis.leaking.leaks import leaks
from hfmem_widget.holding import Holder, Holders, kernel_roots, scan
from hfmem_widget.holding.remedy import remedy
from hfmem_widget.labels import plain
from hfmem_widget.monitor import Monitor
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.session import Finding, Session, Span
from hfmem_widget.units import format_bytes, format_duration

MOST_SECONDS = 1.0
MOST_OBJECTS = 500_000

LEAST_ALIKE = 4
"""Tensors under one name, from which on it may be one that something was put into again and again."""

LEAST_SHARE = 0.25
"""Of what has grown: what a name must hold to be told."""

_PATH = 60


class LeakHolder:
    """Adds to the finding of a leak who holds the memory; does nothing where there is none."""

    def begin(self, monitor: Monitor, session: Session, span: Span) -> None:
        """Nothing is to be done before."""

    def end(self, session: Session, span: Span, error: BaseException | None) -> None:
        """Nothing is to be done before the span has been closed."""

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Look for who holds what has grown, if anything has, and enter it among the findings."""
        found = leaks(session, span)
        if found:
            held = scan(
                main_variables(),
                others=kernel_roots(),
                most_objects=MOST_OBJECTS,
                most_seconds=MOST_SECONDS,
            )
            session.findings += [with_holder(one, held) for one in found]
        return {}


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
    cost = f"Names were looked for once, at the end, in {format_duration(held.seconds)}"
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
    longer = f"{path} still gets longer: keep less in it, or clear it where it is no longer needed."
    return remedy(replace(row, path=path)) or longer
