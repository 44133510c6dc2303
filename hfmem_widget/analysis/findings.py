"""What was found in a span, the gravest first."""

from __future__ import annotations

from hfmem_widget.session import Finding, Session, Span

GRAVITY = {"critical": 0, "warn": 1, "info": 2}


def findings_of(session: Session, span: Span) -> tuple[Finding, ...]:
    """Return what was found in a span while it ran and once it had ended, the gravest first."""
    findings = (finding for finding in session.findings if finding.span_id in {None, span.id})
    return tuple(sorted(findings, key=lambda finding: GRAVITY[finding.severity]))
