"""Lines of a session: as they are saved, and as they are written while it runs."""

import math

from hfmem_widget.recording.lines import Lines
from hfmem_widget.session import Sample, Session


def saved(session: Session) -> list[bytes]:
    lines = Lines(session)
    return [lines.head(), *lines.timeline(), *lines.changed(everything=True), lines.end(9.0)]


def recorded(session: Session) -> list[bytes]:
    """Return the lines that a recording of the session would have had: samples by the second, and folds."""
    rows = session.between(-math.inf, math.inf)
    values = zip(rows.time.tolist(), rows.high.tolist(), strict=True)
    samples = [Sample(time, tuple(row)) for time, row in values]
    lines = Lines(session)
    seconds = [samples[at : at + 10] for at in range(0, len(samples), 10)]
    blocks = [
        line for second in seconds for line in lines.samples(second, session.started_at) if line
    ]
    last = [lines.fold(), *lines.changed(everything=True), lines.end(9.0)]
    return [lines.head(), *blocks, *filter(None, last)]
