"""What is worth saying of a session: judgements with a figure, the gravest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hfmem_widget.analysis.holes import holes
from hfmem_widget.analysis.leaking.leaks import leaks
from hfmem_widget.session import Finding, Session, Span

Check = Callable[[Session, Span], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (leaks, holes)
"""What is looked for in the data of a span that has ended. A healthy one has no finding."""

_GRAVITY = {"critical": 0, "warn": 1, "info": 2}


def findings_of(session: Session, span: Span) -> tuple[Finding, ...]:
    """Return what was found in a span while it ran and what its data tell, the gravest first."""
    told = [one for one in session.findings if one.span_id in {None, span.id}]
    told += [one for check in CHECKS for one in check(session, span)]
    return tuple(sorted(told, key=lambda one: _GRAVITY[one.severity]))
