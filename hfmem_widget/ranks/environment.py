"""What makes the children of a watched cell follow themselves: two variables, lent for as long as it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.process import process_state
from hfmem_widget.options import WatchOptions

RUN = "HFMEM_RUN"
"""The run's directory."""

OPTIONS = "HFMEM_OPTIONS"
"""Options of the watch that are the ranks' too, as JSON."""

HANDED_ON = ("interval", "ledger", "phases", "resident_peak", "steps")

CLAIMED = "HFMEM_CLAIMED"
"""The process that is a rank: what it starts is none, a DataLoader's workers for one."""

SOLO = "HFMEM_SOLO"
"""``1`` where the first Python that imports torch is followed without a launcher; then who that is."""

PATH = "PYTHONPATH"
SITE = str(Path(__file__).parent / "site")
"""The folder of the ``sitecustomize`` that begins to follow in a new Python."""


class Lenders(set[int]):
    """The processes that lend: they are no ranks themselves."""


class Lent:
    """The variables, in an environment from `begin` to `end`, with the options that are the ranks' too."""

    def __init__(
        self,
        directory: Path,
        options: WatchOptions | None = None,
        environ: MutableMapping[str, str] = os.environ,
    ) -> None:
        self.directory = directory.absolute()
        self._environ = environ
        options = options or WatchOptions()
        given = {name: getattr(options, name) for name in HANDED_ON}
        self._own = {RUN: os.fspath(self.directory), OPTIONS: json.dumps(given)}
        self._before: str | None = None
        self._path = ""
        self._pid = 0

    def begin(self) -> bool:
        """Set them, and return whether that was done: not in a rank, nor within another that has lent."""
        environ = self._environ
        if self._pid or RUN in environ or CLAIMED in environ:
            return False
        self._before = environ.get(PATH)
        self._path = with_site(self._before)
        self._pid = os.getpid()
        process_state(Lenders).add(self._pid)
        environ.update({**self._own, PATH: self._path})
        return True

    def end(self) -> None:
        """Put back what was there; what the user has changed meanwhile stays. Doing it again does nothing."""
        if self._pid != os.getpid():
            return  # a forked child: its environment is its own
        environ, path = self._environ, self._environ.get(PATH)
        for name, value in self._own.items():
            if environ.get(name) == value:
                del environ[name]
        if path is not None:
            others = [folder for folder in path.split(os.pathsep) if folder != SITE]
            left = os.pathsep.join(others) if others or self._before is not None else None
            before = self._before if path == self._path else left
            if before is None:
                del environ[PATH]
            else:
                environ[PATH] = before
        process_state(Lenders).discard(self._pid)
        self._pid = 0


def lends() -> bool:
    """Return whether this process lends them: what calls torch.distributed in it is no rank by that."""
    return os.getpid() in process_state(Lenders)


def handed_on(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a watch has handed on to its ranks; none where they cannot be read."""
    try:
        given = json.loads(environ.get(OPTIONS, "{}"))
        handed_options = {name: given[name] for name in HANDED_ON if name in given}
        WatchOptions(**handed_options)
    except (ValueError, TypeError, RecursionError, OptionError):
        return {}
    return handed_options


def with_site(path: str | None) -> str:
    """Return a ``PYTHONPATH`` with our folder first."""
    return f"{SITE}{os.pathsep}{path}" if path else SITE
