"""What was found in a span, as it is told: the gravest first."""

from __future__ import annotations

from hfmem_widget.session import Finding, Session, Span

GRAVITY = {"critical": 0, "warn": 1, "info": 2}


def findings_of(session: Session, span: Span) -> tuple[Finding, ...]:
    """Return what was found in a span while it ran and once it had ended, the gravest first."""
    told = (one for one in session.findings if one.span_id in {None, span.id})
    return tuple(sorted(told, key=lambda one: GRAVITY[one.severity]))
