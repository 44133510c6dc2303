"""``hfmem_widget.open`` and ``Session.save``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hfmem_widget.display import resolve
from hfmem_widget.recording.file import members, read, write_new
from hfmem_widget.recording.limits import ENDINGS, SUFFIX
from hfmem_widget.recording.lines import Lines
from hfmem_widget.recording.tables import TABLES, table_of
from hfmem_widget.recording.trace import TRACES, trace
from hfmem_widget.session import Session
from hfmem_widget.text import wrong_value

SO_FAR = "This was saved while it was running, and is what was known then."


def open(path: str | os.PathLike[str]) -> Session | Any:  # noqa: A001  (as in PIL, tarfile, xarray)
    """Return the session that a recording holds: it shows itself, and has figures, steps and findings.

    Of a directory in which the ranks of a distributed run write, return the `Run`; it grows as they do.

    A recording that is still being written gives the session so far, which is `running`; open it again for
    more. Lines that are damaged are left out, and a note says how many.

    Parameters
    ----------
    path : path-like
        Written by ``session.save(path)``, ``%%memwatch --record``, ``watch(record=...)``; or the directory
        of a run.

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
    place = Path(path).expanduser()
    if place.is_dir():
        return resolve("hfmem_widget.ranks.run:open_run")(place)
    return read(place)


def save(
    session: Session,
    path: str | os.PathLike[str],
    table: str = "samples",
    resolution: float = 1.0,
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
        raise wrong_value(
            name,
            "path",
            f"a name that ends in {SUFFIX}, {SUFFIX}.gz, .csv, .parquet or {TRACES[0]}",
        )
    return place


def _lines(session: Session) -> Iterator[bytes]:
    lines = Lines(session)
    yield lines.head()
    yield from lines.timeline()
    yield from lines.changed(everything=True)
    if session.running:
        yield lines.note(SO_FAR)
    yield lines.end(session.stopped_at or time.time())
