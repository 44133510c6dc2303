"""The file of a recording: it only grows, and is compressed in members once it is complete."""

from __future__ import annotations

import errno
import gzip
import math
import mmap
import os
import stat
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hfmem_widget.errors import OptionError
from hfmem_widget.options import expanded, path_of
from hfmem_widget.recording.limits import ENDINGS, LARGEST_MEMBER, MEMBER, MOST_RATIO, SUFFIX
from hfmem_widget.session import Session
from hfmem_widget.text import format_bytes, plain, readable, wrong_value

if TYPE_CHECKING:
    from hfmem_widget.recording.reader import StreamReader

_recorded: dict[Path, bool] = {}
"""The paths that this process has recorded to, and whether each is still in use."""

_WITH_ENDINGS = (f"{SUFFIX}.gz", SUFFIX, *ENDINGS)

MAGIC = b"\x1f\x8b\x08"
AT_ONCE = 1 << 20


class GrowingFile:
    """A file that grows by whole lines, so that everything written survives a crash of the process.

    Its path is absolute. If it ends in ``.gz``, the lines are kept in a file beside it until `close`. Raises
    `OptionError` if the file cannot be written or already exists.
    """

    def __init__(self, path: Path) -> None:
        check_new(path)
        self.path, self._plain = path, growing(path)
        try:
            descriptor = self._opened(os.O_CREAT | os.O_EXCL)
            self._left = _state(descriptor)
            os.close(descriptor)
        except OSError as error:
            raise file_error("written", path, error) from None
        self._pid = os.getpid()

    def write(self, data: bytes) -> None:
        """Append whole lines, or raise `OSError`; a forked child writes nothing: the file is its parent's."""
        if os.getpid() != self._pid:
            return
        # The file is opened each time: the user's code may close a descriptor that is kept, whose number
        # may then belong to a file of theirs; and writes to a deleted file would go unnoticed.
        descriptor = self._opened()
        try:
            if _state(descriptor) != self._left:
                raise FileNotFoundError(errno.ENOENT, "another file has its name")
            left = memoryview(data)
            try:
                while left:  # one call may write only a part
                    left = left[os.write(descriptor, left) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, self._left[-1])
                raise
            self._left = _state(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Compress the file, if its name ends in ``.gz``."""
        if self._plain != self.path and os.getpid() == self._pid:
            with self._plain.open("rb") as lines:
                write_new(self.path, members(lines))
            self._plain.unlink()

    def _opened(self, flags: int = 0) -> int:
        flags |= os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        return os.open(self._plain, flags, 0o600)


def _state(descriptor: int) -> tuple[int, int, int]:
    """Return the device, inode and size of an open file; the size, because inodes are reused."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size


def check_new(path: Path) -> None:
    """Raise `OptionError` if it is certain that no recording can begin at a path."""
    for existing in dict.fromkeys((path, growing(path))):
        if os.path.lexists(existing):
            raise OptionError(f"{_existing(existing)}, or a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        there = "you may not write there" if path.parent.is_dir() else "there is no such folder"
        raise OptionError(f"{plain(path)} cannot be written: {there}")


def growing(path: Path) -> Path:
    """Return the path of the lines while the recording grows."""
    return path.with_suffix("") if path.suffix == ".gz" else path


def write_new(path: Path, chunks: Iterable[bytes], mode: int = 0o666) -> None:
    """Write a file completely or not at all; raise `OptionError` if that fails or the file exists."""
    try:
        write_whole(path, chunks, mode)
    except FileExistsError:
        raise OptionError(_existing(path)) from None
    except OSError as error:
        raise file_error("written", path, error) from None


def write_whole(path: Path, chunks: Iterable[bytes], mode: int) -> None:
    """Write a file completely or not at all, or raise `OSError`; of several writers one wins."""
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        try:
            # A hard link fails if the name exists; a rename would replace the file.
            os.link(half, path)
        except FileExistsError:
            raise
        except OSError:
            # FAT and many network and cloud drives have no hard links: first reserve the name.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
            try:
                half.replace(path)
            except OSError:
                path.unlink()
                raise
    finally:
        with suppress(OSError):  # it does not exist, or cannot be removed
            half.unlink()


def members(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines as compressed members of about `MEMBER` bytes of text; each can be read by itself."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= MEMBER:
            yield gzip.compress(b"".join(held), 6, mtime=0)
            held, size = [], 0
    if held:
        yield gzip.compress(b"".join(held), 6, mtime=0)


def read(path: Path, now: float | None = None, *, everything: bool = False) -> Session:
    """Return the session in a file; it counts as running if the file still grows at the time `now`.

    With `everything`, a long run is not folded. Raises `OptionError` if it is missing or not a recording.
    """
    return session_of(path, read_lines(path, everything=everything), now)


def session_of(path: Path, reader: StreamReader, now: float | None = None) -> Session:
    """Return the session that was read so far; errors name the path."""
    try:
        return reader.session(time.time() if now is None else now)
    except OptionError as error:
        raise OptionError(f"{plain(path)}: {error}") from None


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, or raise `OptionError`; opening a pipe would wait for a writer."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OptionError(f"{plain(path)} cannot be read: it is not a regular file")
        return path.open("rb")
    except OSError as error:
        raise file_error("read", path, error) from None


def is_pickle(path: Path) -> bool:
    """Return whether a file begins like a pickle, or raise `OptionError` if it cannot be read."""
    return _start(path, 1) == b"\x80"


def _open_lines(path: Path) -> BinaryIO:
    if is_pickle(path):
        raise OptionError(
            f"{plain(path)} is a pickle, not a recording; "
            "hfmem check, explain, report and compare read torch's snapshots"
        )
    return open_regular(path)


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a file, or raise `OptionError` if it has more than `most` bytes."""
    data = _start(path, most + 1)
    if len(data) > most:
        raise OptionError(f"{plain(path)} cannot be read: it has more than {format_bytes(most)}")
    return data


def _start(path: Path, size: int) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError as error:
        raise file_error("read", path, error) from None


def read_lines(path: Path, *, everything: bool = False) -> StreamReader:
    """Return a reader that has read a whole file, or raise `OptionError` if it cannot be read."""
    # Imported here: writing, and checking for a file, do not need the reader.
    from hfmem_widget.recording.reader import StreamReader

    reader = StreamReader(everything=everything)
    try:
        with _open_lines(path) as file:
            if file.read(len(MAGIC)) == MAGIC:
                _feed_members(file.fileno(), reader)
            else:
                file.seek(0)
                while data := file.read(AT_ONCE):
                    reader.feed(data)
    except OSError as error:
        raise file_error("read", path, error) from None
    return reader


def _feed_members(file: int, reader: StreamReader) -> None:
    """Feed every member that can be read; a damaged member does not cost those after it."""
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at != -1 and at < len(data):
            text, used = _member(data, at)
            if text:
                reader.feed(text if text.endswith(b"\n") else text + b"\n")
            reader.dropped += used is None
            at = data.find(MAGIC, at + (used or 1))


def _member(data: mmap.mmap, at: int) -> tuple[bytes, int | None]:
    """Return the text of the member that begins at an offset, and its length; None if it is damaged."""
    inflate = zlib.decompressobj(wbits=31)
    text, consumed = bytearray(), 0
    try:
        while not inflate.eof and at + consumed < len(data):
            chunk = inflate.unconsumed_tail
            if not chunk:
                chunk = data[at + consumed : at + consumed + AT_ONCE // 16]
                consumed += len(chunk)
            text += inflate.decompress(chunk, AT_ONCE)
            if len(text) > min(LARGEST_MEMBER, MOST_RATIO * max(consumed, 1 << 10)):
                return b"", None
    except zlib.error:
        return b"", None
    return bytes(text), consumed - len(inflate.unused_data) if inflate.eof else None


def _name_of(label: str, now: float) -> str:
    """Return a file name made of the label and the time: letters, digits and single hyphens."""
    words = "".join(char if char.isalnum() else " " for char in plain(label, 40)).split()
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    milliseconds = int(math.modf(now)[0] * 1000)
    return f"{'-'.join(words) or 'run'}-{when}-{milliseconds:03d}"


def path_for(path: str, label: str, now: float) -> Path:
    """Return the path to record to: a file as given, or in a folder a new one named after label and time.

    If this process has recorded to it before, as when a cell is run again, the name gets a number. Raises
    `OptionError` if the file name has another ending, or no recording can begin there.
    """
    place = checked_path(path)
    if path.endswith(("/", os.sep)) or place.is_dir():
        place /= f"{_name_of(label, now)}{SUFFIX}"
    if not place.name.endswith(ENDINGS):
        raise wrong_value(path, "record", f"a folder, NAME{SUFFIX} or NAME{SUFFIX}.gz")
    if expanded(os.fspath(place)) in _recorded:
        place = unused_path(place)
    check_new(place)
    return place


def claim(path: Path) -> None:
    """Reserve an absolute path within this process until `release`."""
    _recorded[path] = True


def release(path: Path) -> None:
    """Release a path: later recordings of this process may use it."""
    _recorded[path] = False


def unused_path(place: Path) -> Path:
    """Return a path, with a number added if it already exists."""
    ending = next(ending for ending in _WITH_ENDINGS if place.name.endswith(ending))
    stem, unused, number = place.name.removesuffix(ending), place, 1
    while _recorded.get(unused.absolute()) or any(map(os.path.lexists, (unused, growing(unused)))):
        number += 1
        unused = place.with_name(f"{stem}-{number}{ending}")
    return unused


def _existing(path: Path) -> str:
    return f"{plain(path)} already exists and is never overwritten; choose another name"


def checked_path(given: str | os.PathLike[str]) -> Path:
    """Return a given path, or raise `OptionError` if no file can have that name."""
    try:
        place = path_of(given)
        place.is_dir()  # raises if the name is too long or the folder may not be entered
    except OSError as error:
        raise OptionError(f"{plain(given)} cannot be read: {plain(error)}") from None
    return place


def file_error(done: str, path: Path, error: OSError) -> OptionError:
    """Return the error for a file that cannot be `done`: "read" or "written"."""
    return OptionError(f"{plain(path)} cannot be {done}: {readable(error)}")


class Follower:
    """Reads what was appended to a recording since the last call; `reader` has everything read so far.

    For a recording that will be compressed, the path is its final name. Raises `OptionError` if the file is
    missing or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path if os.path.lexists(path) else growing(path)
        if not os.path.lexists(self.path):
            self.path = path  # so that the error names this path
        from hfmem_widget.recording.reader import StreamReader

        self.reader = StreamReader()
        self._file = _open_lines(self.path)
        self._bytes_read = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def look(self) -> bool:
        """Read what is new, and return if there was any; `OptionError` if the file was cut or removed."""
        try:
            # Checked before reading: a recording is compressed and removed right after its last line.
            is_unchanged = self._is_unchanged()
            before = self._bytes_read
            while data := self._file.read(AT_ONCE):
                if not self._bytes_read and data.startswith(MAGIC):
                    self.reader = read_lines(self.path)  # complete: compressed files do not grow
                    self._file.seek(0, os.SEEK_END)
                else:
                    self.reader.feed(data)
                self._bytes_read += len(data)
        except OSError as error:
            message = f"{plain(self.path)} can no longer be read: {readable(error)}"
            raise OptionError(message) from None
        if not is_unchanged and self.reader.end is None:
            message = f"{plain(self.path)} was removed, replaced or cut while it was followed"
            raise OptionError(message)
        return self._bytes_read > before

    def _is_unchanged(self) -> bool:
        followed = os.fstat(self._file.fileno())
        try:
            current = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(followed, current) and followed.st_size >= self._bytes_read
