"""What is judged of a session as it travels: findings and guides, sent when they change."""

from __future__ import annotations

import math
from typing import Any

from hfmem_widget.analysis.findings import GRAVITY
from hfmem_widget.session import Finding, Guide, Session
from hfmem_widget.text import plain
from hfmem_widget.view.findings import sentence

MOST = 8
"""Findings that are sent at most."""

MOST_OF_A_KIND = 10
"""Of guides, that are sent at most: a budget or a trend for each of eight GPUs and the host."""

SENTENCE = 200
LABEL = 80

Judged = dict[str, list[dict[str, Any]]]
NOTHING: Judged = {"findings": [], "guides": []}


class Judgements:
    """What is judged of one session so far.

    Parameters
    ----------
    session : Session
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen: list[Finding | Guide] = []
        self._told = NOTHING

    def now(self) -> Judged:
        """Return ``findings`` and ``guides`` as they go into a message; the same object until they change."""
        seen: list[Finding | Guide] = [*self._session.findings, *self._session.guides]
        if seen != self._seen:
            self._seen, self._told = seen, judged(self._session)
        return self._told


def judged(session: Session) -> Judged:
    """Return the findings of a session, of its newest spans and the gravest first, and its guides."""
    told = sorted(session.findings, key=_place)
    guides = [one for one in session.guides if all(map(math.isfinite, _figures(one)))]
    of_kinds = ([one for one in guides if one.kind == kind] for kind in ("budget", "trend", "oom"))
    return {
        "findings": [describe_finding(one) for one in told[:MOST]],
        "guides": [describe_guide(one) for few in of_kinds for one in few[-MOST_OF_A_KIND:]],
    }


def describe_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding without its advice and its evidence, but for when and where it was."""
    described: dict[str, Any] = {
        "kind": plain(finding.kind, LABEL),
        "severity": finding.severity,
        "title": sentence(finding.title, SENTENCE),
        "span": finding.span_id,
    }
    device, at = finding.evidence.get("device"), finding.evidence.get("time")
    if isinstance(device, str):
        described["device"] = plain(device, LABEL)
    if isinstance(at, int | float) and math.isfinite(at):
        described["time"] = round(float(at), 4)
    return described


def describe_guide(guide: Guide) -> dict[str, Any]:
    """Return a guide; its end is null where it goes on as long as the run, and an exact one has no band."""
    described: dict[str, Any] = {
        "device": guide.device,
        "kind": guide.kind,
        "label": plain(guide.label, LABEL),
        "start": round(guide.start, 4),
        "stop": round(guide.stop, 4) if math.isfinite(guide.stop) else None,
        "first": round(guide.first),
        "last": round(guide.last),
    }
    return {**described, "band": list(map(round, guide.band))} if any(guide.band) else described


def _place(finding: Finding) -> tuple[float, int]:
    span = math.inf if finding.span_id is None else finding.span_id
    return -span, GRAVITY[finding.severity]


def _figures(guide: Guide) -> tuple[float, ...]:
    return guide.start, guide.first, guide.last, *guide.band
