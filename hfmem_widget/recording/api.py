"""``Session.save``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from hfmem_widget.recording.file import members, write_new
from hfmem_widget.recording.limits import ENDINGS, SUFFIX
from hfmem_widget.recording.lines import Lines
from hfmem_widget.recording.tables import TABLES, table_of
from hfmem_widget.recording.trace import TRACES, trace
from hfmem_widget.session import Session
from hfmem_widget.text import wrong_value

SO_FAR = "This was saved while it was running, and is what was known then."


def save(
    session: Session, path: str | os.PathLike[str], table: str = "samples", resolution: float = 1.0
) -> Path:
    """Write a session to a new file; see `Session.save`."""
    place = Path(path).expanduser()
    name = place.name
    if table not in TABLES:
        raise wrong_value(table, "table", "samples, steps or spans")
    if name.endswith((".csv", ".parquet")):
        write_new(place, [table_of(session, table, place.suffix)])
    elif table != "samples":
        raise wrong_value(name, "path", "a name that ends in .csv or .parquet for a table")
    elif name.endswith(TRACES):
        write_new(place, trace(session, resolution))
    elif name.endswith(ENDINGS):
        lines = _lines(session)
        write_new(place, members(lines) if name.endswith(".gz") else lines)
    else:
        endings = f"{SUFFIX}, {SUFFIX}.gz, .csv, .parquet or {TRACES[0]}"
        raise wrong_value(name, "path", f"a name that ends in {endings}")
    return place


def _lines(session: Session) -> Iterator[bytes]:
    lines = Lines(session)
    yield lines.head()
    yield from lines.timeline()
    yield from lines.changed(everything=True)
    if session.running:
        yield lines.note(SO_FAR)
    yield lines.end(session.stopped_at or time.time())
