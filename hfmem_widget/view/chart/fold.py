"""Cells end to end, with shortened pauses between them, as in the live chart (``js/src/core/fold.ts``)."""

import math
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hfmem_widget.analysis.facts import end_of
from hfmem_widget.analysis.kept import points_of
from hfmem_widget.session import Finding, Session
from hfmem_widget.session.spans import Spans, outermost
from hfmem_widget.session.steps import FIGURES
from hfmem_widget.session.timeline import Timeline
from hfmem_widget.view.chart.shapes import Ticks, round_up, time_ticks

# A longer pause becomes about this share of the watched time, and at least so many seconds.
PAUSE_SHARE, LEAST_PAUSE = 0.02, 0.05
LEAST_GAIN = 1 / 3  # share of the time from which on pauses are shortened

_TIMES = [FIGURES.index("start"), FIGURES.index("stop")]


@dataclass(frozen=True, slots=True)
class Fold:
    """Seconds since a session began, ascending, and the place of each on an axis with short pauses."""

    times: Sequence[float]
    drawn: Sequence[float]

    @property
    def paused(self) -> float:
        """Seconds that are not drawn."""
        return self.times[-1] - self.drawn[-1]

    def to_axis(self, seconds: Any) -> Any:
        """Return the place on the axis of a second, or of an array of seconds."""
        return np.interp(seconds, self.times, self.drawn)

    def ticks(self, session: Session) -> Ticks:
        """Return ticks with the time of day; of ticks within one second the first has it."""
        values = time_ticks(self.drawn[-1]).values
        seconds = session.started_at + np.interp(values, self.drawn, self.times)
        # Of its own day, since a recording from outside may have begun in any year.
        texts = [time.strftime("%H:%M:%S", time.gmtime(each % 86400)) for each in seconds]
        once = (text * (text != before) for before, text in pairwise(texts))
        return Ticks(values, (f"{texts[0]} UTC", *once))


def fold_of(session: Session) -> Fold | None:
    """Return the fold of a session of several cells; None where the pauses between them are short."""
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
    """Return a copy of a session whose times are places on the axis."""

    def at(seconds: float) -> float:
        return float(fold.to_axis(seconds))

    def moved(each: Any) -> Any:
        ends = each.stop is not None and math.isfinite(each.stop)
        return replace(each, start=at(each.start), stop=at(each.stop) if ends else each.stop)

    def timed(finding: Finding) -> Finding:
        evidence = dict(finding.evidence)
        if isinstance(time := evidence.get("time"), int | float):
            evidence["time"] = at(time)
        if len(kept := points_of(evidence)):
            evidence["kept"] = [(at(seconds), size) for seconds, size in kept.tolist()]
        return replace(finding, evidence=evidence)

    rows, steps = session.between(-math.inf, math.inf), deepcopy(session.steps)
    gaps = [(at(start), at(stop)) for start, stop in rows.gaps]
    steps.table[:, _TIMES] = fold.to_axis(steps.table[:, _TIMES])
    return Session(
        devices=session.devices,
        series=session.series,
        last_sample=replace(session.last_sample, time=at(session.last_sample.time)),
        timeline=Timeline.from_rows(
            fold.to_axis(rows.time), rows.low, rows.high, bucket=rows.bucket, gaps=gaps
        ),
        steps=steps,
        spans=Spans(map(moved, session.spans)),
        findings=map(timed, session.findings),
        guides=map(moved, session.guides),
    )
