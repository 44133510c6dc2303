"""Where a recording lies: a file that only grows, and one in compressed members once it is complete."""

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
from hfmem_widget.recording.limits import (
    ENDINGS,
    LARGEST_MEMBER,
    MEMBER,
    MOST_RATIO,
    MOST_STEPS,
    SUFFIX,
)
from hfmem_widget.session import Session
from hfmem_widget.text import format_bytes, plain, readable, wrong_value

if TYPE_CHECKING:
    from hfmem_widget.recording.reader import StreamReader

_recorded: dict[Path, bool] = {}
"""Where this process has recorded to, and whether it still does."""

_WITH_ENDINGS = (f"{SUFFIX}.gz", SUFFIX, *ENDINGS)

MAGIC = b"\x1f\x8b\x08"
AT_ONCE = 1 << 20


class GrowingFile:
    """A file to which lines are added, whole ones at a time: what was written survives the process.

    Its path is absolute. With ``.gz`` at its end, the lines lie beside it until `close`. Raises `OptionError`
    if it cannot be written, or is there.
    """

    def __init__(self, path: Path) -> None:
        check_new(path)
        self.path, self._plain = path, growing(path)
        try:
            descriptor = self._opened(os.O_CREAT | os.O_EXCL)
            self._left = _state(descriptor)
            os.close(descriptor)
        except OSError as error:
            raise cannot_be("written", path, error) from None
        self._pid = os.getpid()

    def write(self, data: bytes) -> None:
        """Add whole lines, or raise `OSError`; a forked child writes nothing: these are not its lines."""
        if os.getpid() != self._pid:
            return
        # Opened anew each time: a descriptor that is kept may be closed by the user's code, and then be that
        # of the user's own file; and what was deleted would be written to unseen.
        descriptor = self._opened()
        try:
            if _state(descriptor) != self._left:
                raise FileNotFoundError(errno.ENOENT, "another file has its name")
            self._add(descriptor, data)
            self._left = _state(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Compress it, if that was asked for."""
        if self._plain != self.path and os.getpid() == self._pid:
            with self._plain.open("rb") as lines:
                write_new(self.path, members(lines))
            self._plain.unlink()

    def _add(self, descriptor: int, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:  # one call may take only a part
                left = left[os.write(descriptor, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, self._left[-1])
            raise

    def _opened(self, flags: int = 0) -> int:
        flags |= os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        return os.open(self._plain, flags, 0o600)


def _state(descriptor: int) -> tuple[int, int, int]:
    """Return which file a descriptor is of, by device and inode, and its size: inodes are used again."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size


def check_new(path: Path) -> None:
    """Raise `OptionError` if a recording cannot be begun at a path, as far as that can be seen."""
    for existing in dict.fromkeys((path, growing(path))):
        if os.path.lexists(existing):
            raise OptionError(f"{_is_there(existing)}, or a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        there = "you may not write there" if path.parent.is_dir() else "there is no such folder"
        raise OptionError(f"{plain(path)} cannot be written: {there}")


def growing(path: Path) -> Path:
    """Return where the lines lie while they grow."""
    return path.with_suffix("") if path.suffix == ".gz" else path


def write_new(path: Path, chunks: Iterable[bytes], mode: int = 0o666) -> None:
    """Write a file that is whole or not there; raise `OptionError` if it cannot be written, or is there."""
    try:
        write_whole(path, chunks, mode)
    except FileExistsError:
        raise OptionError(_is_there(path)) from None
    except OSError as error:
        raise cannot_be("written", path, error) from None


def write_whole(path: Path, chunks: Iterable[bytes], mode: int) -> None:
    """Write a file that is whole or not there, or raise `OSError`; of several writers one wins."""
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        try:
            # A link is refused where something is; a rename would replace it.
            os.link(half, path)
        except FileExistsError:
            raise
        except OSError:
            # No links there, as on FAT and many network and cloud drives: first the name alone is taken.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
            try:
                half.replace(path)
            except OSError:
                path.unlink()
                raise
    finally:
        with suppress(OSError):  # it is not there, or cannot be
            half.unlink()


def members(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines as compressed members of about `MEMBER` bytes of text each: each can be read by itself."""
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
    """Return the session that a file holds; one that still grows at the time `now` is running.

    With `everything`, a long run is not folded. Raises `OptionError` if there is none, or it is no recording.
    """
    return session_of(path, read_lines(path, everything=everything), now)


def session_of(
    path: Path, reader: StreamReader, now: float | None = None, newest_steps: int = MOST_STEPS
) -> Session:
    """Return the session that was read so far; what is wrong with it is said of the path."""
    try:
        return reader.session(time.time() if now is None else now, newest_steps=newest_steps)
    except OptionError as error:
        raise OptionError(f"{plain(path)}: {error}") from None


def open_regular(path: Path) -> BinaryIO:
    """Return a file opened for reading, or raise `OptionError`; a pipe would be waited for."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OptionError(f"{plain(path)} cannot be read: it is not a regular file")
        return path.open("rb")
    except OSError as error:
        raise cannot_be("read", path, error) from None


def is_pickle(path: Path) -> bool:
    """Return whether a file begins as a pickle, or raise `OptionError` if it cannot be read."""
    return _start(path, 1) == b"\x80"


def _open_lines(path: Path) -> BinaryIO:
    if is_pickle(path):
        raise OptionError(
            f"{plain(path)} is a pickle, not a recording; "
            "hfmem check, explain, report and compare read torch's snapshots"
        )
    return open_regular(path)


def read_regular(path: Path, most: int) -> bytes:
    """Return what a file has, or raise `OptionError` if that is more than so many bytes."""
    data = _start(path, most + 1)
    if len(data) > most:
        raise OptionError(f"{plain(path)} cannot be read: it has more than {format_bytes(most)}")
    return data


def _start(path: Path, size: int) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError as error:
        raise cannot_be("read", path, error) from None


def read_lines(path: Path, *, everything: bool = False) -> StreamReader:
    """Return a reader that has taken in a whole file, or raise `OptionError` if it cannot be read."""
    # Only here: what writes, or looks whether there is something to read, needs none.
    from hfmem_widget.recording.reader import StreamReader

    reader = StreamReader(everything=everything)
    try:
        with _open_lines(path) as file:
            if os.fstat(file.fileno()).st_size:
                if file.read(len(MAGIC)) == MAGIC:
                    _feed_members(file.fileno(), reader)
                else:
                    file.seek(0)
                    while data := file.read(AT_ONCE):
                        reader.feed(data)
    except OSError as error:
        raise cannot_be("read", path, error) from None
    return reader


def _feed_members(file: int, reader: StreamReader) -> None:
    """Feed every member that can be read: one that is damaged costs itself, not what follows."""
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at != -1 and at < len(data):
            text, used = _member(data, at)
            if text:
                reader.feed(text if text.endswith(b"\n") else text + b"\n")
            reader.dropped += used is None
            at = data.find(MAGIC, at + (used or 1))


def _member(data: mmap.mmap, at: int) -> tuple[bytes, int | None]:
    """Return the text of the member that begins somewhere, and its length; None where it is damaged."""
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
    """Return a name for a file, made of the label and the time: letters, digits and single hyphens."""
    words = "".join(char if char.isalnum() else " " for char in plain(label, 40)).split()
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    milliseconds = int(math.modf(now)[0] * 1000)
    return f"{'-'.join(words) or 'run'}-{when}-{milliseconds:03d}"


def path_for(path: str, label: str, now: float) -> Path:
    """Return where to record: a file as it is, or a new one in a folder, named after the label and the time.

    Where this process has recorded to it before, as in a cell that is run again, the name gets a number.
    Raises `OptionError` if the ending is none of ours, or a recording cannot be begun there.
    """
    place = place_of(path)
    if path.endswith(("/", os.sep)) or place.is_dir():
        place /= f"{_name_of(label, now)}{SUFFIX}"
    if not place.name.endswith(ENDINGS):
        raise wrong_value(path, "record", f"a folder, NAME{SUFFIX} or NAME{SUFFIX}.gz")
    if expanded(os.fspath(place)) in _recorded:
        place = free(place)
    check_new(place)
    return place


def claim(path: Path) -> None:
    """Keep other recordings of this process from an absolute path until `release`."""
    _recorded[path] = True


def release(path: Path) -> None:
    """Have no part in a path any more."""
    _recorded[path] = False


def free(place: Path) -> Path:
    """Return a path, with a number where something is there already."""
    ending = next(ending for ending in _WITH_ENDINGS if place.name.endswith(ending))
    stem, free_path, number = place.name.removesuffix(ending), place, 1
    while _recorded.get(free_path.absolute()) or any(
        map(os.path.lexists, (free_path, growing(free_path)))
    ):
        number += 1
        free_path = place.with_name(f"{stem}-{number}{ending}")
    return free_path


def _is_there(path: Path) -> str:
    return f"{plain(path)} already exists and is never overwritten; choose another name"


def place_of(given: str | os.PathLike[str]) -> Path:
    """Return the path that a person has given, or raise `OptionError` where nothing can be there."""
    try:
        place = path_of(given)
        place.is_dir()  # raises for a name that is too long, and for a folder that may not be entered
    except OSError as error:
        raise OptionError(f"{plain(given)} cannot be read: {plain(error)}") from None
    return place


def cannot_be(done: str, path: Path, error: OSError) -> OptionError:
    """Return the error for a file that cannot be "read" or "written"."""
    return OptionError(f"{plain(path)} cannot be {done}: {readable(error)}")


class Follower:
    """Takes in what a recording has got since it was last looked at; its `reader` has all of it so far.

    The path of one that is to be compressed is the name that it will have. Raises `OptionError` if there is
    no such file, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path if os.path.lexists(path) else growing(path)
        if not os.path.lexists(self.path):
            self.path = path  # and say that this one is not there
        from hfmem_widget.recording.reader import StreamReader

        self.reader = StreamReader()
        self._file = _open_lines(self.path)
        self._bytes_read = 0

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def look(self) -> bool:
        """Read what is new, and return whether there was any; `OptionError` if it was cut or removed."""
        try:
            # Before it is read: a recording is compressed and removed right after its last line.
            is_there = self._is_there()
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
        if not is_there and self.reader.end is None:
            message = f"{plain(self.path)} was removed, replaced or cut while it was followed"
            raise OptionError(message)
        return self._bytes_read > before

    def _is_there(self) -> bool:
        mine = os.fstat(self._file.fileno())
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(mine, there) and mine.st_size >= self._bytes_read
