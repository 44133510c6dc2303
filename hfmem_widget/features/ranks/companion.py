"""Has the ranks that a watched cell starts followed, and shows all of them in its place."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfmem_widget.display import resolve
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.process import Part, process_state
from hfmem_widget.options import WatchOptions, expanded
from hfmem_widget.ranks.directory import is_run, refusal
from hfmem_widget.ranks.environment import Lent
from hfmem_widget.ranks.identity import this_host
from hfmem_widget.session import LocalNote, Rank, Recorder, Sample, Session, Span
from hfmem_widget.text import plain

if TYPE_CHECKING:
    from hfmem_widget.ranks.run import Run

EVERY = 0.5
"""Seconds between two looks for ranks, as long as there are none."""

ENGINE = "ipyparallel"

PATIENCE = 20.0
"""Seconds to wait for the engines, which may be busy: then they are not followed."""


class FollowedRanks(Companion):
    """Lends the environment in which ranks follow themselves, and collects them; `clock` returns seconds."""

    stands_above = True

    def __init__(
        self,
        options: WatchOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        named = options.ranks if isinstance(options.ranks, str) else ""
        self._is_named = bool(named)
        self._directory = _free(expanded(named)) if named else unused()
        self._lent = Lent(self._directory, options)
        self._label = options.label
        self._is_quiet, self._has_chart = options.quiet, options.chart
        self._clock = clock
        self._due = 0.0
        self._was_interrupted = False
        self._looking = threading.Lock()
        self._run: Run | None = None
        self._engines: Engines | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Lend the environment, and look for ranks from now on."""
        self._label = self._label or span.label
        with suppress(OSError):  # it is to be made
            if self._is_named and (why := refusal(self._directory)):
                recorder.note(f"No rank can write: {why}.")
        if self._lent.begin():
            recorder.subscribe(self._look)
            self._engines = engines_in_use()
            if self._engines is not None and (why := self._engines.follow(self._directory)):
                recorder.note(f"The engines of ipyparallel are not followed ({why}).")

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Put the environment back, and look for the last time."""
        recorder.unsubscribe(self._look)
        self._lent.end()
        if self._engines is not None and (why := self._engines.leave()):
            recorder.note(
                f"The engines of ipyparallel were not told that the cell has ended ({why})."
            )
        self._due = 0.0
        self._was_interrupted = isinstance(error, KeyboardInterrupt)
        self._look(recorder.session)

    def report(self, session: Session, span: Span) -> Mapping[str, Any]:
        """Read what the ranks wrote last, and return the card of all of them."""
        self._lent.end()  # where a fault of ours has kept `end` from it
        run = self._run
        if run is None:
            return NOTHING
        run.finish(was_interrupted=self._was_interrupted)
        # Of no span here: the ranks' own card shows them.
        session.findings += [replace(finding, span_id=0) for finding in run.findings]
        if self._is_named:
            session.notes.append(LocalNote(f"The ranks' recordings are in {plain(run.directory)}."))
        if self._is_quiet:
            return NOTHING
        from hfmem_widget.view.card import card_of

        return card_of(run.overview, with_chart=self._has_chart)

    def _look(self, session: Session, samples: Sequence[Sample] = ()) -> None:
        """Begin to collect once a rank has made the directory; one at a time, or one would take it away."""
        with self._looking:
            if self._run is not None or self._clock() < self._due:
                return
            self._due = self._clock() + EVERY
            if is_run(self._directory):
                # Only now: it takes a sixth of what the first watch of a kernel may cost.
                from hfmem_widget.ranks.run import Run

                self._run = Run(
                    self._directory,
                    label=self._label,
                    started_at=session.started_at,
                    started_here=True,
                )
                if not self._is_named:
                    # Once nobody has the run any more; at the latest with the process.
                    weakref.finalize(self._run, _remove, self._directory, os.getpid())
                self._run.start()
                session.run = self._run


def _free(directory: Path) -> Path:
    """Return a directory, or one with a number where there is a run in it, as of a cell that is run again."""
    numbered = (directory.with_name(f"{directory.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([directory], numbered) if not is_run(place))


class Engines:
    """The engines of one client of ipyparallel; raises `OptionError` if it is none, or has no engines.

    Only a path goes to them, over the channel that ipyparallel authenticates. So they must see the
    directory: those of another machine need ``--ranks PATH`` on a common disk.
    """

    def __init__(self, client: Any) -> None:
        if not (hasattr(client, "direct_view") and hasattr(client, "ids")):
            raise OptionError(
                f"%memwatch ranks takes a client of ipyparallel, not {plain(type(client).__name__)}"
            )
        self._client = client
        if not len(self):
            raise OptionError("this client of ipyparallel has no engines yet")

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
    rank_of_engine = Rank(rank, rank, world, host=this_host(), pid=os.getpid(), engine=ENGINE)
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


def unused() -> Path:
    """Return a directory that is not there, under a name that nobody can guess; it goes with this process."""
    directory = Path(tempfile.gettempdir()) / f"hfmem-{secrets.token_hex(8)}"
    # A child to which it was given may begin after its cell.
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
