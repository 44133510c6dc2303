"""The findings and guides of a session as the wire has them, sent when they change."""

from __future__ import annotations

import math
from typing import Any

from hfmem_widget.analysis.facts import GRAVITY
from hfmem_widget.session import Finding, Guide, Session
from hfmem_widget.text import plain
from hfmem_widget.view.findings import sentence

MOST = 8  # findings that are sent at most

MOST_OF_A_KIND = 10
"""Guides that are sent at most: a budget or a trend for each of eight GPUs and the host."""

SENTENCE = 200
LABEL = 80

Judged = dict[str, list[dict[str, Any]]]
NOTHING: Judged = {"findings": [], "guides": []}


def judged(session: Session) -> Judged:
    """Return the findings of a session, of its newest spans and the gravest first, and its guides."""

    def place(finding: Finding) -> tuple[float, int]:
        span = math.inf if finding.span_id is None else finding.span_id
        return -span, GRAVITY[finding.severity]

    guides = [
        guide
        for guide in session.guides
        if all(map(math.isfinite, (guide.start, guide.first, guide.last, *guide.band)))
    ]
    kinds = ("budget", "trend", "oom")
    of_kinds = ([guide for guide in guides if guide.kind == kind] for kind in kinds)
    return {
        "findings": list(map(describe_finding, sorted(session.findings, key=place)[:MOST])),
        "guides": [describe_guide(each) for alike in of_kinds for each in alike[-MOST_OF_A_KIND:]],
    }


def describe_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding with its time and place, without the rest of its evidence and its advice."""
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
