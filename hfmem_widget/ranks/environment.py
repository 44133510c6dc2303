"""Two environment variables by which the children of a watched cell record themselves while it runs."""

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
"""The options of the watch that apply to its ranks, too, as JSON."""

HANDED_ON = ("interval", "ledger", "phases", "resident_peak", "steps")

CLAIMED = "HFMEM_CLAIMED"
"""The process that is a rank; its own children, such as a DataLoader's workers, are not."""

SOLO = "HFMEM_SOLO"
"""``1`` where the first Python that imports torch is followed without a launcher; then who that is."""

PATH = "PYTHONPATH"
SITE = str(Path(__file__).parent / "site")
"""The folder of the ``sitecustomize`` that begins to follow in a new Python."""


class Lenders(set[int]):
    """The processes that set the variables for their children; they are not ranks themselves."""


class Lent:
    """The variables in an environment from `begin` to `end`, with the options that apply to ranks, too."""

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
        """Set the variables and return True; do nothing in a rank, or where they are set already."""
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
        """Restore the earlier values, except those the user has changed since; a second call does nothing."""
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
    """Return whether this process has set them: then its own torch.distributed does not make it a rank."""
    return os.getpid() in process_state(Lenders)


def handed_on(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a watch has passed to its ranks; empty if they cannot be read."""
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
