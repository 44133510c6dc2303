"""A distributed run: its ranks, each as a session, and all of them in one."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hfmem_widget.display import Shown, resolve
from hfmem_widget.errors import OptionError
from hfmem_widget.options import expanded, path_of
from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import read_run
from hfmem_widget.ranks.tail import PATIENCE, Tail
from hfmem_widget.recording.file import checked_path, file_error, is_pickle, read
from hfmem_widget.session import Finding, RankRow, Session
from hfmem_widget.session.model import data_frame
from hfmem_widget.text import format_counted, plain, wrong_value

if TYPE_CHECKING:
    import pandas as pd

SESSIONS_KEPT = 4
"""Ranks whose whole sessions are remembered."""

OPENING = 10.0
"""Seconds for which opening a run waits; a thread reads the rest."""


class Run(Shown):
    """All ranks of a distributed run, read from its directory; it grows as long as the ranks write.

    Parameters
    ----------
    directory : path-like
    label : str, optional
        By default as ``run.json`` says, or else the name of the directory.
    started_at : float, optional
        Wall clock at time zero; by default when the first rank began.
    started_here : bool, optional
        Whether this process has started the ranks, and calls `finish` when what it started has ended.

    Attributes
    ----------
    directory : Path
    id : str
        As ``run.json`` says.
    overview : Session
        All ranks in one session: devices ``ranks`` and ``rank:N``.
    recorder : Recorder
        What writes the overview, and notifies its listeners.
    collector : Collector
        What was read of their files.

    Raises
    ------
    OptionError
        If it is not the directory of a run.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.ranks.run:run_bundle"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        label: str = "",
        started_at: float | None = None,
        started_here: bool = False,
    ) -> None:
        self.directory = expanded(os.fspath(directory))
        about = read_run(self.directory)
        self.id = about.run
        label = label or about.label or plain(self.directory.name)
        self.collector = Collector(
            label, run=about.run, started_at=started_at, started_here=started_here
        )
        self._tail = Tail(self.directory, self.collector)
        self._sessions: dict[tuple[str, int], Session] = {}
        self.recorder, self.overview = self.collector.recorder, self.collector.session
        self.overview.run = weakref.proxy(self)
        self._stopped = weakref.finalize(self, self._tail.ticker.stop, 0.0)

    @property
    def world(self) -> int:
        """How many ranks there should be: those of the newest attempt; 0 before the first was seen."""
        return self.collector.roster.world

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts of the ranks, in the order of their ranks."""
        return tuple({stream.rank.host: None for stream in self.collector.streams.values()})

    @property
    def running(self) -> bool:
        """True until all ranks have ended or are lost."""
        return self.overview.running

    @property
    def ranks(self) -> Mapping[int, RankRow]:
        """How each rank stands, by its number; bytes."""
        return {row.rank: row for row in self.collector.rows()}

    @property
    def worst(self) -> int | None:
        """The rank with the highest peak; None while none is known."""
        with_peak = [row for row in self.collector.rows() if row.peak >= 0]
        return max(with_peak, key=lambda row: row.peak).rank if with_peak else None

    @property
    def findings(self) -> list[Finding]:
        """What was judged over ranks."""
        return list(self.overview.findings)

    def __repr__(self) -> str:
        state = "running" if self.running else "finished"
        return f"<Run {self.overview.label!r} {state}: {format_counted(self.world, 'rank')}>"

    def __len__(self) -> int:
        return len(self.collector.streams)

    def start(self) -> None:
        """Follow the ranks on a thread, until they have ended."""
        self._tail.ticker.start()

    @property
    def was_heard(self) -> bool:
        """Whether every rank that should be there was seen, and heard to its end."""
        streams = self.collector.streams.values()
        return len(streams) >= self.world and all(stream.is_over for stream in streams)

    def look(self, patience: float = float("inf")) -> None:
        """Read what there is now, here, for at most so many seconds; a run that has ended is finished."""
        if self._tail.catch_up(patience) and self._tail.is_over():
            self.finish()

    def finish(self, *, was_interrupted: bool = False) -> None:
        """Read what is left, and end the overview."""
        self.collector.was_interrupted = was_interrupted
        self._tail.finish()

    def close(self) -> None:
        """Follow the ranks no longer; what is known stays."""
        self._tail.ticker.stop(PATIENCE)

    def session(self, rank: int) -> Session:
        """Return all that one rank has written, as a session of its own.

        Raises
        ------
        OptionError
            If no such rank was seen.
        """
        stream = self.collector.streams.get(rank)
        if stream is None:
            seen = ", ".join(map(str, list(self.collector.streams)[:8])) or "none yet"
            raise wrong_value(rank, "rank", f"one that was seen ({seen})")
        path = self.directory / stream.name
        key = stream.name, path.stat().st_size if path.is_file() else -1
        if key not in self._sessions:
            self._sessions[key] = read(path)
            while len(self._sessions) > SESSIONS_KEPT:
                del self._sessions[next(iter(self._sessions))]
        return self._sessions[key]

    def skew(self) -> pd.DataFrame:
        """Return how the peaks of each phase spread over the ranks, in bytes, over their last steps."""
        rows = self.collector.phases()
        figures = [(row.low, row.median, row.high, row.rank) for row in rows]
        kinds = [row.kind for row in rows]
        return data_frame(figures, ["low", "median", "high", "rank"], kinds, "phase")

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each rank, indexed by its number; bytes and seconds."""
        rows = self.collector.rows()
        names = [field.name for field in fields(RankRow)][1:]
        ranks = np.array([row.rank for row in rows], dtype=int)
        return data_frame([astuple(row)[1:] for row in rows], names, ranks, "rank")

    def figure(self) -> Any:
        """Return the overview as a `plotly.graph_objects.Figure`."""
        return self.overview.figure()

    def report(self, path: str | os.PathLike[str], *, static: bool = False) -> Path:
        """Write a page for a browser, complete in one new file; see `Session.report`."""
        return self.overview.report(path, static=static)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Copy what the ranks have written to a new directory, for `hfmem_widget.open`, and return it.

        Raises
        ------
        OptionError
            If something is there already, or it cannot be written.
        """
        place = path_of(path)
        if os.path.lexists(place):
            message = f"{plain(place)} already exists and is never overwritten; choose another name"
            raise OptionError(message)
        try:
            place.mkdir(mode=0o700)
            for name in ("run.json", *self._tail.files):
                # With the time of its last line: it separates a silent rank from a clock that is off.
                shutil.copy2(self.directory / name, place / name, follow_symlinks=False)
        except OSError as error:
            raise file_error("written", place, error) from None
        return place


def open(path: str | os.PathLike[str]) -> Any:  # noqa: A001  (as in PIL, tarfile, xarray)
    """Return the session of a recording, the run of a directory, or a snapshot of torch; each shows itself.

    A recording that is still being written gives the session so far, which is `running`; open it again for
    more. A run is followed as long as its ranks write; one that takes longer than 10 s to read is `running`
    until it was read, and `look()` waits for that. Lines that are damaged are left out, and a note says how
    many.

    Parameters
    ----------
    path : path-like
        Written by ``session.save(path)``, ``%%memwatch --record``, ``watch(record=...)``; or a directory, by
        ``%%memwatch --ranks`` or ``hfmem run``; or by ``torch.cuda.memory._dump_snapshot``. Nothing that is
        in a snapshot is run, also if somebody else made it.

    Returns
    -------
    Session, Run or Snapshot

    Raises
    ------
    OptionError
        If there is no such file, it is no recording, or of a newer version; if a directory is not that of a
        run, or others may write there.

    Examples
    --------
    >>> session = hfmem_widget.open("fine-tune.hfmem.jsonl")
    >>> session.peak("cuda:0/allocated")
    6.99 GiB (7,507,148,800 bytes)
    >>> run = hfmem_widget.open("/shared/run1")
    >>> run.worst
    417
    """
    place = checked_path(path)
    if not place.is_dir():
        snapshots = "hfmem_widget.features.stacks.snapshot:open_snapshot"
        return resolve(snapshots)(place) if is_pickle(place) else read(place)
    run = Run(place)
    run.look(OPENING)
    if run.running:
        run.start()
    return run


def overview_of(directory: Path) -> Session:
    """Return the overview of a run so far, without following it, or raise `OptionError` if there is none."""
    run = Run(directory)
    run.look()
    if run.overview.ranks is None:
        message = f"no rank has written in {plain(directory)} yet"
        raise OptionError(message)
    return run.overview


def run_bundle(run: Run) -> Mapping[str, str]:
    """Return what Jupyter shows of a run: its overview; a line before any rank was seen."""
    from hfmem_widget.view.card import session_bundle

    if run.overview.ranks is None:
        return {"text/plain": repr(run)}
    return session_bundle(run.overview)
