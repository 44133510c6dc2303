"""The engines of ipyparallel as ranks: while a cell is watched, each writes into the directory of its run.

Only a path goes to them, over the channel that ipyparallel authenticates; what they write, they write as any
rank does. So they must see the directory: those of another machine need ``--ranks PATH`` on a common disk.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfmem_widget.display import resolve
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.process import Part, process_state
from hfmem_widget.session import Rank
from hfmem_widget.text import plain

ENGINE = "ipyparallel"

PATIENCE = 20.0
"""Seconds to wait for the engines, which may be busy: then they are not followed."""


class Engines:
    """The engines of one client of ipyparallel; raises `OptionError` if it is none, or has no engines."""

    def __init__(self, client: Any) -> None:
        if not (hasattr(client, "direct_view") and hasattr(client, "ids")):
            message = (
                f"%memwatch ranks takes a client of ipyparallel, not {plain(type(client).__name__)}"
            )
            raise OptionError(message)
        self._client = client
        if not len(self):
            message = "this client of ipyparallel has no engines yet"
            raise OptionError(message)

    def __len__(self) -> int:
        return len(self._client.ids)

    def follow(self, directory: Path) -> str:
        """Have each be a rank of a run, and return why one could not be."""
        world = len(self)
        return self._ask(lambda rank: (join, os.fspath(directory), rank, world))

    def leave(self) -> str:
        """Have none be a rank any more, and return why one could not be reached."""
        return self._ask(lambda _rank: (leave,))

    def _ask(self, call: Callable[[int], tuple[Any, ...]]) -> str:
        try:
            reports = [
                self._client[engine].apply_async(*call(rank))
                for rank, engine in enumerate(self._client.ids)
            ]
            for answer in reports:
                answer.get(PATIENCE)
        except Exception as error:  # noqa: BLE001  (whatever a cluster says, the cell goes on)
            return f"{type(error).__name__}: {plain(error)}"
        return ""


def join(directory: str, rank: int, world: int) -> None:
    """Be a rank of a run, if this process is none; called in an engine."""
    host, pid = plain(socket.gethostname(), 64), os.getpid()
    rank_of_engine = Rank(rank, rank, world, host=host, pid=pid, engine=ENGINE)
    resolve("hfmem_widget.drivers.follow:begin")(directory, rank_of_engine)


def leave() -> None:
    """Be a rank no more; called in an engine."""
    resolve("hfmem_widget.drivers.follow:end")()


@dataclass(slots=True)
class _InUse(Part):
    engines: Engines | None = None


def take(client: Any | None) -> Engines | None:
    """Have the engines of a client be ranks of whatever is watched from now on; with None those of none."""
    engines = process_state(_InUse).engines = None if client is None else Engines(client)
    return engines


def engines_in_use() -> Engines | None:
    """Return the engines that are ranks of what is watched."""
    return process_state(_InUse).engines
