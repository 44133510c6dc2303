"""What makes the children of a watched cell follow themselves: two variables, lent for as long as it runs.

And how a process hears that it is a rank: when it joins a group of torch.distributed. DDP, FSDP, the Trainer,
Accelerate, DeepSpeed and vLLM all come by ``init_process_group``. It is surrounded once torch.distributed has
been imported by others, which is never done here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hfmem_widget.display import resolve
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.patch import restore, surround
from hfmem_widget.options import WatchOptions

RUN = "HFMEM_RUN"
"""The run's directory."""

OPTIONS = "HFMEM_OPTIONS"
"""Options of the watch that are the ranks' too, as JSON."""

HANDED_ON = ("interval", "ledger", "phases", "resident_peak")

CLAIMED = "HFMEM_CLAIMED"
"""The process that is a rank: what it starts is none, a DataLoader's workers for one."""

SOLO = "HFMEM_SOLO"
"""``1`` where the first Python that imports torch is followed without a launcher; then who that is."""

PATH = "PYTHONPATH"
SITE = str(Path(__file__).parent / "site")
"""The folder of the ``sitecustomize`` that begins to follow in a new Python."""

_lent_by: dict[int, Path] = {}
"""The process that lends, and for which run: it is no rank itself."""


class Lent:
    """The variables, in an environment from `begin` to `end`.

    Parameters
    ----------
    directory : Path
        Of the run; it is made by the first rank.
    options : WatchOptions, optional
        Of the watch: some of them are those of the ranks too.
    environ : mutable mapping, optional
    """

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
        _lent_by[self._pid] = self.directory
        environ.update({**self._own, PATH: self._path})
        follow_groups()  # a forked child has the surrounded function
        return True

    def end(self) -> None:
        """Put back what was there; what the user has changed meanwhile stays, without our part.

        Doing it again does nothing, or what a fault has kept from being done.
        """
        if self._pid != os.getpid():
            return  # a forked child: its environment is its own
        environ, path = self._environ, self._environ.get(PATH)
        for name, value in self._own.items():
            if environ.get(name) == value:
                del environ[name]
        if path == self._path:
            _set(environ, self._before)
        elif path is not None and SITE in path.split(os.pathsep):
            others = [folder for folder in path.split(os.pathsep) if folder != SITE]
            _set(environ, os.pathsep.join(others) if others or self._before is not None else None)
        _lent_by.pop(self._pid, None)
        self._pid = 0


def lends() -> bool:
    """Return whether this process lends them: what calls torch.distributed in it is no rank by that."""
    return os.getpid() in _lent_by


def handed_on(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a watch has handed on to its ranks; none where they cannot be read."""
    try:
        given = json.loads(environ.get(OPTIONS, "{}"))
        known = {name: given[name] for name in HANDED_ON if name in given}
        WatchOptions(**known)
    except (ValueError, TypeError, RecursionError, OptionError):
        return {}
    return known


def with_site(path: str | None) -> str:
    """Return a ``PYTHONPATH`` with our folder first."""
    return f"{SITE}{os.pathsep}{path}" if path else SITE


def _set(environ: MutableMapping[str, str], path: str | None) -> None:
    if path is None:
        environ.pop(PATH, None)
    else:
        environ[PATH] = path


GROUPS = "torch.distributed"
_HOMES = (f"{GROUPS}.distributed_c10d", GROUPS)
_JOIN = "init_process_group"

_waiting: WhenImported | None = None


def follow_groups() -> None:
    """Hear of every group from now on, or once there is torch.distributed; doing so again does nothing."""
    global _waiting  # noqa: PLW0603  (a function is surrounded once per process)
    if GROUPS in sys.modules:
        surround_groups()
    elif _waiting is None:
        _waiting = WhenImported({GROUPS: surround_groups})
        _waiting.begin()


def leave_groups() -> None:
    """Put the original function back; a rank that is followed stays followed."""
    global _waiting
    waiting, _waiting = _waiting, None
    if waiting is not None:
        waiting.end()
    for module in _modules():
        restore(module, _JOIN)


def surround_groups(_module: ModuleType | None = None) -> None:
    """Surround the function wherever it is."""
    for module in _modules():
        surround(module, _JOIN, _joining)


def truth() -> tuple[int, int] | None:
    """Return the rank and the world that torch.distributed knows; None where it is not up."""
    distributed: Any = sys.modules.get(GROUPS)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _modules() -> list[ModuleType]:
    """Return where the function is, once all of them have it: the second takes it from the first."""
    found = [module for name in _HOMES if (module := sys.modules.get(name)) is not None]
    return found if len(found) == len(_HOMES) else []


@contextmanager
def _joining(*_: object) -> Iterator[None]:
    yield
    resolve("hfmem_widget.drivers.follow:joined")()
