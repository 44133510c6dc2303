"""What the data of a span tell, entered once: every feature's check, when the span has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hfmem_widget.display import resolve
from hfmem_widget.features import FEATURES
from hfmem_widget.session import Finding, Guide, Session, Span

Check = Callable[[Session, Span], Iterable[Finding | Guide]]


def judge(session: Session, span: Span | None = None) -> Session:
    """Enter what the data of an outermost span tell among its session's findings and guides.

    What was found of a span already, by whomever, is not entered again.

    Parameters
    ----------
    session : Session
    span : Span, optional
        One that has ended; all outermost ones by default.

    Returns
    -------
    Session
        The same.
    """
    ended = [one for one in session.spans if one.parent is None] if span is None else [span]
    for one in ended:
        for found in _found(session, one):
            if isinstance(found, Guide):
                if found not in session.guides:
                    session.guides.append(found)
            elif _about(found) not in set(map(_about, session.findings)):
                session.findings.append(found)
    return session


def _found(session: Session, span: Span) -> Iterator[Finding | Guide]:
    for feature in FEATURES:
        if feature.check:
            check: Check = resolve(feature.check)
            yield from check(session, span)


def _about(finding: Finding) -> tuple[str, int | None, object]:
    return finding.kind, finding.span_id, finding.evidence.get("device")
