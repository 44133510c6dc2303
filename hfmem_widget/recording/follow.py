"""A recording that grows, read bit by bit."""

from __future__ import annotations

import os
from pathlib import Path

from hfmem_widget.errors import OptionError
from hfmem_widget.recording.file import AT_ONCE, MAGIC, growing, open_regular, read_lines
from hfmem_widget.recording.reader import StreamReader
from hfmem_widget.text import plain, readable


class Follower:
    """Takes in what a recording has got since it was last looked at; its `reader` has all of it so far.

    The path of one that is to be compressed is the name that it will have. Raises `OptionError` if there is
    no such file, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path if os.path.lexists(path) else growing(path)
        if not os.path.lexists(self.path):
            self.path = path  # and say that this one is not there
        self.reader = StreamReader()
        self._file = open_regular(self.path)
        self._bytes_read = 0

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def look(self) -> bool:
        """Read what is new, and return whether there was anything.

        Raises `OptionError` if it cannot be read any more, or another file has its name before the recording
        has ended.
        """
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
            message = f"{plain(self.path)} cannot be read any more: {readable(error)}"
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
