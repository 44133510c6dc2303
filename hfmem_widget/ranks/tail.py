"""Follows the files of a run's directory, one after another, or several at once on a slow server."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hfmem_widget.monitor.ticker import NOT_STARTED, Ticker, begun
from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import Streams, is_withdrawn, open_own, streams
from hfmem_widget.ranks.identity import runs_here, this_host
from hfmem_widget.ranks.roster import LOST
from hfmem_widget.session.rank_records import Rank
from hfmem_widget.text import format_counted, plain

AT_ONCE = 1 << 14
"""Bytes read of a file at once: less than `roster.KEPT` steps take, so that no step of a run that is
opened later is pushed out before all ranks have passed it."""

NETWORK = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "9p", "glusterfs")
)

MOUNTS = Path("/proc/self/mountinfo")

PATIENCE = 5.0
"""Seconds for which a thread is waited for."""


class Disk:
    """The calls to a file system, each of which takes milliseconds on a slow server."""

    def listed(self, directory: Path, read_before: Container[str]) -> Streams:
        """Return the files that may be read; those whose names are known were looked at before."""
        return streams(directory, read_before)

    def opened(self, path: str) -> tuple[int, os.stat_result]:
        """Return a descriptor of a file of one's own, and what it is; or raise `OSError`."""
        return open_own(path)

    def stat(self, path: str) -> os.stat_result:
        """Return what a file is, or raise `OSError`."""
        return os.stat(path, follow_symlinks=False)  # noqa: PTH116  (a Path takes twice as long)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Return some bytes of a file."""
        return os.pread(descriptor, size, offset)


@dataclass(slots=True)
class File:
    """A file that is followed."""

    name: str
    path: str
    looked: float  # wall clock up to which all was read that there was
    offset: int = 0  # bytes that were read
    has_more: bool = True  # to read already
    is_away: bool = False  # it could not be read the last time, although it is there

    def fetch(self, disk: Disk, *, is_stale: bool) -> Piece:
        """Return what there is beyond what was read, also where a longer copy has taken the file's place.

        If `is_stale`, a file must be opened to see what another machine has written to it.
        """
        try:
            return self._fetch(disk, is_stale=is_stale)
        except FileNotFoundError:
            return Piece(self)
        except OSError:  # it may be back at the next look
            return Piece(self, was_read=False)

    def _fetch(self, disk: Disk, *, is_stale: bool) -> Piece:
        if not is_stale and disk.stat(self.path).st_size <= self.offset:
            return Piece(self)
        descriptor, status = disk.opened(self.path)
        try:
            has_more = status.st_size > self.offset
            data = disk.read(descriptor, AT_ONCE, self.offset) if has_more else b""
        finally:
            os.close(descriptor)
        return Piece(self, data, status.st_mtime)


@dataclass(slots=True)  # frozen, to make one would take three times as long
class Piece:
    """What was read of a file at once."""

    file: File
    data: bytes = b""
    written: float = math.nan  # when the file was changed last, by the clock of its server
    was_read: bool = True  # False if it could not be read, although it is there


def fetched(
    files: deque[File], fetch: Callable[[File], Piece], is_late: Callable[[], bool], threads: int
) -> Iterator[Piece]:
    """Yield what files have got, as it comes, and take from `files` those that were looked at.

    At least one is; none any more once it is late. Other threads than this one only fetch, and have ended
    when nothing more is yielded.
    """

    def pieces() -> Iterator[Piece]:
        with suppress(IndexError):  # another thread took the last
            while True:
                yield fetch(files.popleft())
                if is_late():
                    break

    done: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
    wanted = min(threads, len(files)) if threads > 1 else 0
    helpers = _started(wanted, lambda: _put_all(pieces(), done))
    if not helpers:
        yield from pieces()
    try:
        for _ in helpers:
            while (piece := done.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
    finally:
        for helper in helpers:
            helper.stop(PATIENCE)


def _put_all(
    pieces: Iterator[Piece], done: queue.SimpleQueue[Piece | BaseException | None]
) -> None:
    """Put some pieces, what is raised meanwhile, and None at the end."""
    try:
        for piece in pieces:
            done.put(piece)
    except BaseException as error:  # noqa: BLE001  (it is raised where the pieces are waited for)
        done.put(error)
    done.put(None)


def _started(count: int, work: Callable[[], None]) -> list[Ticker]:
    """Return so many threads that do something once; fewer where no more are to be had.

    Not those of a `ThreadPoolExecutor`: they are waited for when Python ends, and a server may never answer.
    """
    helpers: list[Ticker] = []
    with suppress(*NOT_STARTED):
        for _ in range(count):
            helpers.append(begun(work))  # noqa: PERF401  (those before one that fails stay)
    return helpers


def is_on_network(directory: Path) -> bool:
    """Return whether a directory lies on a file system of another machine, as far as Linux reports it."""
    best, kind = "", ""
    place = os.path.realpath(directory)
    with (
        suppress(OSError),
        MOUNTS.open(encoding="utf-8", errors="replace") as mounts,
    ):
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            point = fields.split(" ")[4].replace("\\040", " ")
            is_above = place == point or place.startswith(point.rstrip("/") + "/")
            if is_above and len(point) >= len(best):
                best, kind = point, rest.split(" ")[0]
    return kind in NETWORK or kind.startswith("fuse.")


POLL = 0.25
"""Seconds between two rounds over all files, where every rank writes once a second."""

LONGEST_POLL = 1.0
"""Seconds between two rounds over very many ranks, which write less often."""

SCAN_EVERY = 0.9
"""Seconds between two looks for new files: a little less than four rounds."""

LONGEST_PASS = 0.05
"""Seconds of a pass; the rest of the round is read `SOON` after it."""

SOON = 0.01

MOST_THREADS = 8
"""Threads that read side by side where a round on one thread takes longer than the time between two."""

AHEAD = 30.0
"""Seconds of the run by which one file may be read ahead of the others: all are put on one clock."""

MOST_FAULTS = 8
"""Passes in a row that may fail before the ranks are followed no longer."""

TO_THE_END = 15.0
"""Seconds for which the last lines are read once the run is over."""


class Tail:
    """Feeds a collector with what the files of a directory have got, on a thread of its own.

    A round looks at every file once, in one pass or several. Where the files lie on a slow server, more
    `threads` fetch what is in them side by side; one alone feeds the collector. `clock` is the wall clock,
    `timer` measures the length of a pass, and `runs` takes a rank and returns whether its process runs here.
    """

    def __init__(
        self,
        directory: Path,
        collector: Collector,
        *,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
        runs: Callable[[Rank], bool] = runs_here,
    ) -> None:
        self.directory, self.collector = directory, collector
        self._disk = disk or Disk()
        self._clock, self._timer = clock, timer
        self._files: dict[str, File] = {}
        self._round: deque[File] = deque()
        self.threads, self._waited = 1, 0.0
        self._scanned = -math.inf
        self._why = ""
        self._published_at = -math.inf
        self._faults = 0
        self._runs = runs
        self._seen_running: set[str] = set()
        self._missing: set[str] = set()
        self._pid = os.getpid()
        self._on_network = is_on_network(directory)
        self._ticker = Ticker(self.tick, POLL)
        self._reading = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The files that were found."""
        return tuple(self._files)

    @property
    def poll(self) -> float:
        """Seconds between two rounds."""
        return min(LONGEST_POLL, max(POLL, self.collector.pace / 8))

    def is_over(self) -> bool:
        """Return whether all ranks have ended or are lost."""
        return self.collector.is_over(self._clock())

    def start(self) -> None:
        """Begin to follow."""
        self._ticker.start()

    def stop(self, timeout: float = PATIENCE) -> None:
        """Follow no longer."""
        self._ticker.stop(timeout)

    def finish(self) -> None:
        """Stop following, read what is left for at most `TO_THE_END` seconds, and end the overview."""
        self._ticker.stop(PATIENCE)
        try:
            is_done = self.catch_up(TO_THE_END)
            if is_done and self.collector.started_here:
                # Its ranks ran on this machine, whether or not there was time to see them run.
                self._seen_running.update(self._files)
                is_done = self.catch_up(TO_THE_END)
            late = {file.name for file in self._files.values() if file.has_more or file.is_away}
            late.update(file.name for file in self._round)
            if late or not is_done:
                ranks = format_counted(len(late), "rank") if late else "the ranks"
                self.collector.recorder.note(
                    f"The last lines of {ranks} could not be read within {TO_THE_END:.0f} s: "
                    f"{plain(self.directory)} is slow, or cannot be reached. %memwatch open reads them."
                )
        finally:
            self.collector.finish(self._clock())

    def catch_up(self, patience: float = math.inf) -> bool:
        """Read all that there is now, here, and return whether that was done in so many seconds."""
        deadline = self._timer() + patience
        self._scanned = -math.inf
        self._round.clear()  # files that were looked at may have got more
        while (is_behind := self.read()) and self._timer() < deadline:
            pass
        self.collector.tick(self._clock(), self._behind(), looks=True)
        return not is_behind

    def tick(self) -> None:
        """Make one pass; called on the thread."""
        if os.getpid() != self._pid:
            self._ticker.stop(0.0)  # a forked child has nothing to follow
            return
        try:
            is_behind = self.read()
            self._ticker.interval = SOON if is_behind else self.poll
            if not is_behind and self.is_over():
                self.collector.finish(self._clock())
            self._faults = 0
        except Exception as error:  # noqa: BLE001  (a fault of ours costs a pass; those after it may be well)
            self._faults += 1
            if self._faults >= MOST_FAULTS:
                why = f"{type(error).__name__}: {plain(error)}"
                self.collector.recorder.note(f"The ranks are not followed any more ({why}).")
                self._ticker.stop(0.0)
        if not self.collector.session.running:
            self._ticker.stop(0.0)

    def read(self) -> bool:
        """Make one pass over the files, and return whether there is more to read already.

        A pass of another thread is waited for, at most `PATIENCE` seconds: both would read the same.
        """
        if not self._reading.acquire(timeout=PATIENCE):
            return True
        try:
            return self._pass()
        finally:
            self._reading.release()

    def _pass(self) -> bool:
        began, now = self._timer(), self._clock()
        if began - self._scanned >= SCAN_EVERY:
            self._scanned = began
            self._scan(now)
            self._missing |= self._gone()
        if not self._round:
            self._waited = 0.0
            self._round.extend(self._due())
        threads = self.threads
        deadline = began + (LONGEST_PASS if threads == 1 else self.poll)
        pieces = fetched(
            self._round,
            lambda file: file.fetch(self._disk, is_stale=self._on_network),
            lambda: self._timer() > deadline,
            threads,
        )
        asked_at = self._timer()
        for piece in pieces:
            self._waited += threads * (self._timer() - asked_at)
            self._take(piece, now)
            asked_at = self._timer()
        # What a thread waits in a round, and that round may last as long as the time between two.
        needed = min(MOST_THREADS, math.ceil(self._waited / self.poll))
        self.threads = max(1, needed, threads if self._round else 1)
        behind = self._behind()
        # A pass reads a part of many files; publishing the results takes as long as reading some.
        if not self._round or began - self._published_at > POLL:
            self._published_at = began
            self.collector.tick(self._clock(), behind)
        return bool(behind or self._round)

    def _due(self) -> list[File]:
        """Return the files that a round looks at: those that may have got more, but for what is far ahead."""
        due: list[tuple[File, float]] = []
        for name, file in self._files.items():
            stream = self.collector.stream(name)
            if stream is not None and (stream.refused or stream.is_over):
                file.has_more = False
            else:
                due.append((file, stream.reached if stream and file.has_more else -math.inf))
        edge = min((reached for file, reached in due if file.has_more), default=0.0) + AHEAD
        return [file for file, reached in due if reached <= edge]

    def _behind(self) -> set[str]:
        return {name for name, file in self._files.items() if file.has_more}

    def _scan(self, now: float) -> None:
        listed = self._disk.listed(self.directory, self._files)
        names = {path.name: path for path in listed.paths}
        for name, path in names.items():
            if name not in self._files:
                self._files[name] = File(name, os.fspath(path), now)
        for name in self._files.keys() - names.keys():
            if is_withdrawn(self.directory, name):
                del self._files[name]
                self.collector.forget(name)
        if listed.why and listed.why != self._why:
            self._why = listed.why
            self.collector.recorder.note(listed.why)

    def _gone(self) -> set[str]:
        """Return the files without an end whose processes ran here, and do not any more."""
        here = this_host()
        waits = {
            name: stream.rank
            for name, stream in self.collector.all_streams.items()
            if stream.rank.host == here and not (stream.is_over or stream.is_gone)
        }
        running = {name for name, rank in waits.items() if self._runs(rank)}
        gone = (self._seen_running & waits.keys()) - running
        self._seen_running = running | gone  # what is still to be read may be its end
        return gone

    def _take(self, piece: Piece, now: float) -> None:
        """Add what was read of a file after some time of the wall clock."""
        file, name = piece.file, piece.file.name
        if piece.data:
            # What a server's clock says is of use only for what was there before.
            is_known = not self._on_network or file.offset == 0 or file.has_more
            file.offset += len(piece.data)
            file.has_more = len(piece.data) == AT_ONCE
            self.collector.feed(name, piece.data, piece.written if is_known else math.nan)
        else:
            file.has_more = False
        file.is_away = not piece.was_read
        if not file.has_more and (piece.was_read or now - file.looked > LOST):
            file.looked = now
            if name in self._missing:
                self._missing.remove(name)
                self.collector.is_gone(name)
        if (stream := self.collector.stream(name)) is not None:
            stream.looked_at = math.inf if stream.is_over else file.looked
