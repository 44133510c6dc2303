"""A recording of each test that is measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hfmem_widget.display import resolve
from hfmem_widget.errors import OptionError
from hfmem_widget.recording.file import free
from hfmem_widget.recording.limits import SUFFIX

LONGEST_NAME = 150

_OTHERS = re.compile(r"[^\w.\[\]-]+")


class RecordedTests:
    """Watches one test after the other, and writes each to a file of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watch: Any = None

    def begin(self, node_id: str) -> str:
        """Begin with a test; return why there is no recording of it, or ``""``."""
        self.end(None)
        name = _OTHERS.sub("_", node_id.replace("::", "__"))[-LONGEST_NAME:]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = free(self._folder / f"{name}{SUFFIX}")
            watch = resolve("hfmem_widget.drivers.api:watch")
            self._watch = watch(node_id, record=path, quiet=True)
            self._watch.start()
        except (OSError, OptionError) as error:
            self._watch = None
            return str(error)
        return ""

    def end(self, error: BaseException | None) -> None:
        """End with the test, as it ended."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop(error)
