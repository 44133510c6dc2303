"""Follows the ranks that a watched cell starts, and shows all of them in one card."""

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
from hfmem_widget.monitor.companion import Companion
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

EVERY = 0.5  # seconds between two searches, until the first rank is found
PATIENCE = 20.0  # seconds to wait for the engines; busy engines are not followed


class FollowedRanks(Companion):
    """Sets the environment that makes ranks record themselves, and collects them; `clock` returns seconds."""

    stands_above = True

    def __init__(
        self, options: WatchOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        named = options.ranks if isinstance(options.ranks, str) else ""
        self._is_named = bool(named)
        self._directory = _unoccupied(expanded(named)) if named else unused()
        self._lent = Lent(self._directory, options)
        self._label = options.label
        self._is_quiet, self._has_chart = options.quiet, options.chart
        self._clock = clock
        self._due = 0.0
        self._was_interrupted = False
        self._looking = threading.Lock()
        self._run: Run | None = None
        self._client: Any | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Set the environment, and look for ranks from now on."""
        self._label = self._label or span.label
        with suppress(OSError):  # it does not exist yet
            if self._is_named and (why := refusal(self._directory)):
                recorder.note(f"No rank can write: {why}.")
        if self._lent.begin():
            recorder.subscribe(self._look)
            self._client = client_in_use()
            if self._client is not None and (why := ask_engines(self._client, self._directory)):
                recorder.note(f"The engines of ipyparallel are not followed ({why}).")

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Restore the environment, and look for the last time."""
        recorder.unsubscribe(self._look)
        self._lent.end()
        if self._client is not None and (why := ask_engines(self._client, None)):
            recorder.note(
                f"The engines of ipyparallel were not told that the cell has ended ({why})."
            )
        self._due = 0.0
        self._was_interrupted = isinstance(error, KeyboardInterrupt)
        self._look(recorder.session)

    def report(self, session: Session, span: Span) -> Mapping[str, Any] | None:
        """Read the last data of the ranks, and return the card of all of them."""
        self._lent.end()  # again, in case `end` has failed
        run = self._run
        if run is None:
            return None
        run.finish(was_interrupted=self._was_interrupted)
        # Span 0 keeps them off the cell's card: the ranks' own card shows them.
        session.findings += [replace(finding, span_id=0) for finding in run.findings]
        if self._is_named:
            session.notes.append(LocalNote(f"The ranks' recordings are in {plain(run.directory)}."))
        if self._is_quiet:
            return None
        from hfmem_widget.view.card import card_of

        return card_of(run.overview, with_chart=self._has_chart)

    def _look(self, session: Session, samples: Sequence[Sample] = ()) -> None:
        """Begin to collect once a rank has made the directory; under a lock, so that only one run is made."""
        with self._looking:
            if self._run is not None or self._clock() < self._due:
                return
            self._due = self._clock() + EVERY
            if is_run(self._directory):
                # Imported late: it takes a sixth of the time that the first watch of a kernel may take.
                from hfmem_widget.ranks.run import Run

                started = session.started_at
                self._run = Run(
                    self._directory, label=self._label, started_at=started, started_here=True
                )
                if not self._is_named:
                    # When the run is no longer referenced; at the latest at exit.
                    weakref.finalize(self._run, _remove, self._directory, os.getpid())
                self._run.start()
                session.run = self._run


def _unoccupied(directory: Path) -> Path:
    numbered = (directory.with_name(f"{directory.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([directory], numbered) if not is_run(path))


def ask_engines(client: Any, directory: Path | None) -> str:
    """Make each engine of a client a rank of a run, or no longer one if None; return why one failed, or "".

    Only a path is sent to them, over ipyparallel's authenticated channel, so they must have access to the
    directory: engines on another machine need ``--ranks PATH`` on a shared disk.
    """
    try:
        engines, results = list(client.ids), []
        for rank, engine in enumerate(engines):
            call = (join, os.fspath(directory), rank, len(engines)) if directory else (leave,)
            results.append(client[engine].apply_async(*call))
        for result in results:
            result.get(PATIENCE)
    except Exception as error:  # noqa: BLE001  (a cluster may raise anything; the cell goes on)
        return f"{type(error).__name__}: {plain(error)}"
    return ""


def join(directory: str, rank: int, world: int) -> None:
    """Begin to record this engine as a rank of a run, if it is not one; called in the engine."""
    rank_of_engine = Rank(
        rank, rank, world, host=this_host(), pid=os.getpid(), engine="ipyparallel"
    )
    resolve("hfmem_widget.drivers.follow:begin")(directory, rank_of_engine)


def leave() -> None:
    """End the recording of this engine; called in the engine."""
    resolve("hfmem_widget.drivers.follow:end")()


@dataclass(slots=True)
class _InUse(Part):
    client: Any = None


def take(client: Any | None) -> int:
    """Make the engines of a client ranks of all later watches, and return their number; None ends this.

    Raise `OptionError` for other objects, or without engines.
    """
    if client is not None and not (hasattr(client, "direct_view") and hasattr(client, "ids")):
        kind = plain(type(client).__name__)
        raise OptionError(f"%memwatch ranks takes a client of ipyparallel, not {kind}")
    if client is not None and not client.ids:
        raise OptionError("this client of ipyparallel has no engines yet")
    process_state(_InUse).client = client
    return 0 if client is None else len(client.ids)


def client_in_use() -> Any | None:
    """Return the client whose engines `take` has made ranks."""
    return process_state(_InUse).client


def unused() -> Path:
    """Return the path of a directory that does not exist, with a random name; it is removed at exit."""
    directory = Path(tempfile.gettempdir()) / f"hfmem-{secrets.token_hex(8)}"
    # At exit, because a child process may begin to write after the end of its cell.
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
