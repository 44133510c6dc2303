"""Cells end to end: the pauses between them, shortened, as in the live chart (``js/src/core/fold.ts``)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from hfmem_widget.analysis.facts import end_of
from hfmem_widget.session import Finding, Sample, Session
from hfmem_widget.session.spans import outermost
from hfmem_widget.session.steps import FIGURES
from hfmem_widget.session.timeline import Timeline
from hfmem_widget.view.chart.axis import Ticks, round_up, time_ticks

PAUSE_SHARE, LEAST_PAUSE = 0.02, 0.05
"""What a longer pause becomes: about this share of all that was watched, and seconds at least."""

LEAST_GAIN = 1 / 3
"""Where pauses take up less than this share of the time, seconds are drawn as they are."""


_TIMES = [FIGURES.index("start"), FIGURES.index("stop")]


@dataclass(frozen=True, slots=True)
class Fold:
    """Seconds since a session began, ascending, and where each is drawn on an axis with short pauses."""

    times: Sequence[float]
    drawn: Sequence[float]

    @property
    def paused(self) -> float:
        """Seconds that are not drawn."""
        return self.times[-1] - self.drawn[-1]

    def to_axis(self, seconds: Any) -> Any:
        """Return where a second, or an array of them, is drawn."""
        return np.interp(seconds, self.times, self.drawn)

    def ticks(self, session: Session) -> Ticks:
        """Return ticks with the time of day, each second once."""
        values = time_ticks(self.drawn[-1]).values
        seconds = session.started_at + np.interp(values, self.drawn, self.times)
        texts = [time.strftime("%H:%M:%S", time.gmtime(each)) for each in seconds]
        once = [
            "" if text == before else text for text, before in zip(texts[1:], texts, strict=False)
        ]
        return Ticks(values, (f"{texts[0]} UTC", *once))


def fold_of(session: Session) -> Fold | None:
    """Return how a session of several cells is drawn; None where the pauses between them are short."""
    cells = sorted(outermost(session.spans), key=lambda span: span.start)
    if len(cells) < 2 or session.ranks is not None:
        return None
    watched = sum(end_of(session, cell) - cell.start for cell in cells)
    pause = round_up(max(PAUSE_SHARE * watched, LEAST_PAUSE), (1, 2, 5, 10))
    times, drawn = [0.0], [0.0]
    for cell in cells:
        for until, most in ((cell.start, pause), (end_of(session, cell), math.inf)):
            if until > times[-1]:
                drawn.append(drawn[-1] + min(until - times[-1], most))
                times.append(until)
    fold = Fold(times, drawn)
    return fold if fold.paused > LEAST_GAIN * times[-1] else None


def folded(session: Session, fold: Fold) -> Session:
    """Return a session as it is drawn: all its times are those of the axis."""
    return cast(Session, _Folded(session, fold))


class _Folded:
    def __init__(self, session: Session, fold: Fold) -> None:
        self._session, self._fold = session, fold
        self.spans = tuple(map(self._moved, session.spans))
        self.steps = deepcopy(session.steps)
        table = self.steps.table
        table[:, _TIMES] = fold.to_axis(table[:, _TIMES])
        self.guides = [self._moved(guide) for guide in session.guides]
        self.findings = [self._timed(finding) for finding in session.findings]
        self.last_sample: Sample = replace(
            session.last_sample, time=float(fold.to_axis(session.last_sample.time))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def between(self, start: float, stop: float) -> Timeline:
        """Return the samples of a stretch of the axis."""
        times = np.interp((start, stop), self._fold.drawn, self._fold.times)
        part = self._session.between(*times)
        gaps = [tuple(self._fold.to_axis(gap)) for gap in part.gaps]
        at = self._fold.to_axis(part.time)
        return Timeline.from_rows(at, part.low, part.high, bucket=part.bucket, gaps=gaps)

    def _timed(self, finding: Finding) -> Finding:
        time = finding.evidence.get("time")
        if not isinstance(time, int | float):
            return finding
        return replace(
            finding, evidence={**finding.evidence, "time": float(self._fold.to_axis(time))}
        )

    def _moved(self, each: Any) -> Any:
        start, stop = each.start, each.stop
        ends = stop is not None and math.isfinite(stop)
        moved = float(self._fold.to_axis(stop)) if ends else stop
        return replace(each, start=float(self._fold.to_axis(start)), stop=moved)
