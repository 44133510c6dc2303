"""A session's samples, steps and spans as tables, for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hfmem_widget.errors import OptionError
from hfmem_widget.session import Session, Span
from hfmem_widget.session.model import data_frame
from hfmem_widget.text import for_csv

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("samples", "steps", "spans")

_ABOUT = ("id", "parent", "kind", "label", "start", "stop", "outcome")


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
    """Return a row for each span: its edges, its counts, and allocated and reserved of each device."""
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
