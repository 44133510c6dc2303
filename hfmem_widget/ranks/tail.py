"""Follows the files of a run's directory, one after another."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hfmem_widget.monitor.ticker import Ticker, done_within
from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import open_own, streams, withdrawn
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

PATIENCE = 5.0
"""Seconds to wait for a thread."""


class Disk:
    """The calls to a file system, each of which takes milliseconds on a slow server."""

    listed = staticmethod(streams)
    opened = staticmethod(open_own)

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


def is_on_network(directory: Path) -> bool:
    """Return whether a directory is on a file system of another machine, as far as the system reports it."""
    import psutil

    place, kinds = Path(os.path.realpath(directory)), dict[Path, str]()
    with suppress(OSError):
        # Of two that are mounted at one place, the later hides the earlier.
        kinds = {Path(at.mountpoint): at.fstype for at in psutil.disk_partitions(all=True)}
    kind = next((kinds[above] for above in (place, *place.parents) if above in kinds), "")
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

AHEAD = 30.0
"""Seconds of the run by which one file may be read ahead of the others: all are put on one clock."""

MOST_FAULTS = 8
"""Passes in a row that may fail before following ends."""

TO_THE_END = 15.0
"""Seconds for which the last lines are read once the run is over."""


class Tail:
    """Feeds a collector with the new bytes of a directory's files, on a thread of its own.

    A round looks at every file once, in one pass or several: a pass that takes too long ends, and the next
    goes on where it stopped. `clock` is the wall clock, `timer` measures the length of a pass, and `runs`
    takes a rank and returns whether its process runs here.
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
        self.files: dict[str, File] = {}
        self._round: deque[File] = deque()
        self._scanned = -math.inf
        self._why = ""
        self._published_at = -math.inf
        self._faults = 0
        self._runs = runs
        self._seen_running: set[str] = set()
        self._missing: set[str] = set()
        self._pid = os.getpid()
        self._on_network = is_on_network(directory)
        self.ticker = Ticker(self.tick, POLL)
        self._reading = threading.Lock()

    @property
    def poll(self) -> float:
        """Seconds between two rounds."""
        return min(LONGEST_POLL, max(POLL, self.collector.roster.pace / 8))

    def is_over(self) -> bool:
        """Return whether all ranks have ended or are lost."""
        return self.collector.is_over(self._clock())

    def finish(self) -> None:
        """Stop following, read what is left for at most `TO_THE_END` seconds, and end the overview."""
        self.ticker.stop(PATIENCE)
        read: list[bool] = []
        try:
            # On a thread of ours: this one is the user's, and a server may never answer.
            done_within(TO_THE_END + PATIENCE, lambda: read.append(self._read_the_rest()))
            files, left = tuple(self.files.values()), tuple(self._round)  # the thread may go on
            late = {file.name for file in files if file.has_more or file.is_away or file in left}
            if late or read != [True]:  # not in time, or there was a fault of ours
                ranks = format_counted(len(late), "rank") if late else "the ranks"
                self.collector.recorder.note(
                    f"The last lines of {ranks} could not be read within {TO_THE_END:.0f} s: "
                    f"{plain(self.directory)} is slow, or cannot be reached. %memwatch open reads them."
                )
        finally:
            self.collector.finish(self._clock())

    def _read_the_rest(self) -> bool:
        is_done = self.catch_up(TO_THE_END)
        if is_done and self.collector.started_here:
            # Its ranks ran on this machine, whether or not there was time to see them run.
            self._seen_running.update(self.files)
            is_done = self.catch_up(TO_THE_END)
        return is_done

    def catch_up(self, patience: float = math.inf) -> bool:
        """Read all that there is now, here, and return whether that was done in so many seconds."""
        deadline = self._timer() + patience
        self._scanned = -math.inf
        self._round.clear()  # files that were looked at may have grown
        while (is_behind := self.read()) and self._timer() < deadline:
            pass
        self.collector.tick(self._clock(), self._behind(), looks=True)
        return not is_behind

    def tick(self) -> None:
        """Make one pass; called on the thread."""
        if os.getpid() != self._pid:
            self.ticker.stop(0.0)  # a forked child has nothing to follow
            return
        try:
            is_behind = self.read()
            self.ticker.interval = SOON if is_behind else self.poll
            if not is_behind and self.is_over():
                self.collector.finish(self._clock())
            self._faults = 0
        except Exception as error:  # noqa: BLE001  (a fault of ours costs a pass; those after it may be well)
            self._faults += 1
            if self._faults >= MOST_FAULTS:
                why = f"{type(error).__name__}: {plain(error)}"
                self.collector.recorder.note(f"The ranks are no longer followed ({why}).")
                self.ticker.stop(0.0)
        if not self.collector.session.running:
            self.ticker.stop(0.0)

    def read(self) -> bool:
        """Make one pass, after that of another thread, and return whether there is more to read."""
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
        self._round = self._round or deque(self._due())
        while self._round:
            self._look_at(self._round.popleft(), now)
            if self._timer() - began > LONGEST_PASS:
                break
        behind = self._behind()
        # A pass reads a part of many files; publishing the results takes as long as reading some.
        if not self._round or began - self._published_at > POLL:
            self._published_at = began
            self.collector.tick(self._clock(), behind)
        return bool(behind or self._round)

    def _due(self) -> list[File]:
        """Return the files that a round reads: those that may have grown, except those far ahead."""
        due: list[tuple[File, float]] = []
        for name, file in self.files.items():
            stream = self.collector.stream(name)
            if stream is not None and (stream.refused or stream.is_over):
                file.has_more = False
            else:
                due.append((file, stream.reached if stream and file.has_more else -math.inf))
        edge = min((reached for file, reached in due if file.has_more), default=0.0) + AHEAD
        return [file for file, reached in due if reached <= edge]

    def _behind(self) -> set[str]:
        return {name for name, file in self.files.items() if file.has_more}

    def _scan(self, now: float) -> None:
        listed = self._disk.listed(self.directory, self.files)
        for path in listed.paths:
            if path.name not in self.files:
                self.files[path.name] = File(path.name, os.fspath(path), now)
        for name in self.files.keys() - {path.name for path in listed.paths}:
            if withdrawn(self.directory, name).exists():
                del self.files[name]
                self.collector.forget(name)
        if listed.why and listed.why != self._why:
            self._why = listed.why
            self.collector.recorder.note(listed.why)

    def _gone(self) -> set[str]:
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

    def _look_at(self, file: File, now: float) -> None:
        """Read what is new in a file, also where a longer copy has taken its place."""
        data, written, was_read = b"", math.nan, True
        try:
            # What another machine has written to a file is seen only by opening it.
            if self._on_network or self._disk.stat(file.path).st_size > file.offset:
                descriptor, status = self._disk.opened(file.path)
                try:
                    written = status.st_mtime
                    if status.st_size > file.offset:
                        data = self._disk.read(descriptor, AT_ONCE, file.offset)
                finally:
                    os.close(descriptor)
        except FileNotFoundError:
            pass
        except OSError:  # it may be back at the next look
            was_read = False
        if data:
            # What a server's clock says is of use only for what was there before.
            is_known = not self._on_network or file.offset == 0 or file.has_more
            file.offset += len(data)
            self.collector.feed(file.name, data, written if is_known else math.nan)
        file.has_more = len(data) == AT_ONCE
        file.is_away = not was_read
        if not file.has_more and (was_read or now - file.looked > LOST):
            file.looked = now
            if file.name in self._missing:
                self._missing.remove(file.name)
                self.collector.is_gone(file.name)
        if (stream := self.collector.stream(file.name)) is not None:
            stream.looked_at = math.inf if stream.is_over else file.looked
