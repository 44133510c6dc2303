"""What is judged of a session as it travels: findings and guides, made anew seldom, sent when they change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from hfmem_widget.analysis.findings import findings_of
from hfmem_widget.analysis.guides import guides_of
from hfmem_widget.labels import plain
from hfmem_widget.session import Finding, Guide, Session, Span
from hfmem_widget.view.findings import sentence

MOST = 8
"""Findings that are sent at most."""

MOST_OF_A_KIND = 10
"""Of guides, that are sent at most: a budget or a trend for each of eight GPUs and the host."""

SENTENCE = 200
LABEL = 80

BETWEEN = 1.0
"""Seconds between two looks at the data of a run that goes on."""

SHARE = 0.02
"""Of the time, at most, that such looks may take."""

_OUTERMOST = ("cell", "block")

GRAVITY = {"critical": 0, "warn": 1, "info": 2}

Judged = dict[str, list[dict[str, Any]]]
Found = dict[int, tuple[Finding, ...]]
NOTHING: Judged = {"findings": [], "guides": []}


class Judgements:
    """What is judged of one session so far.

    Parameters
    ----------
    session : Session
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._due = -math.inf
        self._given: list[Finding | Guide] = []
        self._seen: tuple[float, ...] = ()
        self._of_spans: Found = {}
        self._told = NOTHING

    def now(self, *, at_once: bool = False) -> Judged:
        """Return ``findings`` and ``guides`` as they go into a message.

        The same object comes back as long as nothing has changed. The data of a run that goes on are looked
        at once a second at most, and only where there is news in them.
        """
        session, began = self._session, self._clock()
        given: list[Finding | Guide] = [*session.findings, *session.guides]
        if began < self._due and given == self._given and not at_once:
            return self._told
        seen = session.steps.ended_at, len(_ended(session))
        if given != self._given:
            # They are among what was found in a span.
            self._of_spans.clear()
        if given != self._given or seen != self._seen:
            self._given, self._seen = given, seen
            told = judged(session, self._of_spans)
            self._told = self._told if told == self._told else told
        ended = self._clock()
        self._due = ended + max(BETWEEN, (ended - began) / SHARE)
        return self._told


def judged(session: Session, of_spans: Found | None = None) -> Judged:
    """Return the findings of a session, of its newest spans and the gravest first, and its guides.

    Parameters
    ----------
    session : Session
    of_spans : dict, optional
        What was found in spans that have ended, by their ids; what is missing is put in.
    """
    known = {} if of_spans is None else of_spans
    ended = _ended(session)[-MOST:]
    for span in ended:
        if span.id not in known:
            known[span.id] = findings_of(session, span)
    found = [one for span in ended for one in known[span.id]]
    found += [one for one in session.findings if one.span_id not in known]
    # What is about no span was found in all of them.
    told = list({(one.kind, one.title, one.span_id): one for one in found}.values())
    told.sort(key=_place)
    guides = [one for one in guides_of(session) if all(map(math.isfinite, _figures(one)))]
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


def _ended(session: Session) -> Sequence[Span]:
    return [
        one
        for one in session.spans
        if one.parent is None and one.stop is not None and one.kind in _OUTERMOST
    ]


def _place(finding: Finding) -> tuple[float, int]:
    span = math.inf if finding.span_id is None else finding.span_id
    return -span, GRAVITY[finding.severity]


def _figures(guide: Guide) -> tuple[float, ...]:
    return guide.start, guide.first, guide.last, *guide.band
