"""``hfmem_widget.open`` and ``Session.save``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hfmem_widget.errors import OptionError
from hfmem_widget.recording.file import members, read, write_new
from hfmem_widget.recording.limits import ENDINGS, SUFFIX
from hfmem_widget.recording.lines import Lines
from hfmem_widget.session import Session
from hfmem_widget.text import wrong_value

if TYPE_CHECKING:
    import pandas as pd


def open(path: str | os.PathLike[str]) -> Session:  # noqa: A001  (as in PIL, tarfile, xarray)
    """Return the session that a recording holds: it shows itself, and has figures, steps and findings.

    A recording that is still being written gives the session so far, which is `running`; open it again for
    more. Lines that are damaged are left out, and a note says how many.

    Parameters
    ----------
    path : path-like
        Written by ``session.save(path)``, ``%%memwatch --record``, ``watch(record=...)``.

    Raises
    ------
    OptionError
        If there is no such file, it is no recording, or of a newer version.

    Examples
    --------
    >>> session = hfmem_widget.open("fine-tune.hfmem.jsonl")
    >>> session.peak("cuda:0/allocated")
    7507148800.0
    """
    return read(Path(path).expanduser())


def save(session: Session, path: str | os.PathLike[str]) -> Path:
    """Write a session to a new file; see `Session.save`."""
    place = Path(path).expanduser()
    name = place.name
    if name.endswith((".csv", ".parquet")):
        write_new(place, [_table(session, place.suffix)])
    elif name.endswith(ENDINGS):
        lines = _lines(session)
        write_new(place, members(lines) if name.endswith(".gz") else lines)
    else:
        raise wrong_value(
            name, "path", f"a name that ends in {SUFFIX}, {SUFFIX}.gz, .csv or .parquet"
        )
    return place


def _lines(session: Session) -> Iterator[bytes]:
    lines = Lines(session)
    yield lines.head()
    yield from lines.timeline()
    yield from lines.changed(everything=True)
    if not session.running:
        yield lines.end(session.stopped_at or session.started_at)


def _table(session: Session, suffix: str) -> bytes:
    frame: pd.DataFrame = session.to_pandas()
    if suffix == ".csv":
        return frame.to_csv().encode()
    try:
        table: bytes = frame.to_parquet()
    except ImportError:
        message = "a .parquet file needs pyarrow: pip install pyarrow"
        raise OptionError(message) from None
    return table
