"""``Session.save``: as a recording, as a table for other programs, or as a trace."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hfmem_widget.errors import OptionError
from hfmem_widget.options import path_of
from hfmem_widget.recording.file import members, write_new
from hfmem_widget.recording.limits import ENDINGS, SUFFIX
from hfmem_widget.recording.lines import Lines
from hfmem_widget.recording.trace import TRACES, trace
from hfmem_widget.session import Session, Span
from hfmem_widget.session.model import data_frame
from hfmem_widget.text import for_csv, wrong_value

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("samples", "steps", "spans")

_ABOUT = ("id", "parent", "kind", "label", "start", "stop", "outcome")

SO_FAR = "This was saved while it was running, and is what was known then."


def save(
    session: Session, path: str | os.PathLike[str], table: str = "samples", resolution: float = 1.0
) -> Path:
    """Write a session to a new file; see `Session.save`."""
    place = path_of(path)
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


def table_of(session: Session, table: str, suffix: str) -> bytes:
    """Return one of `TABLES` as the contents of a ``.csv`` or a ``.parquet`` file."""
    try:
        if table == "samples":
            frame = session.to_pandas()
        else:
            frame = session.steps.to_pandas() if table == "steps" else _spans(session)
    except ImportError:
        raise OptionError(f"a {suffix} file needs pandas: pip install pandas") from None
    has_index = table == "samples"
    if suffix == ".csv":
        frame = frame.rename(columns=for_csv)
        if "label" in frame:
            frame["label"] = frame["label"].map(for_csv)
        return frame.to_csv(index=has_index).encode()
    try:
        contents: bytes = frame.to_parquet(index=has_index)
    except ImportError:
        raise OptionError("a .parquet file needs pyarrow: pip install pyarrow") from None
    return contents


def _spans(session: Session) -> pd.DataFrame:
    rows = [_row(session, span) for span in session.spans]
    columns = dict.fromkeys([*_ABOUT, *(name for row in rows for name in row)])
    whole = [[row.get(name) for name in columns] for row in rows]
    # A span without a parent must not make the other ids floats.
    return data_frame(whole, list(columns)).astype({"parent": "Int64"})


def _row(session: Session, span: Span) -> Mapping[str, object]:
    row: dict[str, object] = {name: getattr(span, name) for name in _ABOUT}
    for name, count in span.counts.items():
        row.setdefault(name, count)
    for series in session.series:
        if series.metric not in {"allocated", "reserved"}:
            continue
        row[f"{series.key}/before"] = session.value(span.before, series.key)
        if span.after is not None:
            row[f"{series.key}/after"] = session.value(span.after, series.key)
        if peak := span.peaks.get(series.key):
            row[f"{series.key}/peak"] = peak.value
            row[f"{series.key}/certainty"] = peak.certainty
    return row
