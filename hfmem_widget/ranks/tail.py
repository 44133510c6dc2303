"""Follows the files of a run's directory: the only reader of directories."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import Streams, is_withdrawn, open_own, streams
from hfmem_widget.text import plain

POLL = 0.25
"""Seconds between two passes, where every rank writes once a second."""

LONGEST_POLL = 1.0
"""Seconds between two passes over very many ranks, which write less often."""

SCAN_EVERY = 0.9
"""Seconds between two looks for new files: a little less than four passes."""

LONGEST_PASS = 0.05
"""Seconds of a pass; the rest is read `SOON` after it."""

SOON = 0.01

AT_ONCE = 1 << 16
"""Bytes read of a file at once."""

AHEAD = 30.0
"""Seconds of the run by which one file may be read ahead of the others: all are put on one clock."""

NETWORK = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "9p", "glusterfs")
)

PATIENCE = 5.0

MOUNTS = Path("/proc/self/mountinfo")


@dataclass(slots=True)
class _File:
    """A file that is followed: how much of it was read, and which file that was."""

    path: Path
    offset: int = 0
    identity: tuple[int, int] | None = None
    has_more: bool = True
    was_reread: bool = False


class Tail:
    """Feeds a collector with what the files of a directory have got, on a thread of its own.

    Parameters
    ----------
    directory : Path
    collector : Collector
    listed : callable, optional
        Takes the directory and returns the files that may be read.
    opened : callable, optional
        Takes a path and returns a descriptor, or raises `OSError`.
    clock : callable, optional
        Wall clock, seconds since the epoch.
    timer : callable, optional
        Seconds, for the length of a pass.
    """

    def __init__(
        self,
        directory: Path,
        collector: Collector,
        *,
        listed: Callable[[Path], Streams] = streams,
        opened: Callable[[Path], int] = open_own,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.directory, self.collector = directory, collector
        self._listed, self._opened = listed, opened
        self._clock, self._timer = clock, timer
        self._files: dict[str, _File] = {}
        self._scanned = -SCAN_EVERY
        self._next, self._why = 0, ""
        self._pid = os.getpid()
        self._on_network = is_on_network(directory)
        self._ticker = Ticker(self.tick, POLL)
        self._reading = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._ticker.alive and not self._ticker.stopping

    @property
    def names(self) -> tuple[str, ...]:
        """The files that were found."""
        return tuple(self._files)

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
        """Stop following, read what is left for at most `PATIENCE` seconds, and end the overview."""
        self.stop()
        self.catch_up(PATIENCE)
        self.collector.finish(self._clock())

    def catch_up(self, patience: float = float("inf")) -> None:
        """Read all that there is now, here."""
        deadline = self._timer() + patience
        while self.read() and self._timer() < deadline:
            pass
        self.collector.tick(self._clock(), looks=True)

    def tick(self) -> None:
        """Make one pass; called on the thread."""
        if os.getpid() != self._pid:
            self._ticker.stop(0.0)  # a forked child has nothing to follow
            return
        try:
            is_behind = self.read()
            poll = min(LONGEST_POLL, max(POLL, self.collector.pace / 8))
            self._ticker.interval = SOON if is_behind else poll
            if not is_behind and self.collector.is_over(self._clock()):
                self.collector.finish(self._clock())
        except Exception as error:  # noqa: BLE001  (a fault of ours is one sentence)
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
            return False
        try:
            return self._pass()
        finally:
            self._reading.release()

    def _pass(self) -> bool:
        now = self._timer()
        if now - self._scanned >= SCAN_EVERY:
            self._scanned = now
            self._scan()
        deadline = now + LONGEST_PASS
        names = list(self._files)
        start = self._next if self._next < len(names) else 0
        order = names[start:] + names[:start]
        floor = self._floor()
        done = 0
        for name in order:
            done += 1
            file = self._files[name]
            if file.has_more and self.collector.reached(name) > floor + AHEAD:
                continue
            self._read(name, file)
            if self._timer() > deadline:
                break
        self._next = (start + done) % max(1, len(names))
        behind = {name for name, file in self._files.items() if file.has_more}
        unread = order[done:]
        self.collector.tick(self._clock(), behind)
        return bool(behind or unread)

    def _floor(self) -> float:
        """Return how far the slowest of those files has come of which there is more to read."""
        times = (
            self.collector.reached(name) for name, file in self._files.items() if file.has_more
        )
        return min(times, default=float("inf"))

    def _scan(self) -> None:
        found = self._listed(self.directory)
        for path in found.paths:
            if path.name not in self._files:
                self._files[path.name] = _File(path)
        for name in self._files.keys() - {path.name for path in found.paths}:
            if is_withdrawn(self.directory, name):
                del self._files[name]
                self.collector.restart(name)
        if found.why and found.why != self._why:
            self._why = found.why
            self.collector.recorder.note(found.why)

    def _read(self, name: str, file: _File) -> None:
        if not self.collector.wants(name):
            file.has_more = False
            return
        try:
            data, written = self._new_bytes(name, file)
        except OSError:  # it may be back at the next pass
            file.has_more = False
            return
        if data:
            # What a server's clock says is of use only for what was there before.
            is_known = not self._on_network or file.offset == 0 or file.has_more
            file.offset += len(data)
            file.has_more = len(data) == AT_ONCE
            self.collector.feed(name, data, written if is_known else float("nan"))
        else:
            file.has_more = False

    def _new_bytes(self, name: str, file: _File) -> tuple[bytes, float]:
        """Return what a file has beyond what was read, and when it was written."""
        if not self._on_network:
            # There an attribute may be of half a minute ago, unless the file is opened.
            status = file.path.stat(follow_symlinks=False)
            is_same = file.identity == (status.st_dev, status.st_ino)
            if is_same and status.st_size == file.offset:
                return b"", status.st_mtime
        descriptor = self._opened(file.path)
        try:
            status = os.fstat(descriptor)
            identity = status.st_dev, status.st_ino
            if status.st_size < file.offset or file.identity not in {None, identity}:
                self._begin_again(name, file)
            file.identity = identity
            if not self.collector.wants(name):
                return b"", status.st_mtime
            return os.pread(descriptor, AT_ONCE, file.offset), status.st_mtime
        finally:
            os.close(descriptor)

    def _begin_again(self, name: str, file: _File) -> None:
        """Read a file that was cut or replaced from its beginning, once."""
        if file.was_reread:
            file.offset = 1 << 62
            return
        file.was_reread, file.offset = True, 0
        self.collector.restart(name)
        self.collector.recorder.note(f"{plain(name)} was cut or replaced, and is read again.")


def is_on_network(directory: Path) -> bool:
    """Return whether a directory lies on a file system of another machine, as far as Linux tells."""
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
