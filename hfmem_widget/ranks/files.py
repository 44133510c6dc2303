"""The files of a run's directory as they are read: one after another, or several at once on a slow server."""

from __future__ import annotations

import math
import os
import queue
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hfmem_widget.monitor.ticker import NOT_STARTED, Ticker, begun
from hfmem_widget.ranks.directory import Streams, open_own, streams

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
