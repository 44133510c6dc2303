"""``hfmem_widget.open``."""

from __future__ import annotations

import os
from typing import Any

from hfmem_widget.ranks.run import open_run
from hfmem_widget.recording.file import place_of, read


def open(path: str | os.PathLike[str]) -> Any:  # noqa: A001  (as in PIL, tarfile, xarray)
    """Return the session that a recording holds, or the run in a directory; each shows itself.

    A recording that is still being written gives the session so far, which is `running`; open it again for
    more. A run is followed as long as its ranks write; one that takes longer than 10 s to read is `running`
    until it was read, and `look()` waits for that. Lines that are damaged are left out, and a note says how
    many.

    Parameters
    ----------
    path : path-like
        Written by ``session.save(path)``, ``%%memwatch --record``, ``watch(record=...)``; or a directory, by
        ``%%memwatch --ranks`` or ``hfmem run``.

    Returns
    -------
    Session or Run
        Of a file and of a directory.

    Raises
    ------
    OptionError
        If there is no such file, it is no recording, or of a newer version; if a directory is not that of a
        run, or others may write there.

    Examples
    --------
    >>> session = hfmem_widget.open("fine-tune.hfmem.jsonl")
    >>> session.peak("cuda:0/allocated")
    7507148800.0
    >>> run = hfmem_widget.open("/shared/run1")
    >>> run.worst
    417
    """
    place = place_of(path)
    return open_run(place) if place.is_dir() else read(place)
