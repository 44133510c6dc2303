"""``Session.report``."""

from __future__ import annotations

import os
from pathlib import Path

from hfmem_widget.features.report.page import page
from hfmem_widget.recording.file import write_new
from hfmem_widget.session import Session
from hfmem_widget.text import wrong_value


def report(session: Session, path: str | os.PathLike[str], *, static: bool = False) -> Path:
    """Write a session's page to a new file; see `Session.report`."""
    place = Path(path).expanduser()
    if not place.name.endswith(".html"):
        raise wrong_value(place.name, "path", "a name that ends in .html")
    write_new(place, [page(session, static=static).encode()])
    return place
