"""Runs every feature's check once on each outermost span that has ended."""

from collections.abc import Callable, Iterable
from itertools import product

from hfmem_widget.display import resolve
from hfmem_widget.features import FEATURES
from hfmem_widget.session import Finding, Session, Span, outermost

Subject = tuple[str, int | None, object]
Check = Callable[[Session, Span], Iterable[Finding]]


def judge(session: Session, span: Span | None = None) -> Session:
    """Add the findings of an outermost span, by default of all, and return the session."""
    spans = outermost(session.spans) if span is None else [span]
    checks: list[Check] = [resolve(feature.check) for feature in FEATURES if feature.check]
    for judged, check in product(spans, checks):
        for finding in check(session, judged):
            if subject_of(finding) not in map(subject_of, session.findings):
                session.findings.append(finding)
    return session


def subject_of(finding: Finding) -> Subject:
    """Return the key that duplicate findings share: kind, span and device."""
    return finding.kind, finding.span_id, finding.evidence.get("device")
