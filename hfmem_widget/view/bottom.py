"""A live line in a terminal, below what scrolls: the code's own output goes on above it, untouched."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hfmem_widget.session import Sample, Session
from hfmem_widget.text import plain
from hfmem_widget.view.terminal import glance, line

PACE = 0.5  # seconds between two lines
FEWEST_ROWS = 6

SAVE, RESTORE = "\x1b7", "\x1b8"  # the cursor's place
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
DIM, USUAL = "\x1b[2m", "\x1b[22m"
TO_LINE_END, ALL_ROWS = "\x1b[K", "\x1b[r"

_shown_on: dict[int, BottomLine] = {}
"""The line in each terminal's last row: of nested watches, that of the first to show one."""


def terminal_of(stream: Any) -> int | None:
    """Return the file descriptor of a terminal that can keep a row for itself; None of anything else."""
    try:
        number: int = stream.fileno()
        is_able = os.isatty(number) and os.environ.get("TERM", "dumb") != "dumb"
    except (AttributeError, OSError, ValueError):
        return None
    return number if is_able and os.name == "posix" else None


class BottomLine:
    """The last row of a terminal, kept out of what scrolls (DECSTBM) until `close`; called each tick."""

    def __init__(self, terminal: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal  # a file descriptor
        self._clock = clock
        self._rows = 0
        self._has_ended = False
        self._lock = threading.Lock()
        self._next = clock() + PACE  # a quick cell shows none

    def __call__(self, session: Session, samples: Sequence[Sample]) -> None:
        """Show how a session stands, at its pace."""
        del samples
        if self._clock() < self._next:
            return
        self._next = self._clock() + PACE
        peaks = {each.key: session.peak(f"{each.key}/allocated") for each in session.devices}
        figures = line(glance(session, peaks)).partition("\n")[0]
        with self._lock:
            if not self._has_ended:
                self._write(f'memwatch "{plain(session.label)}" · {figures}')

    def _write(self, text: str) -> None:
        columns, rows = os.get_terminal_size(self._terminal)
        if rows < FEWEST_ROWS or _shown_on.setdefault(self._terminal, self) is not self:
            return
        keep = ""
        if rows != self._rows:
            # One row down and up again: the text that may stand in the last row moves up.
            keep = f"\x1bD\x1b[A{SAVE}\x1b[1;{rows - 1}r{RESTORE}"
            self._rows = rows
        row = f"\x1b[{rows};1H{NO_WRAP}{DIM}{text[: columns - 1]}{USUAL}{TO_LINE_END}{WRAP}"
        self._send(f"{keep}{SAVE}{row}{RESTORE}")

    def close(self) -> None:
        """Give the row back, empty."""
        with self._lock:
            self._has_ended = True
            if self._rows:
                del _shown_on[self._terminal]
                self._send(f"{SAVE}{ALL_ROWS}\x1b[{self._rows};1H{TO_LINE_END}{RESTORE}")
                self._rows = 0

    def _send(self, text: str) -> None:
        # Not to a terminal that was stopped (Ctrl-S): the poller would wait with it.
        _, ready, _ = select.select([], [self._terminal], [], 0)
        if ready:
            os.write(self._terminal, text.encode())
