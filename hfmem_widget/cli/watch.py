"""``hfmem watch RUN``: a recording as it grows, in a terminal."""

import json
import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hfmem_widget.cli.output import FINE, NO, say
from hfmem_widget.ranks.run import Run
from hfmem_widget.recording.file import Follower, checked_path, session_of
from hfmem_widget.text import plain
from hfmem_widget.view.terminal import Glance, data, glance, line, screen

PACE = 1.0  # seconds between two looks

HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(arguments: Namespace, pause: Callable[[float], None] = time.sleep) -> int:
    """Show a run until it ends; the code is `NO` where it broke off."""
    path = checked_path(arguments.RUN)
    with closing(_Ranks(path) if path.is_dir() else _Recording(path)) as run:
        show = _shown_by(arguments)
        try:
            while True:
                now = run.look()
                if now is None and arguments.once:
                    say(f"{plain(path)} is empty so far")
                    return FINE
                if now is not None and (not show(now) or arguments.once or run.has_ended):
                    return NO if run.broke_off else FINE
                pause(PACE)
        except KeyboardInterrupt:
            # That is how one leaves. A terminal has written ^C.
            if sys.stdout is not None and sys.stdout.isatty():
                say("")
            return FINE


class _Recording:
    def __init__(self, path: Path) -> None:
        self._follower = Follower(path)
        self.close = self._follower.close
        self.has_ended = self.broke_off = False

    def look(self) -> Glance | None:
        self._follower.look()
        reader = self._follower.reader
        if reader.head is None and not reader.dropped:
            return None
        now = time.time()
        session = session_of(self._follower.path, reader, now)
        self.has_ended, self.broke_off = not session.running, session.broken_off
        silent = max(0.0, now - reader.last_sign) if session.running else 0.0
        return glance(session, silent)


class _Ranks:
    def __init__(self, path: Path) -> None:
        self._run = Run(path)
        self.close = self._run.close
        self.has_ended = self.broke_off = False

    def look(self) -> Glance | None:
        self._run.look()
        session = self._run.overview
        if session.ranks is None:
            return None
        self.has_ended = not session.running
        self.broke_off = self.has_ended and not self._run.was_heard
        return glance(session)


def _shown_by(arguments: Namespace) -> Callable[[Glance], bool]:
    stdout = sys.stdout
    if arguments.json:
        return lambda now: say(json.dumps(data(now)))
    is_terminal = stdout is not None and stdout.isatty() and os.environ.get("TERM") != "dumb"
    in_colour = is_terminal and not os.environ.get("NO_COLOR")
    if arguments.once:
        return lambda now: say("\n".join(screen(now, *_size(), in_colour=in_colour)))
    if not is_terminal:
        return lambda now: say(line(now))
    # What stands on the screen moves up, to where one can scroll; nothing else is changed of the terminal.
    say("\n" * _size()[1], end="")

    def redraw(now: Glance) -> bool:
        lines = screen(now, *_size(), in_colour=in_colour)
        text = "".join(f"{each}{TO_LINE_END}\n" for each in lines)
        return say(f"{HOME}{text}{TO_SCREEN_END}", end="")

    return redraw


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines
